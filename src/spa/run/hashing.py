"""Compute the fingerprint of a stage before it runs: its settings, and hashes of what it reads.

The schema determines which settings are included (`Key.affects`), and `spa.config.stages` lists the
sections of each stage. Models, tokenizers, chat templates and data sets are included by content:
moving a file changes no fingerprint, but replacing it does.
"""

import functools
import hashlib
import importlib.util
import json
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from spa.config.hardware import threads_of
from spa.config.schema import Config
from spa.config.stages import StageName, key_of, values_of
from spa.distributed.world import current_world
from spa.errors import DataError, ModelError
from spa.models.hub import DATA_SUFFIXES, SPLITS, download_data, is_data_name
from spa.models.load import base_source, indexed_weights, local_folder, model_source
from spa.models.lora import read_adapter
from spa.plugins import find_modules_beside_user
from spa.run.files import sha256
from spa.run.fingerprint import Fingerprint
from spa.version import __version__

REVISIONS: dict[StageName, int] = {"selfplay": 2, "sft": 2, "ppo": 2, "eval": 2}
"""Version of each stage's code. It is raised when a change of the code changes the results, as
announced in the changelog."""

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "vllm")
# The name after the colon is matched by a look-ahead, because `gymnasium:my_games:Maze-v0` names
# two modules.
_NAMED = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*):(?=[A-Za-z_])")
_SHIPPED = (
    "spa",
    "spa_author",
    "spa_bench",
    "spa_engines",
    "spa_estimates",
    "spa_games",
    "spa_integrations",
    "spa_measurements",
    "spa_original",
    "spa_report",
    "spa_sweeps",
    "spa_verifiers",
)
# Files whose names begin with one of these belong to the tokenizer or the image processor.
_TOKENIZER = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens_map",
    "added_tokens",
    "preprocessor_config",
    "processor",
)
# `.py`: custom code of a model is part of its content.
_MODEL_FILES = (".json", ".safetensors", ".jinja", ".txt", ".model", ".tiktoken", ".py")
# The marker of a checkpoint describes its other files and is not content itself.
_MARKER = "complete.json"


def stage_fingerprint(
    cfg: Config,
    stage: StageName,
    *,
    parent: Fingerprint | None = None,
    data: Path | None = None,
    content: Mapping[str, str] | None = None,
) -> Fingerprint:
    """Return the fingerprint of a stage that is about to start, the same on every rank. Downloads
    models and data sets from the Hub.

    `data` is a data set without a fingerprint of its own, which is included by content. `content`
    has the hashes of further inputs by name.
    """

    def find() -> dict[str, Any]:
        fetch_content(cfg, stage)
        more = {} if data is None else {"the data set": file_content(str(data))}
        return fingerprint_of(
            cfg, stage, parent=parent, content={**(content or {}), **more}
        ).to_json()

    # Rank 0 hashes for all ranks: they may see different caches, but must make the same decision.
    return Fingerprint.from_json(current_world().broadcast(find))


def fetch_content(cfg: Config, stage: StageName) -> None:
    """Download the models and data sets that a stage reads from the Hub, so that their content can
    be hashed.

    Download errors are ignored here, because some policies of self-play need no model. If the stage
    does load the content, the error is raised then.
    """
    for key, value in values_of(cfg, stage).items():
        content = key_of(key).content
        if content == "model" and value not in cfg.model_info:
            with suppress(ModelError):
                base_source(value, code=cfg.actor_rollout_ref.model.trust_remote_code)
        elif content == "data":
            for name in [value] if isinstance(value, str) else value or ():
                if is_data_name(name):
                    with suppress(DataError):
                        download_data(name)


def fingerprint_of(
    cfg: Config,
    stage: StageName,
    *,
    parent: Fingerprint | None = None,
    content: Mapping[str, str] | None = None,
) -> Fingerprint:
    """Return the fingerprint of a stage with this configuration.

    Models and data sets of the Hub must be in the local cache (see `fetch_content`); otherwise they
    are identified by their names. A file is hashed once per process, unless its size or
    modification time changes.

    Args:
        parent: the fingerprint of the stage before. PPO starts from the weights of that stage, so
            `model_path` is then left out.
        content: hashes of further inputs by name.
    """
    settings: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    numerics: dict[str, Any] = {}
    for name, value in values_of(cfg, stage).items():
        key = key_of(name)
        # The value is converted as in JSON (tuples become lists), so that it compares equal to the
        # value in a stored fingerprint.
        plain = json.loads(json.dumps(value, default=str))
        if key.affects == "numerics":
            numerics[name] = plain
        elif key.affects != "semantics":
            continue
        elif key.content == "model":
            if parent is None or stage != "ppo":
                hashes |= {
                    f"{name} ({part})": digest for part, digest in model_content(str(value)).items()
                }
        elif key.content == "checkpoint":
            hashes[name] = checkpoint_content(value)
        elif key.content != "value":
            hashes |= {name: file_content(value)} if value is not None else {}
        # An option of an environment may name a file, such as levels or a word list. Its content is
        # hashed instead of its path.
        elif ".env_config." in name and isinstance(value, str) and Path(value).is_file():
            hashes[name] = file_content(value)
        else:
            settings[name] = plain
            # Reward functions are keys of their section: `custom_envs.TAG.reward.module:function`.
            hashes |= own_code(name.rpartition(".reward.")[2], plain)
    return Fingerprint(
        stage=stage,
        settings=settings,
        content=hashes | dict(content or {}),
        parent=parent,
        revision=REVISIONS[stage],
        numerics=numerics,
        environment=environment(threads_of(cfg) or torch.get_num_threads()),
    )


def own_code(name: str, value: Any) -> dict[str, str]:
    """Return the hashes of the user's modules that a setting names as `package.module:name`, in its
    value or in the name of its key. Modules that they import are not hashed."""
    digests: dict[str, str] = {}
    for module in set(_NAMED.findall(f"{name} {json.dumps(value)}")):
        if module.partition(".")[0] in _SHIPPED:
            continue
        find_modules_beside_user()
        # Names such as builtin:tiny refer to no module. A missing module is reported where it is
        # used.
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                digests[f"the code of {module}"] = file_sum(Path(spec.origin))
    return digests


def environment(threads: int) -> dict[str, Any]:
    """Versions, CPU or GPU, and the number of CPU threads of a run."""
    versions: dict[str, Any] = {"python": platform.python_version(), "spa": __version__}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available()
    return versions | {
        # On a CPU, this is the set of vector instructions (AVX2, AVX512), which determines the
        # kernels.
        "processor": torch.cuda.get_device_name()
        if cuda
        else torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
    }


def model_content(name: str) -> dict[str, str]:
    """Return the SHA-256 of a model's files for each part: `weights`, `tokenizer` and `chat
    template`.

    For a Hub name, the snapshot in the local cache is hashed. A model that is not on this machine,
    or is behind an API, is identified by its name. Raises ModelError for an adapter that does not
    name its base model.
    """
    folder = _model_folder(name)
    if folder is None:
        return {"weights": f"name {name}"}
    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _MODEL_FILES and path.name != _MARKER and path.is_file():
            parts.setdefault(_part(path.name), []).append(path)
    nested = indexed_weights(folder)
    if nested:
        parts.setdefault("weights", []).extend(path for path in nested if path.is_file())
    digests = {part: _sums(paths) for part, paths in parts.items()}
    adapter = folder / "adapter_config.json"
    # The folder has only an adapter, so the content of its base model is included, too.
    if adapter.is_file() and not (folder / "config.json").is_file():
        base = read_adapter(folder)["base_model_name_or_path"]
        digests |= {
            f"{part} of its base": value for part, value in model_content(str(base)).items()
        }
    return digests


def _model_folder(name: str) -> Path | None:
    folder = local_folder(name)
    if folder is None:
        return _cached(name, "model")
    try:
        return model_source(name)
    except ModelError:
        return folder


def _cached(name: str, kind: str) -> Path | None:
    """Return the folder of a Hub name's snapshot in the local cache; None if there is none. Does
    not use the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    # Only owner/name is looked up: paths and names such as `builtin:tiny` have no snapshot.
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    try:
        return Path(snapshot_download(name, repo_type=kind, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None


def _part(name: str) -> str:
    if name.startswith("chat_template"):
        return "chat template"
    return (
        "tokenizer"
        if name.startswith(_TOKENIZER) or name.endswith((".model", ".tiktoken"))
        else "weights"
    )


def file_content(named: Any) -> str:
    """Return the SHA-256 of the data that a setting names: a file, the data files of a folder or
    Hub data set, or a list of these."""
    names = [named] if isinstance(named, str) else list(named)
    return _combined(_data_content(str(name)) for name in names)


def checkpoint_content(name: str) -> str:
    """Return the SHA-256 of a checkpoint's marker, which contains the hashes of all its files. A
    checkpoint without a marker is identified by its name."""
    marker = Path(name).expanduser() / _MARKER
    return file_sum(marker) if marker.is_file() else f"name {name}"


def _data_content(name: str) -> str:
    path = Path(name).expanduser()
    if path.is_file():
        return file_sum(path)
    folder = path if path.is_dir() else _cached(name, "dataset")
    if folder is None:
        return f"name {name}"
    begins = tuple(prefix for prefixes in SPLITS.values() for prefix in prefixes)
    return _sums(
        sorted(
            file
            for place in (folder, folder / "data")
            for file in place.glob("*")
            # Other JSON files of a folder, such as a manifest, are not data.
            if file.suffix == ".parquet"
            or (file.suffix in DATA_SUFFIXES and file.name.startswith(begins))
        )
    )


def _sums(paths: Iterable[Path]) -> str:
    return _combined(f"{path.name} {file_sum(path)}" for path in paths)


def _combined(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def file_sum(path: Path) -> str:
    """Return the SHA-256 of a file. For a large file in the Hub's cache, it is the file's name and
    need not be computed."""
    real = path.resolve()
    # The Hub's cache names a large file by its SHA-256 (64 digits). Small ones are named by a git
    # SHA-1 (40 digits) and hashed below.
    if real.parent.name == "blobs" and len(real.name) == 64:
        return real.name
    about = real.stat()
    return _file_sum(real, about.st_size, about.st_mtime_ns, about.st_ino)


# The cache key includes size, time and inode, so that a changed file is hashed again.
@functools.lru_cache(maxsize=4096)
def _file_sum(path: Path, size: int, changed: int, inode: int) -> str:
    return sha256(path)
