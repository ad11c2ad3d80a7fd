"""Resolve the policy of an evaluation: a checkpoint, a model, a model behind an API, or a policy
without a model."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import yaml

from spa.config.fields import flatten
from spa.config.schema import Config
from spa.engines import factory
from spa.errors import ModelError
from spa.models.load import BUILTIN
from spa.models.precision import precision_of, with_precision
from spa.policies.named import policy_named, policy_names
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.run.checkpoint import checkpoints_in, find_checkpoint, latest_checkpoint
from spa.run.manifest import result_of
from spa.types import Engine
from spa.worldmodel.parquet import TRAIN_FILE, VAL_FILE

API = "api"
STAGES = ("ppo", "sft")
_BEGINNINGS = (
    "model_path",
    "sft.model.partial_pretrain",
    "sft.trainer.resume_path",
    "trainer.resume_from_path",
)
"""Settings that may name a checkpoint of another run, from which this run started."""
_HASH = re.compile(rb'"puzzle_hash":"([0-9a-f]+)"')
# Number of bytes of a recorded episode that are searched for the puzzle's hash, which comes before
# turns and tokens.
_HEAD = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resolved evaluation target.

    Attributes:
        model: folder or name from which the model is loaded; None for policies without a model and
            for models behind an API.
        label: short name that is valid in file names.
        run: folder of the run that made the checkpoint; None for other models.
    """

    name: str
    label: str
    model: str | None
    run: Path | None = None
    config: Path | None = None  # config.yaml of the stage that wrote the checkpoint
    api: str | None = None  # entry of `model_info`


def find_target(name: str) -> Target:
    """Resolve the name of a policy or model to the target of an evaluation.

    Valid names are policies without a model (`random`, `expert`), `api`, `builtin:tiny`, Hub names,
    and folders of runs, checkpoints and models. For a run, its newest checkpoint is used.

    Raises ModelError if a folder has no model, or if a name that can only be a path is not a
    folder.
    """
    if name in (*policy_names(), API):
        return Target(name=name, label=name, model=None)
    folder = Path(name).expanduser()
    # The bundled model, a Hub name and an imported model such as smollm2 are resolved when they are
    # loaded.
    if not folder.is_dir() or name == BUILTIN:
        # A Hub name has one slash.
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(
                f"there is no folder {name}. Name the folder of a run, a checkpoint or a model."
            )
        return Target(name=name, label=slug(name), model=name)
    checkpoint = folder
    if not (folder / "config.json").is_file():
        # PPO comes before SFT, since PPO trains the final model of a run.
        stages = [folder / stage for stage in STAGES if latest_checkpoint(folder / stage)]
        place = stages[0] if stages else folder
        if not checkpoints_in(place):
            raise ModelError(
                f"{folder} has neither a model (config.json) nor checkpoints "
                f"(global_step_N). Name a folder that has one.{_nearby_checkpoints(folder)}"
            )
        # The manifest of a finished stage names its result. For an unfinished stage, the newest
        # checkpoint is used.
        checkpoint = result_of(place) or find_checkpoint(place, "last")
    run = run_of(checkpoint)
    label = slug(str(checkpoint.absolute().relative_to(run)) if run else checkpoint.name)
    config = checkpoint.parent / "config.yaml"
    return Target(
        name=name,
        label=label,
        model=str(checkpoint),
        run=run,
        config=config if config.is_file() else None,
    )


def _nearby_checkpoints(folder: Path) -> str:
    """Return a sentence that names subfolders with PPO checkpoints, such as the runs of a
    comparison; "" if there are none."""
    folders = set[Path]()
    with suppress(OSError):  # folders can vanish, or be unreadable, during the search
        for depth in ("*", "*/*", "*/*/*"):
            folders |= {step.parent for step in folder.glob(f"{depth}/global_step_*")}
    names = sorted(str(place) for place in folders if place.name == STAGES[0])
    return f" Checkpoints are in {', '.join(names)}." if names else ""


def run_of(checkpoint: Path) -> Path | None:
    """Find the folder of the run that a checkpoint `<run>/<stage>/.../global_step_N` belongs to;
    None for other checkpoints."""
    for parent in checkpoint.absolute().parents:
        if parent.name in STAGES:
            return parent.parent
    return None


def slug(name: str) -> str:
    """Make a name valid as part of a file name."""
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "model"


def training_hashes(run: Path) -> frozenset[str]:
    """Return the content hashes of all puzzles that a run was trained on. They come from the
    examples of all rounds and from the PPO episodes, including those of earlier runs from whose
    checkpoints this run started."""
    hashes: set[str] = set()
    for each in _with_earlier(run):
        for path in _example_files(each):
            if "puzzle_hash" in pq.read_schema(path).names:
                hashes |= set(pq.read_table(path, columns=["puzzle_hash"]).column(0).to_pylist())
        for path in sorted((each / "ppo" / "trajectories").glob("train-*.jsonl")):
            hashes.update(_recorded_hashes(path))
    return frozenset(hashes)


def has_all_example_files(run: Path) -> bool:
    """Return whether the files of SFT examples still exist, for this run and for every earlier run
    from whose checkpoints it started. Otherwise `training_hashes` is incomplete. Files outside the
    folder of a run are not found."""
    return all(
        bool(_example_files(each))
        or not ((each / "sft").is_dir() or any(map(_fine_tuned_elsewhere, _configs(each))))
        for each in _with_earlier(run)
    )


def _fine_tuned_elsewhere(values: Mapping[str, Any]) -> bool:
    """Return whether a stage's settings name another existing folder for SFT."""
    folder = values.get("sft.trainer.default_local_dir")
    return bool(folder) and Path(folder).is_dir()


def _configs(run: Path) -> list[dict[str, Any]]:
    """Read the settings of the run's stages, flattened."""
    files = (run / stage / "config.yaml" for stage in ("ppo", "sft", "data"))
    return [
        flatten(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in files
        if file.is_file()
    ]


def _with_earlier(run: Path) -> list[Path]:
    """Return the folders of this run and of all runs from whose checkpoints it started, directly or
    indirectly."""
    runs = [run.resolve()]
    for each in runs:  # the loop appends to this list
        for values in _configs(each):
            for name in (values.get(key) for key in _BEGINNINGS):
                earlier = run_of(Path(name)) if name and Path(name).is_dir() else None
                if earlier and earlier.resolve() not in runs:
                    runs.append(earlier.resolve())
    return runs


def _example_files(run: Path) -> list[Path]:
    return [
        part / "data" / name
        for part in (run, *run.glob("round_*"))
        for name in (TRAIN_FILE, VAL_FILE)
        if (part / "data" / name).is_file()
    ]


def _recorded_hashes(path: Path) -> Iterator[str]:
    """Yield the puzzle hash of each recorded episode. Only the beginning of each line is searched,
    because parsing hundreds of megabytes of tokens would take minutes."""
    with path.open("rb") as file:
        for line in file:
            match = _HASH.search(line[:_HEAD])
            if match:
                yield match.group(1).decode()


def open_target(
    cfg: Config,
    target: Target,
    worker: setup.RolloutWorker,
    *,
    responses: Path,
    loaded: tuple[Engine, ChatTemplate | None] | None = None,
) -> tuple[Engine, setup.RolloutWorker]:
    """Return the engine for `target` (from `loaded` if given), and `worker` with the engine's chat
    template.

    Responses of an API are stored in the file `responses`. Raises ModelError for a model that
    cannot be loaded, and ConfigError if a policy cannot play an environment.
    """
    if target.name in policy_names() and (require := policy_named(target.name).require):
        setup.check_puzzles(cfg, cfg.es_manager.val.env_configs.tags, require)
    engine, template = loaded or engine_of(cfg, target, responses=responses)
    return engine, replace(worker, template=template)


def engine_of(
    cfg: Config, target: Target, *, responses: Path | None = None
) -> tuple[Engine, ChatTemplate | None]:
    """Return the engine for `target` and its chat template, which is None for engines without a
    tokenizer (scripted policies, APIs).

    Responses of an API are stored in the file `responses`. Raises ModelError for a model that
    cannot be loaded.
    """
    if target.name in policy_names():
        per_turn = cfg.agent_proxy.max_actions_per_turn
        return policy_named(target.name).make(None, per_turn, setup.most_actions(cfg)), None
    if target.api is not None:
        request = factory.EngineRequest(
            cfg=cfg, model_name=target.api, device=torch.device("cpu"), store=responses
        )
        return factory.engine_kind(factory.API).make(request), None
    model = str(target.model)
    if factory.engine_name(cfg, model) == factory.API:
        # The configured engine is for a model behind an API, but this target has weights, so `auto`
        # chooses another engine.
        rollout = replace(cfg.actor_rollout_ref.rollout, name="auto")
        cfg = replace(cfg, actor_rollout_ref=replace(cfg.actor_rollout_ref, rollout=rollout))
    cfg = with_precision(cfg, precision_of(replace(cfg, model_path=model)))
    engine = factory.make_engine(cfg, model, device=setup.pick_device(cfg))
    return engine, engine.template


def behind_api(cfg: Config, target: Target) -> Target:
    """Return `target`, with its field `api` set if its name is `api` or an entry of
    `model_info`."""
    if target.name != API and target.name not in cfg.model_info:
        return target
    entry = cfg.model_config.model_name if target.name == API else target.name
    return replace(target, api=entry, label=slug(entry), model=None)


def load_model(cfg: Config, name: str) -> tuple[Any, ChatTemplate, torch.device]:
    """Load a policy on the configured device; return it with its chat template and the device."""
    device = setup.pick_device(cfg)
    model, template = setup.load_actor(cfg, name, device)
    return model, template, device
