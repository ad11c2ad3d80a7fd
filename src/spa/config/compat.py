"""Keys of the original recipe that are spelled differently here."""

from typing import Any

from spa.config.convert import Problems


def translate(tree: dict[Any, Any], problems: Problems) -> list[str]:
    """Rewrite `tree` in place; returns warning lines."""
    return []
