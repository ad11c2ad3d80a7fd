"""The results of the paper (arXiv 2510.15047) as experiments, read from `paper.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import yaml

from spa.errors import ConfigError

_PAPER: Mapping[str, Any] = yaml.safe_load(
    resources.files("spa_bench.paper").joinpath("paper.yaml").read_text(encoding="utf-8")
)

PERPLEXITY: Mapping[tuple[str, str], float] = {
    (tag, text): value
    for tag, texts in _PAPER["perplexity"].items()
    for text, value in texts.items()
}
"""State perplexity under the paper's base model, by (environment tag, state text)."""

NAMES: Mapping[str, str] = {name: table["title"] for name, table in _PAPER["tables"].items()}
"""Titles of the tables by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of an environment at a scale: a shipped configuration and its overrides."""

    preset: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A size at which the paper is reproduced.

    * `models`: names of the models.
    * `settings`: the setting of each environment.
    * `words`: maps a name in `paper.yaml` to the environment or method that replaces it at this
      scale.
    * `hours`: hours of each stage, measured on one `device`. If empty, hours are estimated.
    * `device`: "CPU core" or "GPU".
    * `seeds`: default number of seeds.
    * `common`: overrides for every experiment.
    """

    models: tuple[str, ...]
    settings: Mapping[str, Setting]
    words: Mapping[str, str]
    hours: Mapping[str, float]
    device: str
    seeds: int
    common: tuple[str, ...] = ()

    def named(self, name: str) -> str:
        """The name, at this scale, of the environment or method that the paper's tables call
        `name`."""
        return self.words.get(name, name)


def _setting(preset: str, overrides: tuple[str, ...] = (), tag: str = "") -> Setting:
    """Build a setting. With `tag`, training and validation play only this environment tag."""
    # This is a mapping in Hydra's override syntax. `n_groups: null` assigns all groups to the tag.
    groups = f"env_configs={{tags: [{tag}], n_groups: null}}"
    tags = (f"es_manager.train.{groups}", f"es_manager.val.{groups}") if tag else ()
    return Setting(preset=preset, overrides=(*overrides, *tags))


SCALES: Mapping[str, Scale] = {
    name: Scale(
        models=tuple(scale["models"]),
        settings={
            environment: _setting(**setting) for environment, setting in scale["settings"].items()
        },
        words=scale["words"],
        hours=scale.get("hours", {}),
        device=scale["device"],
        seeds=scale["seeds"],
        common=tuple(scale.get("common", ())),
    )
    for name, scale in _PAPER["scales"].items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One row of a table: a method trained in an environment, starting from a model. `paper` is the
    paper's Pass@1 and Pass@8 in percent, or None if not reported."""

    model: str
    environment: str
    method: str
    paper: tuple[float, float] | None = None

    @property
    def id(self) -> str:
        """Identifier within a scale, for `--only` and the results file."""
        return f"{self.model.rpartition('/')[2]}/{self.environment}/{self.method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim of the paper about two methods in the same environment.

    `kind` is one of these:

    * `better`: the first method has the higher Pass@1.
    * `no_gain`: the first method is not better than the second.
    * `keeps`: Pass@8 of the first method does not fall during PPO. There is no second method.
    """

    text: str
    environment: str
    first: str
    second: str = ""
    kind: Literal["better", "no_gain", "keeps"] = "better"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A table of the paper: its experiments, and the claims about them."""

    name: str
    title: str
    experiments: tuple[Experiment, ...] = ()
    findings: tuple[Finding, ...] = ()


def paper_table(name: str, scale_name: str) -> PaperTable:
    """Build a table with the models and settings of a scale. Raises ConfigError for an unknown
    table or scale."""
    if name not in NAMES:
        raise ConfigError(f"there is no table {name!r}; choose from {', '.join(NAMES)}, all")
    if scale_name not in SCALES:
        raise ConfigError(f"there is no scale {scale_name!r}; choose from {', '.join(SCALES)}")
    scale = SCALES[scale_name]
    table = _PAPER["tables"][name]
    rows: Mapping[str, list[str]] = table.get("rows", {})
    # The main results use all models of a scale. Every other table uses only the last model.
    models = scale.models if table.get("all_models") else scale.models[-1:]
    experiments = [
        _experiment(scale, model, environment, method)
        for model in models
        for environment, methods in rows.items()
        for method in methods
    ]
    if more := table.get("only_at", {}).get(scale_name):
        experiments += [
            _experiment(scale, more["model"], environment, more["method"]) for environment in rows
        ]
    findings = [
        _finding(scale, environment, **claim)
        for environment in rows
        for claim in table["findings"]
        # A claim without an environment is about all environments of the table.
        if claim.get("environment", environment) == environment
    ]
    return PaperTable(
        name=name, title=NAMES[name], experiments=tuple(experiments), findings=tuple(findings)
    )


def _experiment(scale: Scale, model: str, environment: str, method: str) -> Experiment:
    environment = scale.named(environment)
    # The paper's results have the paper's names of methods as keys, so look them up before `named`
    # replaces the name. Models that the paper did not train have no entry.
    paper = _PAPER["pass"].get(model, {}).get(method, {}).get(environment)
    return Experiment(
        model=model,
        environment=environment,
        method=scale.named(method),
        paper=None if paper is None else tuple(paper),
    )


def _finding(
    scale: Scale, where: str, *, text: str, first: str, second: str = "", **more: Any
) -> Finding:
    return Finding(
        text=text.format(**scale.words),
        environment=scale.named(where),
        first=scale.named(first),
        second=scale.named(second),
        kind=more.get("kind", "better"),
    )
