"""Response formats for certain kinds of games, which `pyproject.toml` registers in the group
`spa.formats`."""
