"""Our environments, with their prompts and parser, exported to other frameworks. Each module
imports its framework."""
