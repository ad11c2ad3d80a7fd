"""Build the pip command that adds an extra of spa, and report the versions of the packages on which
results depend.

The distribution is not on a package index, where the name `spa` belongs to another project.
"""

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from spa.version import __version__

DISTRIBUTION = "spa-agent"


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this installation, whether from a clone, a folder or
    a repository."""
    origin = _origin()
    url = origin.get("url", "")
    # PEP 610: a folder has `dir_info`, a repository `vcs_info`; a wheel from an index has neither.
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in origin:
        return f"pip install '{DISTRIBUTION}[{extra}] @ {origin['vcs_info']['vcs']}+{url}'"
    return f"pip install -e '.[{extra}]' in a clone of spa"


def commit() -> str:
    """Return the Git commit of this installation: the commit that pip recorded when it installed
    from a repository, otherwise the clone's HEAD. Returns "" if it is unknown."""
    known = _origin().get("vcs_info", {}).get("commit_id")
    # In a clone this file is src/spa/install.py, so parents[2] is the clone's root.
    root = Path(__file__).parents[2]
    if known or not (root / ".git").exists():
        return known or ""
    try:
        asked = subprocess.run(
            ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:  # Git is not installed
        return ""
    return asked.stdout.strip()


def _origin() -> dict[str, Any]:
    """Return the content of `direct_url.json` (PEP 610), which records where pip installed spa
    from. Empty if pip recorded no origin."""
    try:
        return json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return {}


PACKAGES = ("torch", "transformers", "numpy", "gymnasium", "tokenizers")


def versions() -> dict[str, str]:
    """Return the versions of Python, spa and the packages on which results depend, and the commit
    of spa if it is known."""
    installed = {"python": platform.python_version(), "spa": __version__}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed | ({"commit": known} if (known := commit()) else {})
