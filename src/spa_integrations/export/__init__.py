"""Exports of our environments, with their prompts and parser, to other frameworks."""
