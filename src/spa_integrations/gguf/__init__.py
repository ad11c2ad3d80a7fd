"""GGUF files as model folders, and SmolLM2, which comes as one."""
