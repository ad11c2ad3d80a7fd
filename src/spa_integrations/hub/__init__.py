"""Data sets and checkpoints on the Hugging Face Hub."""
