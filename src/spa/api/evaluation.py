"""Evaluate a model's success on unseen puzzles, and the accuracy of its world model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.api.playing import Model, open_config
from spa.api.settings import Overrides, as_list
from spa.config.load import spread_groups
from spa.config.schema import Config
from spa.envs.eval_sets import SAMPLES, EvalSet
from spa.errors import ConfigError
from spa.evaluation.statistics import Interval
from spa.evaluation.text import interval_text, percent
from spa.plugins import load_plugin
from spa.policies.named import policy_names
from spa.prompts.template import ChatTemplate
from spa.recipes import evaluate as recipe
from spa.recipes.policies import Target, find_target, slug
from spa.types import Engine

if TYPE_CHECKING:
    from spa.api.runs import Run


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of one evaluation."""

    result: Mapping[str, Any]  # content of the JSON result file
    path: Path  # of the result file

    def pass_at(self, k: int, tag: str | None = None) -> Interval:
        """Return unbiased Pass@k with its 95 % bootstrap interval over puzzles. The interval's `n`
        is the number of puzzles.

        `tag` names an environment, and is required if there are several. Raises ConfigError if it
        is missing or unknown, or if the result has no Pass@k: `ks` of the evaluation lacks k, or
        fewer than k attempts were played.
        """
        name = _tag_of(self.result, tag)
        interval = self.result["tags"][name].get(f"pass@{k}")
        if interval is None:
            again = (
                f"ks=[{k}]" if self.result["settings"]["samples"] >= k else f"samples={k} or more"
            )
            raise ConfigError(f"the result has no Pass@{k} for {name}; evaluate again with {again}")
        return _interval(interval)

    @property
    def pass_at_1(self) -> Interval:
        """Pass@1; see `pass_at`."""
        return self.pass_at(1)

    @property
    def pass_at_8(self) -> Interval:
        """Pass@8; see `pass_at`."""
        return self.pass_at(8)

    def __repr__(self) -> str:
        lines = []
        for tag, metrics in self.result["tags"].items():
            shares = [
                f"{name.replace('pass', 'Pass')} {interval_text(value)} %"
                for name, value in metrics.items()
                if name in ("pass@1", "pass@8")
            ]
            lines.append(
                f"{self.result['policy']} on {tag}, {metrics['puzzles']} puzzles: {', '.join(shares)}"
            )
        return "\n".join([*lines, "Brackets show the 95 % CI over puzzles."])


@dataclass(frozen=True, kw_only=True)
class WorldModelEvaluation:
    """The measured accuracy of a world model."""

    result: Mapping[str, Any]  # content of the JSON result file
    path: Path  # of the result file

    def prediction(self, tag: str | None = None) -> Interval:
        """Return the share of exact predictions of the next state, with its 95 % bootstrap interval
        over puzzles. `tag` names an environment, and is required if there are several."""
        return _interval(self.result["tags"][_tag_of(self.result, tag)]["prediction_exact"])

    def observation(self, tag: str | None = None) -> Interval:
        """Return the share of exact observations of the current state, as `prediction` does for the
        next state."""
        return _interval(self.result["tags"][_tag_of(self.result, tag)]["observation_exact"])

    def copying(self, tag: str | None = None) -> float:
        """Return the copy baseline of `prediction`: the share of exact predictions if the model
        always repeated the current state."""
        name = _tag_of(self.result, tag)
        return self.result["tags"][name]["baselines"]["copy"]["prediction_exact"]

    def __repr__(self) -> str:
        lines = [
            f"{self.result['policy']} on {tag}, {found['transitions']} states: predictions exact "
            f"{interval_text(found['prediction_exact'])} % (copying "
            f"{percent(found['baselines']['copy']['prediction_exact'])} %), observations exact "
            f"{interval_text(found['observation_exact'])} %"
            for tag, found in self.result["tags"].items()
        ]
        return "\n".join([*lines, "Brackets show the 95 % CI over puzzles."])


def _tag_of(result: Mapping[str, Any], tag: str | None) -> str:
    """Return `tag` or, if it is None, the tag of the only environment. Raises ConfigError if the
    result has no such environment, or if `tag` is None and there are several."""
    tags = result["tags"]
    if tag is None and len(tags) > 1:
        raise ConfigError(
            f"the result has several environments; name one of them with `tag`: {', '.join(tags)}"
        )
    name = tag or next(iter(tags))
    if name not in tags:
        raise ConfigError(f"the result has no environment {name}, only {', '.join(tags)}")
    return name


def _interval(found: Mapping[str, Any]) -> Interval:
    # A result leaves out the bounds of an interval that cannot be computed, since JSON has no NaN.
    return Interval(
        mean=found["mean"], low=found.get("low", nan), high=found.get("high", nan), n=found["n"]
    )


def evaluate(
    model: "str | Path | Run | Model",
    config: str | Path | Config | None = None,
    *,
    samples: int | None = 8,
    puzzles: int | None = None,
    overrides: Overrides = (),
    ks: Sequence[int] | None = None,
    prices: tuple[float, float] | None = None,
    output: str | Path | None = None,
) -> Evaluation:
    """Play validation puzzles and return Pass@1 and unbiased Pass@k with 95 % CI over puzzles.

    Puzzles that the model was trained on are left out. The same call resumes an interrupted
    evaluation.

    Args:
        model: anything that `load_model` takes, a run (its newest checkpoint), or a loaded model.
        config: the configuration with puzzles, prompts and limits. Default: the configuration of
            the run or of the loaded model.
        samples: attempts per puzzle; None takes `es_manager.val.group_size`.
        puzzles: number of puzzles; None takes `es_manager.val.env_groups`.
        overrides: overrides of the configuration.
        ks: values of k for Pass@k. Default: 1, 2, 4 and so on up to the number of samples, at most
            64.
        prices: API prices per million input and output tokens. If given, the result contains the
            cost.
        output: the JSON file. Default: in `eval/` of the run.

    Raises SpaError if the model cannot be used, or if no episode could be completed.
    """
    chosen = None if ks is None else as_list("ks", ks, int)
    target, cfg, path = plan_evaluation(
        model, config, samples=samples, puzzles=puzzles, overrides=overrides, output=output
    )
    return run_evaluation(target, cfg, path, ks=chosen, prices=prices, loaded=_loaded(model))


def evaluate_world_model(
    model: "str | Path | Run | Model",
    config: str | Path | Config | None = None,
    *,
    transitions: int = 1000,
    steps: int = 3,
    greedy: bool = False,
    overrides: Overrides = (),
    output: str | Path | None = None,
) -> WorldModelEvaluation:
    """Measure how accurate a model's observations and predictions are, on puzzles outside training.

    Args:
        model: anything that `load_model` takes, a run (its newest checkpoint), or a loaded model.
        config: the configuration with games and prompts. Default: the configuration of the run or
            of the loaded model.
        transitions: number of states per environment.
        steps: number of steps in the open-loop rollout.
        greedy: use the most likely response instead of a sampled one.
        overrides: overrides of the configuration.
        output: the JSON file. Default: in `eval/` of the run.

    Raises SpaError if the model cannot be used, or if there are too few states outside training.
    """
    for name, count in (("transitions", transitions), ("steps", steps)):
        _check_count(name, count)
    target, cfg, path = plan_evaluation(
        model, config, overrides=overrides, output=output, suffix="-world-model"
    )
    result = load_plugin("api", "world_model")(
        cfg,
        target,
        output=path,
        transitions=transitions,
        steps=steps,
        greedy=greedy,
        loaded=_loaded(model),
    )
    return WorldModelEvaluation(result=result, path=path)


def _loaded(model: object) -> tuple[Engine, ChatTemplate | None] | None:
    """Return the engine and the template of a loaded model, so that its weights are not loaded
    twice; None if `model` is not loaded or the evaluation needs a new engine."""
    # A scripted policy's engine has the limits of the configuration that it was made for. The
    # responses of a model behind an API are stored next to the result, so it needs a new engine.
    if isinstance(model, Model) and model.name not in policy_names() and not model.target.api:
        return model.engine, model.template
    return None


def run_evaluation(
    target: Target,
    cfg: Config,
    path: Path,
    *,
    ks: Sequence[int] | None = None,
    prices: tuple[float, float] | None = None,
    loaded: tuple[Engine, ChatTemplate | None] | None = None,
    eval_set: EvalSet | None = None,
) -> Evaluation:
    """Run an evaluation that `plan_evaluation` has planned. `loaded` is an engine that already
    plays as `target`. `eval_set` is played instead of the validation puzzles (see
    `eval_set_overrides`)."""
    result = recipe.evaluate_target(
        cfg,
        target,
        output=path,
        ks=ks,
        prices=prices,
        loaded=loaded,
        eval_set=eval_set,
    )
    return Evaluation(result=result, path=path)


def eval_set_overrides(chosen: EvalSet, *, greedy: bool) -> list[str]:
    """Return the overrides for playing an evaluation set: its puzzles and limits, and `SAMPLES`
    episodes per puzzle sampled at temperature 1, or one greedy episode."""
    decoding = "actor_rollout_ref.rollout.val_kwargs"
    return [
        *chosen.overrides(),
        f"es_manager.val.group_size={1 if greedy else SAMPLES}",
        f"{decoding}.do_sample={str(not greedy).lower()}",
        f"{decoding}.temperature=1.0",
        f"{decoding}.top_p=1.0",
        f"{decoding}.top_k=-1",
    ]


def check_eval_set(chosen: EvalSet, cfg: Config) -> None:
    """Raise ConfigError unless the configuration defines the evaluation set's tag with the set's
    environment type and options."""
    spec = cfg.custom_envs.get(chosen.tag)
    options = None if spec is None else json.loads(json.dumps(dict(spec.env_config or {})))
    if spec is None or (spec.env_type, options) != (chosen.env_type, chosen.options):
        raise ConfigError(
            f"custom_envs.{chosen.tag}: the evaluation set {chosen.name} is played with env_type="
            f"{chosen.env_type} and env_config={chosen.options}, but the configuration has other ones. Evaluate with "
            "--config base, or with a configuration that does not change them"
        )


def plan_evaluation(
    model: "str | Path | Run | Model",
    config: str | Path | Config | None = None,
    *,
    samples: int | None = None,
    puzzles: int | None = None,
    overrides: Overrides = (),
    output: str | Path | None = None,
    suffix: str = "",
) -> tuple[Target, Config, Path]:
    """Resolve the model to evaluate, its configuration, and the path of the result file. Raises
    ConfigError or ModelError."""
    if isinstance(model, Model):
        target, cfg = open_config(model.target.name, config or model.config, overrides)
    else:
        # Hub models and policies contain no configuration. They also have no default, because
        # results with different configurations look comparable but are not.
        given = str(getattr(model, "path", model))
        if config is None and find_target(given).config is None:
            # `runs/demo` may be a Hub name or a mistyped folder.
            missing = "/" in given and not Path(given).expanduser().is_dir()
            raise ConfigError(
                f"{f'there is no folder {given}, and ' if missing else ''}only the checkpoints of a run contain "
                "a configuration; name a configuration for this model with --config"
            )
        target, cfg = open_config(model, config, overrides)
    cfg = _sized(cfg, samples, puzzles)
    root = (target.run or Path(cfg.trainer.run_dir)) / "eval"
    tags = cfg.es_manager.val.env_configs.tags
    games = "-".join(tags) if len(tags) <= 3 else f"{len(tags)}-games"
    # The name contains the model, the configuration and the games (above three only their number),
    # so that results of other models, configurations and games are kept.
    name = f"{target.label}-{slug(cfg.trainer.experiment_name)}-{slug(games)}{suffix}"
    path = Path(output) if output else root / f"{name}.json"
    # The other files of the result have the same name with other suffixes, so the suffix must be
    # .json.
    if path.suffix != ".json":
        raise ConfigError(f"output is {path}; give a file whose name ends in .json")
    return target, cfg, path


def _sized(cfg: Config, samples: int | None, puzzles: int | None) -> Config:
    """Return the configuration with `puzzles` validation puzzles and `samples` attempts per puzzle."""
    for name, count in (("samples", samples), ("puzzles", puzzles)):
        if count is not None:
            _check_count(name, count)
    val = cfg.es_manager.val
    if samples is not None:
        val = replace(val, group_size=samples)
    if puzzles is not None:
        # `n_groups` splits `env_groups` over the tags. Another total needs another split, which
        # `spread_groups` computes if `n_groups` is None.
        val = replace(val, env_groups=puzzles, env_configs=replace(val.env_configs, n_groups=None))
    return spread_groups(replace(cfg, es_manager=replace(cfg.es_manager, val=val)))


def _check_count(name: str, count: object) -> None:
    if not isinstance(count, int):
        raise ConfigError(f"{name} must be an integer, got {count!r}")
    if count < 1:
        raise ConfigError(f"{name} must be at least 1, got {count}")
