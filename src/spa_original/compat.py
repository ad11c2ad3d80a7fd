"""Compatibility with the original recipe: tables of its scripts, environment variables, presets and
configuration keys. The table of keys is `original_keys.json`, which also has the original's values.

A key is `supported`, `mapped` to another, `ignored` (accepted without effect) or `refused` (an
error unless its value is `harmless`). The page `original-keys.md` of the documentation shows these
tables.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from omegaconf import OmegaConf

from spa.config.problems import Problems, show
from spa_original.published import checkpoint_folders as checkpoint_folders
from spa_original.published import data_folders as data_folders
from spa_original.published import model_notes as model_notes

Status = Literal["supported", "mapped", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class OriginalKey:
    """A configuration key of the original, and its status in spa."""

    files: Mapping[str, Any]  # file of the original -> value that it sets
    status: Status
    note: str = ""
    to: str = ""  # for a mapped key: its name in spa
    allow: tuple[Any, ...] = ()  # for a refused key: harmless values besides those in `files`

    def harmless(self, value: Any) -> bool:
        """Return whether a refused key may have this value: null, a value that the original sets,
        or one in `allow`."""
        return value is None or value in self.files.values() or value in self.allow


@dataclass(frozen=True, slots=True)
class Item:
    """A script, environment variable or preset of the original, and its status in spa."""

    name: str
    status: Status
    note: str


SCRIPTS = (
    Item(
        "run_spa.sh",
        "supported",
        "`spa run CONFIG [CKPT=last] [GENERATE_DATA]`; the script passes its arguments on. A step "
        "number as CKPT needs GENERATE_DATA=False (PPO alone), because PPO after all stages starts "
        "from the last checkpoint",
    ),
    Item(
        "run_baseline.sh",
        "supported",
        "`spa run CONFIG --method vanilla` or `--method state_estimation`, with any configuration",
    ),
    Item(
        "SPA_agent.generate_sft_data",
        "mapped",
        "`scripts/original/SPA_agent` or `spa run CONFIG --stages selfplay`",
    ),
    Item(
        "sft/finetune_ft.sh",
        "mapped",
        "`scripts/original/sft` or `spa run CONFIG --stages sft`; a failure returns a non-zero exit "
        "status",
    ),
    Item("sft/spa_sft_trainer.py", "mapped", "`spa run CONFIG --stages sft`"),
    Item(
        "sft/filter_sft_by_tag.py",
        "mapped",
        "`scripts/original/sft` or `spa data filter`, which also reads existing parquet files",
    ),
    Item(
        "train_ppo_sfted.sh",
        "mapped",
        "`scripts/original` or `spa run CONFIG --stages ppo --model CHECKPOINT`; the script's values "
        "are the defaults here",
    ),
    Item("train.py", "mapped", "`spa run CONFIG --stages ppo`"),
    Item(
        "ragen.llm_agent.agent_proxy (evaluation)",
        "mapped",
        "`spa eval CKPT_OR_MODEL --config CONFIG`",
    ),
)

ENVIRONMENT = (
    Item("MODE", "mapped", "`ctx_manager.mode`; the shell scripts set this key"),
    Item("MODEL", "mapped", "`model_path`; in the original, MODEL only named folders and runs"),
    Item("OUTPUT_DIR", "mapped", "`generate.output_dir`; the shell scripts set this key"),
    Item("BT_NUM", "mapped", "`generate.num_batches`; the shell scripts set this key"),
    Item(
        "RENDER_MODE",
        "mapped",
        "`state_text`; the value text becomes grid, and text_with_coordinates becomes grid_and_coords",
    ),
    Item("BASE_DIR", "mapped", "`trainer.default_local_dir`; the shell scripts set this key"),
    Item("CUDA_VISIBLE_DEVICES", "supported", "PyTorch reads this variable"),
    Item("WANDB_ENTITY", "supported", "wandb reads this variable"),
    Item("PYTHONHASHSEED", "ignored", "no result depends on this variable"),
    Item(
        "PENALTY_VALUE",
        "ignored",
        "the original never reads this variable; use `es_manager.format_penalty`",
    ),
    Item("REWARD", "ignored", "the original never reads this variable"),
    Item("COS", "ignored", "the original never reads this variable"),
)

PRESETS = (
    Item("base", "supported", ""),
    Item("ppo_trainer", "supported", "part of base"),
    Item("envs", "supported", "part of base; spa can also load the original file"),
    Item(
        "sft_trainer",
        "supported",
        "part of base, under the key `sft`; spa can also load a file in the original layout",
    ),
    Item("base-lora", "supported", ""),
    Item("stream", "supported", ""),
    Item("evaluate_api_llm", "supported", ""),
    Item("_1_bandit", "supported", ""),
    Item("_2_sokoban", "supported", ""),
    Item("_3_frozen_lake", "supported", ""),
    Item("_4_countdown", "supported", ""),
    Item("_5_metamathqa", "supported", ""),
    Item("_6_webshop", "supported", ""),
    Item("_10_sudoku", "supported", ""),
    Item("evaluation/llama-30b", "refused", "empty file in the original"),
)

# Values of the original's RENDER_MODE and `enable_response_mask` -> the values of spa.
STATE_TEXTS = {"text": "grid", "text_with_coordinates": "grid_and_coords"}
LOSS_MASKS = {True: "sampled", False: "all_after_system"}
# Maximum number of ignored keys that one warning names.
MOST_NAMES = 12


@functools.cache
def original_keys() -> dict[str, OriginalKey]:
    """Return every key of the original by its dotted path in spa. Keys of the original's
    `sft_trainer` begin with `sft.`."""
    text = (
        resources.files("spa_original").joinpath("original_keys.json").read_text(encoding="utf-8")
    )
    table = json.loads(text)
    return {
        key: OriginalKey(**{**entry, "allow": tuple(entry.get("allow", ()))})
        for key, entry in table.items()
    }


def translate(tree: dict[str, Any], problems: Problems, written: Sequence[str] = ()) -> list[str]:
    """Remove the original's keys from the resolved `tree`, in place. Mapped keys are renamed,
    refused ones are added to `problems`.

    `written` are the keys that overrides set, in order. If overrides set both a mapped key and its
    new name, the later one counts. Returns the warnings to print.
    """
    order = {key: place for place, key in enumerate(written)}

    def is_overridden(key: str, to: str) -> bool:
        # If overrides set both keys, the later one counts, as if one key had been set twice. A key
        # from a file has position -1, so an override of the other key takes precedence.
        return order.get(to, -1) > order.get(key, -1)

    if is_overridden("render_mode", "state_text"):
        tree.pop("render_mode", None)
    notes = _render_mode(tree, problems)
    ignored = []
    for key, entry in original_keys().items():
        if entry.status == "supported" or not _has(tree, key):
            continue
        # Removed before pydantic validates the tree, because the schema forbids unknown keys.
        value = _pop(tree, key)
        if is_overridden(key, entry.to):
            continue
        if entry.status == "ignored":
            ignored.append(key)
        elif entry.status == "mapped":
            notes += _renamed(tree, key, value, entry.to, problems)
        elif not entry.harmless(value):
            problems.add(key, f"cannot be {show(value)} in spa: {entry.note}")
    if ignored:
        more = f" and {len(ignored) - MOST_NAMES} more" if len(ignored) > MOST_NAMES else ""
        notes.append(
            "these keys have no effect (reasons: page Keys of the original of the documentation): "
            f"{', '.join(ignored[:MOST_NAMES])}{more}"
        )
    return notes


def _render_mode(tree: dict[str, Any], problems: Problems) -> list[str]:
    if "render_mode" not in tree:
        return []
    value = tree.pop("render_mode")
    if not isinstance(value, str) or value not in STATE_TEXTS:
        problems.add(
            "render_mode",
            f"must be one of {', '.join(STATE_TEXTS)}, got {show(value)}; you can set state_text instead",
        )
        return []
    tree["state_text"] = STATE_TEXTS[value]
    return [f"render_mode={value} is read as state_text={STATE_TEXTS[value]}"]


def _renamed(tree: dict[str, Any], key: str, value: Any, to: str, problems: Problems) -> list[str]:
    """Move the value of the original's `key` to the key `to`. Returns a warning if the value of
    `to` changes, else an empty list."""
    own = value
    if to.endswith(".loss_mask"):
        if not isinstance(value, bool):
            problems.add(key, f"must be true or false, got {show(value)}; you can set {to} instead")
            return []
        own = LOSS_MASKS[value]
    return _put(tree, key, value, to, own)


def _put(tree: dict[str, Any], key: str, value: Any, to: str, own: Any) -> list[str]:
    """Set the key `to` to `own`. `value` is the value of the original's `key`, for the warning.
    Returns a warning if the value of `to` changes, else an empty list."""
    *parents, last = to.split(".")
    node = tree
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            return []  # the schema reports this problem
    # No warning is needed if the new key already has this value.
    if node.get(last) == own:
        return []
    node[last] = own
    return [f"{key}={_written(value)} is read as {to}={_written(own)}"]


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def one_model(tree: dict[str, Any]) -> list[str]:
    """Move the value of verl's key for the policy path to `model_path`, in the unresolved `tree`.
    Also remove the critic's path if it names the same model.

    Returns the warnings to print.
    """
    policy = "actor_rollout_ref.model.path"
    notes = []
    if _has(tree, policy):
        section = tree["actor_rollout_ref"]["model"]
        path = section["path"]
        # The key is not removed, because other keys of a file may refer to it.
        section["path"] = "${model_path}"
        if path not in (None, "${model_path}", tree.get("model_path")):
            tree["model_path"] = path
            notes = [f"{policy}={path} is read as model_path={path}"]
    if _has(tree, "critic.model.path"):
        same = (None, "${model_path}", f"${{{policy}}}", tree.get("model_path"))
        if tree["critic"]["model"]["path"] in same:
            del tree["critic"]["model"]["path"]
    return notes


def _has(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _pop(tree: dict[str, Any], key: str) -> Any:
    """Remove `key` and the sections that become empty, and return its value."""
    head, _, rest = key.partition(".")
    if not rest:
        return tree.pop(head)
    value = _pop(tree[head], rest)
    if not tree[head]:
        del tree[head]
    return value


ORIGINAL_VARIABLES = {
    "MODE": "base",
    "MODEL": "1.5B",
    "RENDER_MODE": "text_with_coordinates",
    "OUTPUT_DIR": "sftdata",
    "BT_NUM": "5",
    "BASE_DIR": "checkpoints",
}
"""Variables that the original's scripts set before they read configuration files, with the values
of its PPO script."""

# Matches `${oc.env:MODE}`, but not `${oc.env:MODE,base}`, which has a default.
_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")


def with_variables(node: Any, notes: list[str]) -> Any:
    """Return `node` with a default in each reference to an environment variable of the original,
    such as `${oc.env:MODE}`. The defaults are the values of the original's PPO script. Adds a note
    to `notes` for each variable that is not set."""
    if isinstance(node, dict):
        return {name: with_variables(value, notes) for name, value in node.items()}
    if isinstance(node, list):
        return [with_variables(value, notes) for value in node]
    return (
        _VARIABLE.sub(lambda match: _with_default(match, notes), node)
        if isinstance(node, str)
        else node
    )


def _with_default(match: re.Match[str], notes: list[str]) -> str:
    name = match[1]
    if name not in ORIGINAL_VARIABLES:
        return match[0]
    value = ORIGINAL_VARIABLES[name]
    # OmegaConf decides whether the variable is set, because it also resolves the reference later.
    # For example, a variable with the value "" counts as set.
    if OmegaConf.create({"value": f"${{oc.env:{name},null}}"}).value is None:
        note = (
            f"the environment variable {name} is not set; spa uses {value}, the value of the original PPO "
            "script"
        )
        notes += [note] if note not in notes else []
    return f"${{oc.env:{name},'{value}'}}"
