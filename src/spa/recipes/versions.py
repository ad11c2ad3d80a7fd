"""Versions of the packages that compute the numbers."""

import platform
from importlib import metadata

from spa.install import commit
from spa.version import __version__

PACKAGES = ("torch", "transformers", "numpy", "gymnasium", "tokenizers")


def versions() -> dict[str, str]:
    """Versions of what computes the numbers, and the commit of spa where it is known."""
    installed = {"python": platform.python_version(), "spa": __version__}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed | ({"commit": known} if (known := commit()) else {})
