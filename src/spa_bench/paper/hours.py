"""Expected hours of the stages of a reproduction, either measured or estimated as in `spa doctor
--fit`."""

from collections.abc import Mapping
from functools import cache

from spa.config.stages import StageName
from spa.errors import ModelError
from spa.models.memory import ModelShape
from spa.recipes.token_budget import shape_of, with_token_budgets
from spa_estimates.fit import GB, gpu_memory
from spa_estimates.hours import stage_times
from spa_estimates.speed import card_for, gpus
from spa_sweeps.grid import StageJob


def hours_of(task: StageJob, measured: Mapping[StageName, float] | Mapping[str, float]) -> float:
    """Return the expected duration of a stage in hours.

    `measured` maps stages to measured hours. If it is empty, the duration is estimated for one GPU
    with vLLM. Returns 0 if the size of the model is unknown.
    """
    if measured:
        return measured[task.stage]
    shape = known_shape(task.config.model_path)
    if shape is None:
        return 0.0
    gb, _, name = gpu_memory()
    machine = gpus(card_for(gb, name), 1, vllm=True)
    cfg = with_token_budgets(task.config, gb * GB)
    (time,) = stage_times(cfg, shape, machine, stages=[task.stage])
    return (time.seconds or 0.0) / 3600


@cache
def known_shape(model: str) -> ModelShape | None:
    """Return the shape of a model, or None if it cannot be read, for example because the Hub is
    unreachable."""
    try:
        return shape_of(model)
    except ModelError:
        return None


def assumed_card() -> str:
    """The name of the GPU that the estimate assumes."""
    gb, _, name = gpu_memory()
    return card_for(gb, name).name
