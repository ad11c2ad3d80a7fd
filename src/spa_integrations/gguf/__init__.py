"""Conversion of GGUF files to model folders, and download of SmolLM2, which is published as a GGUF
file."""
