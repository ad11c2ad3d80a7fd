"""Download models and data sets from the Hugging Face Hub into the local cache. By default, files
that could run code are left out."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from spa.errors import DataError, ModelError, SpaError, one_line

Kind = Literal["model", "dataset"]

CLIENT_ERRORS = (HTTPError, OSError)
"""Errors of requests to the Hub. Those of a connection are not OSErrors in all versions of its
client."""

# Files that a model needs. Pickled weights (*.bin) are left out, because loading them can run code.
FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
CODE = ("*.py",)

DATA_SUFFIXES = (".parquet", ".jsonl", ".json")
SPLITS = {"train": ("wm_train", "train"), "val": ("wm_val", "val", "test")}
"""Prefixes of data file names, by split: first the names that spa writes, then names that are
common on the Hub."""
DATA = (*(f"*{suffix}" for suffix in DATA_SUFFIXES), "*.md")
OTHERS = ("original/*", "onnx/*", "openvino/*", "metal/*")  # the same weights in other formats


@functools.cache
def download_model(name: str, *, code: bool = False, endpoint: str | None = None) -> Path:
    """Return the folder of a Hub model (owner/name) in the local cache. Downloads the model if it
    is not in the cache.

    Without a network, an earlier download is used. With `code`, the model's Python files are
    downloaded, too. `endpoint` is the URL of a server to use instead of the Hub. Raises ModelError,
    which says how to fix the problem.
    """
    patterns = [*FILES, *(CODE if code else ())]
    with explained(name, "model", ModelError):
        return Path(
            snapshot_download(
                name, allow_patterns=patterns, ignore_patterns=list(OTHERS), endpoint=endpoint
            )
        )


def is_data_name(name: str) -> bool:
    """Return whether a name can only refer to a Hub data set (owner/name)."""
    local = name.startswith((".", "/", "~")) or name.count("/") != 1
    return not local and not name.endswith(DATA_SUFFIXES) and not Path(name).exists()


@functools.cache
def download_data(name: str, *, endpoint: str | None = None) -> Path:
    """Return the folder of a Hub data set (owner/name) in the local cache. Downloads the data if
    needed.

    Raises DataError, which says how to fix the problem.
    """
    with explained(name, "dataset", DataError):
        return Path(
            snapshot_download(
                name,
                repo_type="dataset",
                allow_patterns=list(DATA),
                endpoint=endpoint,
            )
        )


@contextmanager
def explained(name: str, kind: Kind, error_type: type[SpaError]) -> Iterator[None]:
    """Turn errors of the Hub client into `error_type`, with a message that says how to fix the
    problem."""
    what, key = ("model", "model_path") if kind == "model" else ("data set", "data.train_files")
    page = (
        f"https://huggingface.co/{name}"
        if kind == "model"
        else f"https://huggingface.co/datasets/{name}"
    )
    try:
        yield
    # Must come before RepositoryNotFoundError, its base class.
    except GatedRepoError as error:
        raise error_type(
            f"{name}: access to the {what} is restricted. Accept the terms on {page}, then "
            "run `hf auth login` once."
        ) from error
    except RepositoryNotFoundError as error:
        raise error_type(
            f"{name}: the {what} does not exist on the Hugging Face Hub, or it is private. "
            f"Check the spelling (owner/name). For a private {what}, run `hf auth login` "
            "once."
        ) from error
    # Must come before OSError, one of its base classes.
    except LocalEntryNotFoundError as error:
        option = "" if kind == "model" else "--repo-type dataset "
        more = " or use builtin:tiny" if kind == "model" else ""
        raise error_type(
            f"{name}: the Hugging Face Hub cannot be reached, and the {what} is not in the "
            f"local cache. On a machine with network access run `hf download {name} "
            f"{option}--local-dir FOLDER`. Then set {key} to FOLDER{more}."
        ) from error
    except (HFValidationError, *CLIENT_ERRORS) as error:
        raise error_type(
            f"{name}: the request to the Hugging Face Hub failed "
            f"({one_line(error)[:200]}). Check the name, the network and the "
            "free disk space."
        ) from error
