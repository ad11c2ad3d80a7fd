"""Response formats for certain kinds of games. `pyproject.toml` registers the formats as entry
points in the group `spa.formats`."""
