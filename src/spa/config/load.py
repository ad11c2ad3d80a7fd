"""Load a configuration by name or file, with overrides, as one frozen `Config`.

Hydra composes the files, OmegaConf resolves `${...}`, pydantic validates each section, and `check`
validates combinations of sections. Order of precedence: schema defaults < shipped YAML < the user's
YAML < overrides.
"""

import copy
import functools
import logging
import operator
import re
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from spa.config.check import STAGES, StageName, check
from spa.config.fields import flatten, is_secret
from spa.config.problems import Problems, add_validation_errors, suggestion
from spa.config.schema import Config, GroupsConfig
from spa.errors import ConfigError, one_line
from spa.plugins import find_modules_in, load_plugin, plugins, translated

log = logging.getLogger("spa.config")

PARTS = ("ppo_trainer", "sft_trainer", "envs")
"""Shipped files that are parts of `base` and not configurations on their own."""

# Exceptions that Hydra raises for invalid values of its own keys (`defaults: null`) and for files
# that include each other.
HYDRA_TRIPS = (
    AttributeError,
    AssertionError,
    KeyError,
    IndexError,
    RecursionError,
    TypeError,
    ValueError,
)

# Hydra has one search path for the whole process, so files are composed one at a time.
_ONE_AT_A_TIME = threading.Lock()

FOLLOWING = (
    "sft.model.partial_pretrain",
    "sft.trainer.default_local_dir",
    "trainer.default_local_dir",
)
"""Keys of `base` that are derived from the model and the folder of the run."""

FREE = ("custom_envs", "model_info")
"""Sections whose keys the user chooses."""


def config_names() -> list[str]:
    """Names of the shipped configurations."""
    files = resources.files("spa.config").iterdir()
    return sorted(item.name.removesuffix(".yaml") for item in files if item.name.endswith(".yaml"))


def load_config(
    name_or_path: str | Path,
    overrides: Sequence[str] = (),
    *,
    stages: Collection[StageName] = STAGES,
) -> Config:
    """Load a configuration, apply `overrides` and validate the result. `name_or_path` is a shipped
    name, a YAML file, or a folder with one.

    A user's file may name shipped files in its `defaults` list. Keys that it does not set are taken
    from `base`. Overrides are `key=value`, `+key=value` with the same meaning, and `~key`, which
    restores the value of `base` or removes an environment tag. Combinations of values are checked
    only for `stages`, the stages to run: self-play, for example, ignores the mini-batch settings.

    Raises ConfigError listing every problem found.
    """
    name = str(name_or_path)
    problems = Problems()
    tree = _compose(name)
    # `one_model` translates model paths of the original code. It runs before interpolations are
    # resolved, so that the new value reaches every `${model_path}`.
    notes = translated("one_model", tree)
    written = list[str]()
    for text in overrides:
        _override(tree, text, written, problems)
        # Translate after each override, so that a later `model_path=…` takes precedence over an
        # earlier model path in the syntax of the original code.
        notes += translated("one_model", tree)
    plain = _resolve(tree, problems, notes)
    notes += translated("translate", plain, problems, written)
    config = _validate(plain, problems)
    # Combinations are checked only if each key alone is valid, so that a mistake is reported only
    # once.
    if config is not None and not problems:
        config = spread_groups(config)
        check(config, problems, stages)
        if "ppo" in stages:
            _check_replaced(config, written, problems)
    if problems or config is None:
        lines = _without_echoes(problems, flatten(tree))
        head = f"{len(lines)} problem{'s' if len(lines) > 1 else ''} in the configuration {name}:"
        raise ConfigError("\n  ".join([head, *lines]))
    for note in notes:
        log.warning(note)
    return config


def _with_variables(tree: Any, notes: list[str]) -> Any:
    """Replace references to unset environment variables that the launch scripts of another project
    would set, by the values in those scripts."""
    for name in plugins("translations"):
        tree = load_plugin("translations", name).with_variables(tree, notes)
    return tree


def _check_replaced(config: Config, written: Collection[str], problems: Problems) -> None:
    """Add a problem for each overridden `ppo_mini_batch_size` that `ppo_num_mini_batches` makes
    ineffective."""
    number = config.actor_rollout_ref.actor.ppo_num_mini_batches
    for path in written if number is not None else ():
        if path.rpartition(".")[2] == "ppo_mini_batch_size":
            problems.add(
                path,
                f"has no effect, because actor_rollout_ref.actor.ppo_num_mini_batches is {number}; set "
                "that number, or set it to null as well",
            )


def choices(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the key of an override and its values. `key=a,b` has several values, as in Hydra's
    multirun.

    Raises ConfigError if the override cannot be parsed.
    """
    try:
        parsed = _parser().parse_override(text)
        # `key=a,b` has two values; `key=[a,b]` has one, a list.
        several = (
            tuple(parsed.sweep_string_iterator())
            if parsed.is_sweep_override()
            else (text.partition("=")[2],)
        )
    except HydraException as error:
        raise ConfigError(
            f"cannot read the override {text!r}; write key=value, or key=a,b for several values"
        ) from error
    return parsed.key_or_group, several


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


@functools.cache
def _shipped_once(name: str) -> dict[Any, Any]:
    return _hydra(name, None)


def shipped(name: str) -> dict[Any, Any]:
    """Return the tree of a shipped configuration, composed but with interpolations unresolved. The
    caller may change it, because it is a copy."""
    return copy.deepcopy(_shipped_once(name))


def _compose(name: str) -> dict[Any, Any]:
    """Load a configuration by name or path as a plain tree. `defaults` are included, missing keys
    come from `base`, and interpolations are not resolved."""
    if name in config_names():
        return shipped("base" if name in PARTS else name)
    path = _find(name)
    # Reward functions and environments may be imported from modules next to the file.
    find_modules_in(path.parent)
    tree = _hydra(path.stem, path.parent.resolve())
    if "optim" in tree and "actor_rollout_ref" not in tree and "sft" not in tree:
        tree = {"sft": tree}  # a file in the layout of sft_trainer.yaml
    base = shipped("base")
    references = {key: text for key, text in flatten(base).items() if "${" in str(text)}
    # A saved configuration has values where `base` has references such as `${lora.rank}`. If both
    # agree, the reference is restored, so that an override of `lora.rank` reaches every model. In a
    # file that the user wrote, such a value is intended, so only the keys in FOLLOWING are
    # restored.
    written = flatten(tree)
    saved = all("${" not in str(written.get(key, "${")) for key in references)
    tree = _fill(tree, base)
    values = flatten(tree)
    for key in references if saved else FOLLOWING:
        followed = re.sub(r"\$\{(.+?)\}", lambda match: str(values.get(match[1])), references[key])
        if key in values and str(values[key]) == followed:
            *parents, last = key.split(".")
            functools.reduce(operator.getitem, parents, tree)[last] = references[key]
    return tree


def _find(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.yaml"))
        if (path / "config.yaml").is_file():
            return path / "config.yaml"
        if len(files) == 1:
            return files[0]
        paths = (
            f"contains {', '.join(file.name for file in files)}"
            if files
            else "contains no .yaml file"
        )
        raise ConfigError(f"the folder {name} has no config.yaml and {paths}. Name one YAML file.")
    for candidate in (path, Path(f"{path}.yaml")):
        if candidate.is_file():
            return candidate
    names = ", ".join(item for item in config_names() if item not in PARTS)
    raise ConfigError(f"there is no configuration {name!r}. Name a YAML file, or one of {names}.")


def _hydra(name: str, folder: Path | None) -> dict[Any, Any]:
    """Compose the file `name` with Hydra. Files are searched for in `folder` if given, then in the
    package `spa.config`. Raises ConfigError if a file is missing or cannot be read."""
    where = f"{folder / name}.yaml" if folder else name
    try:
        if folder is not None:
            _check_defaults(folder / f"{name}.yaml")
        with _ONE_AT_A_TIME:
            composed = _composed(name, folder)
    except MissingConfigException as error:
        raise ConfigError(
            f"{where}: `defaults` names {error.missing_cfg_file!r}, which is neither a shipped "
            "configuration (`spa config list`) nor a YAML file in the same folder. Write only the file "
            "name, without a folder."
        ) from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, *HYDRA_TRIPS) as error:
        said = str(error) or str(error.__cause__ or "") or type(error).__name__
        raise ConfigError(
            f"cannot read {where}; correct this error: {one_line(said)[:600]}"
        ) from error
    # Unresolved: overrides may still change what `${…}` refers to.
    tree = OmegaConf.to_container(composed, resolve=False)
    if not isinstance(tree, dict):
        raise ConfigError(f"cannot read {where}: the top level must be a mapping of keys to values")
    return tree


def _check_defaults(path: Path) -> None:
    """Raise ConfigError if the `defaults` of a file name another folder, which Hydra would take for
    a section of the configuration."""
    with path.open(encoding="utf-8-sig") as file:
        tree = yaml.safe_load(file)
    entries = tree.get("defaults") if isinstance(tree, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        # Hydra's own `/tiny` is a name with a slash, not a folder.
        if isinstance(entry, str) and "/" in entry.strip("/"):
            raise ConfigError(
                f"{path}: `defaults` names {entry!r}, which is neither a shipped configuration "
                "(`spa config list`) nor a YAML file in the same folder. Write only the file name, "
                f"without a folder; copy or link a file of another folder into {path.parent}."
            )


def _composed(name: str, folder: Path | None) -> DictConfig:
    if folder is None:
        with initialize_config_module("spa.config", version_base=None):
            return compose(name)
    with initialize_config_dir(str(folder), version_base=None), warnings.catch_warnings():
        # The files of the original code have no `_self_` in `defaults`. Hydra warns that such a
        # file overrides its defaults, which is intended.
        warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`")
        return compose(name, overrides=["hydra.searchpath=[pkg://spa.config]"])


def _fill(tree: Mapping[Any, Any], base: Mapping[Any, Any], path: str = "") -> dict[Any, Any]:
    """Return `tree` with missing keys filled in from `base`. The settings of an environment tag or
    an API model are not filled in."""
    out = dict(base)
    for name, value in tree.items():
        if isinstance(value, Mapping) and isinstance(out.get(name), dict) and path not in FREE:
            out[name] = _fill(value, out[name], f"{path}.{name}" if path else str(name))
        else:
            out[name] = value
    return out


def _override(tree: dict[Any, Any], text: str, written: list[str], problems: Problems) -> None:
    """Apply one override to `tree`, and append the keys that it sets to `written`."""
    try:
        parsed = _parser().parse_override(text)
        value = parsed.value()
    except (HydraException, RecursionError):
        hint = (
            "quote a value with special characters, for example key='a=b'"
            if "=" in text
            else "write key=value"
        )
        return problems.add("", f"cannot read the override {text!r}; {hint}")
    if parsed.is_sweep_override():
        return problems.add(
            "",
            f"the override {text!r} has several values; write a list as key=[a,b], or quote a string with "
            "commas",
        )
    *parents, last = str(parsed.key_or_group).split(".")
    path = ".".join([*parents, last])
    section = tree
    for depth, parent in enumerate(parents):
        if section.get(parent) is None:
            if parsed.type == OverrideType.DEL:
                return problems.add(
                    path, f"this key is not set, so there is nothing to remove{suggestion(path)}"
                )
            # A missing section is created, because it may be a new tag or options that were null.
            # If the schema does not have it, validation reports that with a suggestion.
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            return problems.add(
                ".".join(parents[: depth + 1]),
                f"this key has no keys below it, so the override {text!r} cannot be applied; correct the override",
            )
    # `+key=value` is treated like `key=value`. Validation reports unknown keys.
    if parsed.type != OverrideType.DEL:
        written += flatten({path: value})
        old = section.get(last)
        section[last] = (
            # A mapping is merged into the old one; a list replaces it.
            _fill(value, old) if isinstance(value, dict) and isinstance(old, dict) else value
        )
        return None
    if last not in section:
        return problems.add(
            path, f"this key is not set, so there is nothing to remove{suggestion(path)}"
        )
    del section[last]
    default: Any = {} if parents and parents[0] in FREE else shipped("base")
    for part in parents:
        default = default.get(part) if isinstance(default, dict) else None
    if isinstance(default, dict) and last in default:
        written.append(path)
        section[last] = default[last]
    return None


def _resolve(tree: dict[Any, Any], problems: Problems, notes: list[str]) -> dict[str, Any]:
    """Return `tree` with its interpolations resolved by OmegaConf. If one cannot be resolved, add a
    problem under its key and return {}."""
    # Secrets must be found before resolving, which would copy them into the tree and config.yaml.
    for key, value in flatten(tree).items():
        if (variable := re.search(r"\$\{oc\.env:\s*(\w+)", str(value))) and is_secret(variable[1]):
            problems.add(
                key,
                f"spa would save the secret {variable[1]} with every run; name the environment variable in "
                "api_key_env instead",
            )
    try:
        resolved = OmegaConf.to_container(
            OmegaConf.create(_with_variables(tree, notes)), resolve=True
        )
    except (OmegaConfBaseException, RecursionError) as error:
        said = (str(error).splitlines() or ["RecursionError"])[0]
        if "RecursionError" in said:
            said = "the reference is circular"
        if unset := re.search(r"Environment variable '(\w+)' not found", said):
            said = (
                f"the environment variable {unset[1]} is not set; set the variable, or write a default as "
                f"${{oc.env:{unset[1]},VALUE}}"
            )
        raw = flatten(tree)
        # Report the key whose reference is wrong, not a key that refers to it.
        key = _source(getattr(error, "full_key", None) or "", raw)
        problems.add(key, f"cannot resolve {raw.get(key, 'its value')}: {said[:300]}")
        return {}
    return (
        {str(name): value for name, value in resolved.items()} if isinstance(resolved, dict) else {}
    )


_CONFIG = TypeAdapter(Config)


def _validate(plain: Mapping[str, Any], problems: Problems) -> Config | None:
    """Validate the tree with pydantic. If it is invalid, add the problems and return None."""
    try:
        return _CONFIG.validate_python(plain)
    except ValidationError as error:
        add_validation_errors(problems, error, plain)
        return None


def _without_echoes(problems: Problems, raw: Mapping[str, Any]) -> list[str]:
    """Return one line per problem. Leave out keys whose value is only a reference to another
    reported key."""
    blamed = {key for key, _ in problems.items}
    lines = zip(problems.items, problems.lines, strict=True)
    kept = [
        (key, line)
        for (key, _), line in lines
        if (source := _source(key, raw)) == key or source not in blamed
    ]
    # Keys with references come last: `run_dir` before the folders inside it.
    return [line for _, line in sorted(kept, key=lambda item: "${" in str(raw.get(item[0])))]


def _source(key: str, raw: Mapping[str, Any]) -> str:
    """Follow references of the form `${other.key}` from `key`, and return the key that has a value
    of its own."""
    seen = {key}
    while (
        # Matches `${trainer.run_dir}` as a whole, but neither `${trainer.run_dir}/sft` nor
        # `${oc.env:X}`.
        (match := re.fullmatch(r"\$\{([^${}:]+)\}", str(raw.get(key))))
        and match[1] in raw
        and match[1] not in seen
    ):
        key = match[1]
        seen.add(key)
    return key


def spread_groups(cfg: Config) -> Config:
    """Fill in `n_groups` where it is null, dividing the groups among the tags as evenly as
    possible; the first tags get the remainder."""

    def spread(groups: GroupsConfig) -> GroupsConfig:
        envs = groups.env_configs
        if envs.n_groups is not None or not envs.tags:
            return groups
        share, rest = divmod(groups.env_groups, len(envs.tags))
        counts = tuple(share + (index < rest) for index in range(len(envs.tags)))
        return replace(groups, env_configs=replace(envs, n_groups=counts))

    manager = cfg.es_manager
    return replace(
        cfg, es_manager=replace(manager, train=spread(manager.train), val=spread(manager.val))
    )


def seeded(cfg: Config, seed: int) -> Config:
    """Return the configuration of training run number `seed` (from 0) of an experiment. It differs
    from `cfg` only in its seeds, and thus in its training and validation puzzles."""
    # Training runs normally have fewer puzzles than these offsets, so the puzzle seeds of two runs
    # do not overlap.
    return replace(
        cfg,
        seed=replace(
            cfg.seed, train=cfg.seed.train + 1_000_000 * seed, val=cfg.seed.val + 100_000 * seed
        ),
        sft=replace(cfg.sft, trainer=replace(cfg.sft.trainer, seed=cfg.sft.trainer.seed + seed)),
    )
