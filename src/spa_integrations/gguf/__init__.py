"""Conversion of GGUF files to model folders, and SmolLM2, which is published as one."""
