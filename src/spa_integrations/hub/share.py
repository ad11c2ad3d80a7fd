"""Upload datasets and checkpoints, with a card that describes them, to the Hugging Face Hub, and
download them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from huggingface_hub import CommitOperationAdd, HfApi

from spa.errors import DataError, ModelError, SpaError, one_line
from spa.models.hub import CODE, DATA, FILES, Kind, explained
from spa.run.checkpoint import MARKER, damage, step_of
from spa.run.files import read_lines
from spa.run.manifest import SUMMARY, Manifest
from spa.tables import Table
from spa.worldmodel.columns import COLUMNS
from spa.worldmodel.examples import by_reason
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE

PAPER = "https://arxiv.org/abs/2510.15047"
DATA_FILES = (TRAIN_FILE, VAL_FILE, SUMMARY)
# Settings that describe how a dataset or a model was made. Paths and machine names are left out.
SHOWN = (
    "generate.policy",
    "state_text",
    "ctx_manager.mode",
    "es_manager.train.env_configs.tags",
    "agent_proxy.max_turn",
    "seed.train",
)
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubUpload:
    """A prepared upload to the Hub."""

    kind: Kind
    files: Mapping[str, Path]  # path in the repository -> local file
    card: str  # text of the README.md

    @property
    def size(self) -> int:
        """Total size of the files in bytes, without the card."""
        return sum(path.stat().st_size for path in self.files.values())


def pack(folder: Path, name: str, *, critic: bool = False) -> HubUpload:
    """Prepare the upload of a data folder or checkpoint as the repository `name` (owner/name).

    The upload of a checkpoint contains the policy with merged adapters, its tokenizer, and on
    request the critic. Optimizer states are left out. So are logs, configurations and separate
    adapters, which contain paths of this machine. Raises SpaError if there is nothing to share, or
    if the checkpoint or a source of the card is damaged.
    """
    if not _NAME.fullmatch(name):
        raise ModelError(f"{name!r} is not the name of a Hub repository. Write OWNER/NAME.")
    folder = folder.resolve()
    if (folder / TRAIN_FILE).is_file():
        files = {file: folder / file for file in DATA_FILES if (folder / file).is_file()}
        return HubUpload(kind="dataset", files=files, card=data_card(folder, name))
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} is neither a data set ({TRAIN_FILE}) nor a checkpoint (config.json). Give the data folder or a "
            "global_step_N folder of a run."
        )
    # The marker file lists checksums. Checkpoints from other tools have no marker file and are not
    # checked.
    if (folder / MARKER).is_file() and (problem := damage(folder, hashes=True)):
        raise ModelError(
            f"{folder} is damaged: {problem}. Upload another checkpoint, or run the stage again."
        )
    parts = [folder, *([folder / "critic"] if critic else [])]
    # Sorted, so that the order is the same on every machine.
    paths = sorted(
        {
            path
            for part in parts
            for pattern in (*FILES, *CODE)
            for path in part.glob(pattern)
            if path.is_file()
        }
    )
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.name != MARKER}
    return HubUpload(kind="model", files=files, card=model_card(folder, name))


def push(upload: HubUpload, name: str, *, private: bool = True, endpoint: str | None = None) -> str:
    """Send an upload to the Hub as one commit, and return the URL of the repository. Raises a
    SpaError that suggests a solution."""
    api = HfApi(endpoint=endpoint)
    with explained(name, upload.kind, _error(upload.kind)):
        # If the repository exists, this push adds a commit to it.
        url = api.create_repo(name, repo_type=upload.kind, private=private, exist_ok=True)
        operations = [
            CommitOperationAdd(path_in_repo=target, path_or_fileobj=path)
            for target, path in upload.files.items()
        ]
        card = CommitOperationAdd(path_in_repo="README.md", path_or_fileobj=upload.card.encode())
        # One commit for all files, so that a reader never sees a card without its model.
        api.create_commit(
            name, [*operations, card], commit_message="Upload by spa", repo_type=upload.kind
        )
    return str(url)


def pull(name: str, folder: Path, kind: Kind, *, endpoint: str | None = None) -> None:
    """Download the model or dataset `name` into `folder`. Raises a SpaError that suggests a
    solution."""
    api = HfApi(endpoint=endpoint)
    # Downloading the code of a model is safe, because it is executed only with `trust_remote_code`.
    patterns = [*FILES, *CODE, "*.md"] if kind == "model" else list(DATA)
    with explained(name, kind, _error(kind)):
        api.snapshot_download(name, repo_type=kind, allow_patterns=patterns, local_dir=folder)


def _error(kind: Kind) -> type[SpaError]:
    return ModelError if kind == "model" else DataError


def data_card(folder: Path, name: str) -> str:
    """Return the README text of a dataset. Raises DataError if its summary or configuration is
    damaged."""
    summary = _parsed(folder / SUMMARY, json.loads)
    counts = summary.get("dropped")
    splits = [{"split": "train", "path": TRAIN_FILE}, {"split": "validation", "path": VAL_FILE}]
    head = {
        "tags": ["world-model", "self-play", "agents"],
        "configs": [{"config_name": "default", "data_files": splits}],
    }
    facts = {
        "examples for training": summary.get("examples_train"),
        "examples for validation": summary.get("examples_val"),
        "puzzles": summary.get("puzzles"),
        "self-play episodes": summary.get("episodes"),
        "turns left out": by_reason(counts if isinstance(counts, dict) else {}),
        **_settings(folder / "config.yaml"),
    }
    text = (
        f"World-model data for language agents, made by self-play as in SPA ([arXiv 2510.15047]({PAPER})). In each "
        "response the environment's true state and next state replace those that the model wrote. The splits share no "
        "puzzle. The author has chosen no licence, so ask the author before you use the data."
    )
    use = f"spa run CONFIG --stages sft data.train_files={name} data.val_files={name}"
    return f"{_card(head, name, text, facts, use)}\n{_columns(folder / TRAIN_FILE)}"


def _columns(file: Path) -> str:
    """Return a Markdown table of a data file's columns with their meanings."""
    names = pq.read_schema(file).names
    rows = [(f"`{name}`", COLUMNS[name]) for name in names if name in COLUMNS]
    return f"## Columns\n\n{Table(('column', 'meaning'), rows).markdown()}\n"


def model_card(folder: Path, name: str) -> str:
    """Return the README text of a checkpoint. Raises DataError if its configuration is damaged."""
    stage_dir = folder.parent
    config = _parsed(stage_dir / "config.yaml", yaml.safe_load)
    base = str(config.get("model_path", ""))
    head: dict[str, Any] = {
        "library_name": "transformers",
        "tags": ["world-model", "agents", "reinforcement-learning"],
    }
    # A path that exists locally is a local model, even if it looks like a Hub name.
    if _NAME.fullmatch(base) and not Path(base).exists():
        head["base_model"] = base
    step = folder.name.removeprefix("global_step_")
    facts = {
        "base model": head.get("base_model", "a local model"),
        "step": step,
        **_settings(stage_dir / "config.yaml"),
    }
    figures = _last_validation(stage_dir / "metrics.jsonl", step_of(folder))
    facts |= {key: round(value, 4) for key, value in figures.items()}
    text = (
        f"A language agent trained with `spa`, after SPA ([arXiv 2510.15047]({PAPER})){_stages(stage_dir)}. The agent "
        "expects the prompt format of `spa`. The metrics are those of the last validation up to this step, on held-out "
        "puzzles of the training environments."
    )
    return _card(head, name, text, facts, f"spa eval {name} --config CONFIG")


def _stages(stage_dir: Path) -> str:
    """Describe how a stage's model was trained, as recorded in its manifest, or return "" without
    one."""
    known = Manifest.read(stage_dir)
    if known is None:
        return ""
    if known.fingerprint.stage == "sft":
        return ": fine-tuning on self-play episodes, without reinforcement learning"
    # A fingerprint with a parent means that PPO started from the result of SFT.
    return (
        ": fine-tuning on self-play episodes, then multi-turn PPO"
        if known.fingerprint.parent
        else ": multi-turn PPO"
    )


def _card(head: Mapping[str, Any], name: str, text: str, facts: Mapping[str, Any], use: str) -> str:
    rows = [(key, str(value)) for key, value in facts.items() if value not in (None, "")]
    table = Table(("", ""), rows).markdown()
    front = yaml.safe_dump(dict(head), sort_keys=False).strip()
    return f"---\n{front}\n---\n\n# {name.partition('/')[2]}\n\n{text}\n\n{table}\n\n```bash\n{use}\n```\n"


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings in `SHOWN` from a saved configuration, for a card."""
    config = _parsed(path, yaml.safe_load)
    settings = {}
    for key in SHOWN:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        settings[f"`{key}`"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return settings


def _last_validation(path: Path, step: int) -> dict[str, float]:
    """Read the metrics of the last validation up to `step`. Empty if the step is 0 or no validation
    was recorded."""
    if not step or not path.is_file():
        return {}
    last: dict[str, float] = {}
    for _, line in read_lines(path):
        if not isinstance(line.get("step"), int) or line["step"] > step:
            continue
        metrics = {
            key: value
            for key, value in line.items()
            if key.startswith(("val/", "val-env/"))
            and key.rpartition("/")[2] in ("success", "pass@1", "pass@8", "loss")
        }
        # A line without validation keeps the metrics of the last validation.
        last = {
            key: value for key, value in metrics.items() if isinstance(value, int | float)
        } or last
    return last


def _parsed(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Read a file that contains a mapping, or {} if it does not exist. Raises DataError if it
    cannot be parsed or contains something else, so that the card does not silently leave it out."""
    if not path.is_file():
        return {}
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise DataError(_unreadable(path, one_line(error)[:200])) from error
    if not isinstance(content, dict):
        raise DataError(_unreadable(path, "the file does not contain a mapping"))
    return content


def _unreadable(path: Path, why: str) -> str:
    return (
        f"cannot read {path} ({why}). Run the command of the stage again to restore the file, or remove the file to "
        "write a card without the content of the file."
    )
