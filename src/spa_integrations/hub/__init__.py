"""Upload and download of datasets and checkpoints on the Hugging Face Hub."""
