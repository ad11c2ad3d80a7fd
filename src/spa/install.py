"""How to install spa with more of its optional packages.

The distribution is not on a package index yet, where the name `spa` belongs to another project.
"""

import json
from importlib import metadata
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "spa-agent"


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this installation, whether from a clone, a folder or a repository."""
    origin = _origin()
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in origin:
        return f"pip install '{DISTRIBUTION}[{extra}] @ {origin['vcs_info']['vcs']}+{url}'"
    return f"pip install -e '.[{extra}]' in a clone of spa"


def _origin() -> dict[str, Any]:
    """Where pip got spa from (PEP 610); empty when pip did not write it down."""
    try:
        return json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return {}
