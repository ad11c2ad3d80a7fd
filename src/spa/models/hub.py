"""Models from the Hugging Face Hub: downloaded once, as a whole, without anything that could run code."""

import functools
import logging
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from spa.errors import ModelError

log = logging.getLogger(__name__)

FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
CODE = ("*.py",)
OTHERS = ("original/*", "onnx/*", "openvino/*", "metal/*")  # the same weights in other formats


@functools.cache
def download_model(name: str, *, code: bool = False, endpoint: str | None = None) -> Path:
    """The folder of a Hub model (owner/name) in the local cache, downloaded if it is not there yet.

    Without a network, what was downloaded earlier is used. `code` also takes the model's own Python files; `endpoint`
    is another server than the Hub. Raises ModelError with the way out.
    """
    try:
        folder = snapshot_download(
            name, allow_patterns=[*FILES, *(CODE if code else ())], ignore_patterns=list(OTHERS), endpoint=endpoint
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{name}: access to this model has to be asked for. Accept its terms on https://huggingface.co/{name}, "
            "then run `hf auth login` once."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name}: there is no such model on the Hub, or it is private. Check the spelling (owner/name); for a "
            "private model run `hf auth login` once."
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name}: the Hub cannot be reached and the model is not in the local cache. Download it where there is a "
            f"network (`hf download {name} --local-dir FOLDER`) and set model_path=FOLDER, or use builtin:tiny."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"{name}: cannot be downloaded ({str(error).splitlines()[0]})") from error
    return Path(folder)
