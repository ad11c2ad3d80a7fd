"""Bridges out: our environments, and the words around them, inside other stacks. Each module
imports its stack."""
