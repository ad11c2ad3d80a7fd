"""Episodes in notebooks, shown by the package that registers `episode_html`."""

from spa.plugins import load_plugin
from spa.types import Episode


def _episode_html(episode: Episode) -> str:
    return load_plugin("api", "episode_html")(episode)


def show_in_notebooks() -> None:
    """Let a notebook draw every episode that it shows."""
    # Set here and not in `spa.types`, because most modules that import `spa.types` have no use for
    # HTML.
    setattr(Episode, "_repr_html_", _episode_html)  # noqa: B010 - pyright knows no new attribute
