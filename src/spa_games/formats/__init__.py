"""Response formats for games of one kind, which `pyproject.toml` registers in the group `spa.formats`."""
