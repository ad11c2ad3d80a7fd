"""Show episodes in notebooks. The function that renders them, `episode_html`, is registered by
another package."""

from spa.plugins import load_plugin
from spa.types import Episode


def _episode_html(episode: Episode) -> str:
    return load_plugin("api", "episode_html")(episode)


def show_in_notebooks() -> None:
    """Make notebooks render episodes as HTML."""
    # The method is set here and not in `spa.types`, because most modules that import `spa.types` do
    # not need HTML.
    setattr(Episode, "_repr_html_", _episode_html)  # noqa: B010 - pyright knows no new attribute
