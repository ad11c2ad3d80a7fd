"""Checks before a run starts: paths, model, data files, engine, environments, and prompt lengths.

`spa run`, the commands of its stages and `spa compare` run them first; `--dry-run` runs nothing
else. Each check uses the code that would otherwise fail hours later.
"""

import importlib.util
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from spa.config.check import StageName
from spa.config.schema import Config
from spa.engines.factory import engine_name
from spa.envs.base import TextEnv, require_labels
from spa.errors import ConfigError, DataError, ModelError, SpaError
from spa.examples.source import source_of
from spa.models.build import check_context, load_template
from spa.models.hub import is_data_name
from spa.models.load import model_config, model_source, require_whole_model
from spa.policies.named import policy_named, policy_names
from spa.prompts.render import PromptMode
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.imagination import check_planning
from spa.recipes.ppo_run import check_trained
from spa.recipes.rounds import first_round, rounds_of
from spa.run.checkpoint import damage
from spa.worldmodel.sft_data import data_files
from spa.worldmodel.sft_files import check_file


def preflight(
    cfg: Config, stages: Collection[StageName], model: str | None, *, dry_run: bool = True
) -> None:
    """Check that `stages` can run; raise one ConfigError that lists all problems.

    `model` is the model from which the stages start, or None if an earlier stage makes it. A dry
    run reads tokenizers and makes every environment, but skips models and data sets on the Hub. A real
    run downloads these, and otherwise makes only quick checks. It makes an environment only if
    planning or the source of the examples has requirements to check.
    """
    problems = [*_collect(_place_checks(cfg, stages)), *_collect(_engine_checks(cfg, stages))]
    problems += _collect(_data_checks(cfg, hub=not dry_run)) if "sft" in stages else []
    own = cfg.sft.model.partial_pretrain
    # A dictionary removes duplicates but keeps the order: the template of the first local model is
    # used to measure prompts.
    wanted = {None if _plays_without_model(cfg, stages) else model: True}
    wanted |= {own: True} if "sft" in stages and own != cfg.model_path else {}
    # An entry of `model_info` is a model behind an API, even if its name looks like a Hub name.
    models = [
        name
        for name in wanted
        if name is not None and (_is_local(name) or not (dry_run or name in cfg.model_info))
    ]
    broken = _collect(lambda name=name: _check_model(cfg, name) for name in models)
    if model in models and not broken and _vllm_plays(cfg, stages, model):
        broken += _collect(iter([lambda: _check_whole(cfg, model)]))
    problems += broken
    problems += _collect(iter([lambda: check_planning(_rounds(cfg, stages))]))
    if dry_run:
        templates: list[ChatTemplate] = []
        if models and not broken:
            problems += _collect(iter([lambda: templates.append(load_template(cfg, models[0]))]))
        problems += _collect(_env_checks(cfg, stages, templates[0] if templates else None))
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ConfigError("\n  ".join([f"spa found {count} before the start:", *problems]))


def _collect(checks: Iterator[Callable[[], None]]) -> list[str]:
    """Run the checks and collect their errors."""
    problems = []
    for check in checks:
        try:
            check()
        except SpaError as error:
            # Further lines of a message are indented under their problem.
            problems.append(str(error).replace("\n", "\n  "))
    return problems


def _is_local(name: str) -> bool:
    # Every name is local except a Hub name (owner/name), which would have to be downloaded.
    return (
        Path(name).expanduser().is_dir()
        or name.startswith((".", "/", "~", "builtin:"))
        or name.count("/") != 1
    )


def _rounds(cfg: Config, stages: Collection[StageName]) -> list[Config]:
    """Return the configuration of each self-play round that these stages run: only the first round
    if self-play is the only stage, and none without self-play."""
    if "selfplay" not in stages:
        return []
    return (
        [first_round(cfg)]
        if set(stages) == {"selfplay"}
        else [own.cfg for own in rounds_of(cfg, Path(), Path())]
    )


def _plays_without_model(cfg: Config, stages: Collection[StageName]) -> bool:
    """Return whether only self-play is requested, with policies that need no model on this
    machine."""
    without = "self" not in cfg.generate.policies or engine_name(cfg) not in ("local", "vllm")
    return set(stages) <= {"selfplay"} and without


def _vllm_plays(cfg: Config, stages: Collection[StageName], model: str) -> bool:
    """Return whether vLLM loads `model` itself, and not only the checkpoint that SFT makes from
    it."""
    own = "self" in cfg.generate.policies if "selfplay" in stages else "sft" not in stages
    return own and engine_name(cfg, model) == "vllm"


def _place_checks(cfg: Config, stages: Collection[StageName]) -> Iterator[Callable[[], None]]:
    places = {"trainer.run_dir": cfg.trainer.run_dir}
    if "selfplay" in stages and cfg.generate.output_dir:
        places["generate.output_dir"] = cfg.generate.output_dir
    if "sft" in stages:
        places["sft.trainer.default_local_dir"] = cfg.sft.trainer.default_local_dir
    if "ppo" in stages:
        places["trainer.default_local_dir"] = cfg.trainer.default_local_dir
    for key, value in places.items():
        # Default arguments bind the values of this iteration, because the checks run later.
        yield lambda key=key, value=value: _check_place(key, Path(value))
    named = {
        "sft.trainer.resume_path": cfg.sft.trainer.resume_path if "sft" in stages else None,
        "trainer.resume_from_path": cfg.trainer.resume_from_path
        if "ppo" in stages and cfg.trainer.resume_mode == "resume_path"
        else None,
    }
    for key, value in named.items():
        if value is not None:
            yield lambda key=key, value=value: _check_checkpoint(key, Path(value).expanduser())


def _check_place(key: str, place: Path) -> None:
    """Raise ConfigError if a folder can neither be used nor created."""
    # If the folder does not exist yet, its nearest existing parent decides whether it can be
    # created.
    nearest = next(
        (folder for folder in (place, *place.absolute().parents) if folder.exists()), Path("/")
    )
    if not nearest.is_dir():
        raise ConfigError(
            f"{key}: spa cannot create the folder {place}, because {nearest} is a file; "
            "choose another path"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key}: spa cannot write to {nearest}; choose another path or change the "
            "folder's permissions"
        )


def _check_checkpoint(key: str, folder: Path) -> None:
    if problem := damage(folder):
        raise ModelError(
            f"{key}: spa cannot resume from {folder} ({problem}); name a global_step_N "
            "folder that spa wrote"
        )


def _engine_checks(cfg: Config, stages: Collection[StageName]) -> Iterator[Callable[[], None]]:
    yield lambda: _check_device(cfg)
    if "ppo" in stages:
        yield lambda: check_trained(cfg)
    if "ppo" in stages or ("selfplay" in stages and "self" in cfg.generate.policies):
        yield lambda: _check_installed(engine_name(cfg))


def _check_device(cfg: Config) -> None:
    if cfg.trainer.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "trainer.device=cuda, but PyTorch finds no GPU; set trainer.device to auto or "
            "cpu, or run `spa doctor` for details"
        )


def _check_installed(engine: str) -> None:
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "actor_rollout_ref.rollout.name=vllm, but the package vllm is not installed; "
            "install it, or set the name to local or auto"
        )


def _data_checks(cfg: Config, *, hub: bool) -> Iterator[Callable[[], None]]:
    for split in ("train", "val"):
        own = getattr(cfg.sft.data, f"{split}_files")
        given = own or getattr(cfg.data, f"{split}_files")
        key = f"sft.data.{split}_files" if own else f"data.{split}_files"
        for name in (given,) if isinstance(given, str) else given or ():
            # A Hub data set is downloaded for its check.
            if hub or not is_data_name(name):
                yield lambda key=key, name=name, split=split: _check_data(cfg, key, split, name)


def _check_data(cfg: Config, key: str, split: str, name: str) -> None:
    """Raise DataError if a file is missing or unreadable, or cannot be trained on."""
    try:
        for path in data_files(name, split):
            check_file(path, last_response_only=cfg.sft.data.last_response_only)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error


def _check_model(cfg: Config, name: str) -> None:
    """Raise ModelError if a model folder is incomplete, damaged, or has too short a context. Reads
    only headers."""
    code = cfg.actor_rollout_ref.model.trust_remote_code
    source = model_source(name, code=code)
    config = model_config(name, code=code)
    check_context(name, config, cfg.actor_rollout_ref.rollout.max_model_len)
    for path in sorted(source.glob("*.safetensors")):
        # `safe_open` compares the header with the file's length, which detects truncated copies
        # without reading weights.
        try:
            with safe_open(path, framework="pt") as file:
                if not file.keys():
                    raise ModelError(
                        f"{path}: the file has no weights. Copy or download the model again"
                    )
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"{path}: the weights cannot be loaded ({error}). Copy or download the file again"
            ) from error


def _check_whole(cfg: Config, name: str) -> None:
    require_whole_model(name, code=cfg.actor_rollout_ref.model.trust_remote_code)


def _env_checks(
    cfg: Config, stages: Collection[StageName], template: ChatTemplate | None
) -> Iterator[Callable[[], None]]:
    """Yield one check per environment tag: it makes a puzzle and, if `template` is given, checks
    that the first prompt leaves room for a response."""
    tags = [*cfg.es_manager.train.env_configs.tags] if {"selfplay", "ppo"} & set(stages) else []
    tags += cfg.es_manager.val.env_configs.tags if {"ppo", "eval"} & set(stages) else ()
    for tag in dict.fromkeys(tags):
        yield lambda tag=tag: _check_env(cfg, stages, tag, template)


def _check_env(
    cfg: Config, stages: Collection[StageName], tag: str, template: ChatTemplate | None
) -> None:
    longest = cfg.actor_rollout_ref.rollout.max_model_len
    selfplay = "selfplay" in stages and tag in cfg.es_manager.train.env_configs.tags
    kinds: dict[PromptMode, int] = {}
    if "ppo" in stages or "eval" in stages:
        kinds[cfg.ctx_manager.mode] = cfg.actor_rollout_ref.rollout.response_length
    # Self-play always uses world-model prompts, and a source without play has its own prompts. Both
    # are independent of the prompts of PPO.
    if selfplay:
        source = source_of(cfg)
        mode: PromptMode = "add_worldmodel" if source.plays else source.mode
        kinds[mode] = max(cfg.generate.sampling.response_length, kinds.get(mode, 0))
    with setup.first_puzzle(cfg, cfg.custom_envs[tag]) as env:
        require_labels(f"custom_envs.{tag}: action_names", env.action_names())
        for name in cfg.generate.policies if selfplay else ():
            if name in policy_names() and (require := policy_named(name).require):
                require(env, tag)
        for mode, response in kinds.items():
            needed = _prompt_length(cfg, tag, mode, env, template) + response
            if needed > longest:
                raise ConfigError(
                    f"actor_rollout_ref.rollout.max_model_len={longest} is too small: the "
                    f"first prompt of {tag} ({mode}) and a response of {response} tokens need "
                    f"{needed} tokens; raise max_model_len to {needed} or more"
                )


def _prompt_length(
    cfg: Config, tag: str, mode: PromptMode, env: TextEnv, template: ChatTemplate | None
) -> int:
    prompter = setup.make_prompter(cfg, cfg.custom_envs[tag], mode)
    messages = prompter.first_messages(env)
    if template is None:
        return 0
    # Prompts with images are not measured: only the image processor knows how many tokens an image
    # takes.
    return len(template.start(messages, prompter.prefill)) if env.image() is None else 0
