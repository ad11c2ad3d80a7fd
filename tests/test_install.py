"""Messages and pages name a way to install spa that works: the index name `spa` belongs to another project."""

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import spa.install
from spa.install import DISTRIBUTION, commit, install_hint

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///home/me/spa%201", "dir_info": {"editable": True}},
            "pip install -e '/home/me/spa 1[gguf]'",
        ),
        ({"url": "file:///home/me/spa", "dir_info": {}}, "pip install '/home/me/spa[gguf]'"),
        (
            {"url": "https://example.org/spa", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'spa-agent[gguf] @ git+https://example.org/spa'",
        ),
        (None, "pip install -e '.[gguf]' in a clone of spa"),
    ],
)
def test_the_hint_fits_the_way_of_installation(tmp_path, monkeypatch, origin, command):
    folder = tmp_path / "spa_agent-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: spa-agent\nVersion: 9\n", encoding="utf-8"
    )
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.version(DISTRIBUTION) == "9"
    assert install_hint("gguf") == command


def test_the_commit_is_that_of_the_clone_or_of_the_repository(monkeypatch: pytest.MonkeyPatch):
    asked = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    assert commit() == (asked.stdout.strip() if (ROOT / ".git").exists() else "")
    monkeypatch.setattr(
        spa.install, "_origin", lambda: {"vcs_info": {"vcs": "git", "commit_id": "abc"}}
    )
    assert commit() == "abc"
