"""The comparison of methods behind `spa.compare`. `pyproject.toml` registers `compare` in the group
`spa.api`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.api.settings import Overrides, as_list, as_texts, value_text
from spa.errors import ConfigError
from spa_sweeps.compare import Comparison, methods_compared, run_comparison, values_tried
from spa_sweeps.methods import configured, controls_of


def compare(
    config: str | Path,
    *,
    methods: Sequence[str],
    sweep: Mapping[str, Sequence[Any]] | None,
    parallel: int | None,
    **options: Any,
) -> Path:
    """Train the methods of a comparison, and return the folder of the comparison. The arguments are
    those of `spa.api.runs.compare`; `options` are passed to `plan_comparison`."""
    tried = sweep or {}
    if not isinstance(tried, Mapping):
        raise ConfigError(
            f"sweep must be a mapping of keys to values, such as {{'algorithm.gamma': [1, 0.9]}}, got {sweep!r}"
        )
    made = plan_comparison(
        config,
        methods=as_list("methods", methods, str),
        sweep=[
            f"{key}={','.join(map(value_text, as_list(key, values)))}"
            for key, values in tried.items()
        ],
        **options,
    )
    run_comparison(made, parallel=parallel)
    return made.root


def plan_comparison(
    config: str | Path,
    *,
    methods: Sequence[str] = (),
    sweep: Sequence[str] = (),
    seeds: int | None = None,
    controls: bool = False,
    method: str | None = None,
    output_dir: str | Path | None = None,
    overrides: Overrides = (),
) -> Comparison:
    """Plan the training runs of `compare`. Each text of `sweep` has the form `key=v1,v2`. Raises
    ConfigError if the arguments contradict each other or do not fit the configuration."""
    name = str(config)
    texts = as_texts(overrides)
    if output_dir is not None and not (methods or sweep):
        texts.append(f"trainer.run_dir={value_text(str(output_dir))}")
    folder = None if output_dir is None else Path(output_dir)
    if sweep:
        if methods or controls:
            raise ConfigError(
                "compare either methods or the values of a sweep, not both; `method` names the method that a "
                "sweep trains"
            )
        return values_tried(name, [*texts, *sweep], name=method or "spa", root=folder, seeds=seeds)
    if method is not None:
        raise ConfigError(
            f"`method` names the method that a sweep trains, and there is no sweep; to compare {method}, "
            "name it in `methods`"
        )
    added = controls_of(configured(name, tuple(texts))) if controls else ()
    return methods_compared(name, texts, names=added, only=methods, seeds=seeds, root=folder)
