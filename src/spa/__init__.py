"""spa: train LLM agents that learn a world model from self-play before reinforcement learning.

Example:
    >>> import spa
    >>> env = spa.make("FrozenLake", size=4)
    >>> episode = spa.play("builtin:tiny", env)
    >>> run = spa.train("demo", output_dir="runs/demo")
    >>> spa.evaluate(run, samples=8).pass_at_1

Names are imported when you first use them, so `import spa` is fast and loads no torch.
"""

from importlib import import_module

from spa.version import __version__

# `typing` is slow to import, so `typing.TYPE_CHECKING` is not used here. Type checkers treat any
# variable of this name as true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spa.api.environments import make as make
    from spa.api.evaluation import Evaluation as Evaluation
    from spa.api.evaluation import WorldModelEvaluation as WorldModelEvaluation
    from spa.api.evaluation import evaluate as evaluate
    from spa.api.evaluation import evaluate_world_model as evaluate_world_model
    from spa.api.playing import Model as Model
    from spa.api.playing import load_model as load_model
    from spa.api.playing import play as play
    from spa.api.runs import Run as Run
    from spa.api.runs import compare as compare
    from spa.api.runs import load_run as load_run
    from spa.api.runs import train as train
    from spa.api.settings import load_config as load_config
    from spa.envs.base import TextEnv as TextEnv
    from spa.errors import SpaError as SpaError
    from spa.types import Episode as Episode

_MODULES = {
    "make": "spa.api.environments",
    "load_model": "spa.api.playing",
    "play": "spa.api.playing",
    "train": "spa.api.runs",
    "compare": "spa.api.runs",
    "evaluate": "spa.api.evaluation",
    "evaluate_world_model": "spa.api.evaluation",
    "load_run": "spa.api.runs",
    "load_config": "spa.api.settings",
    "TextEnv": "spa.envs.base",
    "Episode": "spa.types",
    "Run": "spa.api.runs",
    "Model": "spa.api.playing",
    "Evaluation": "spa.api.evaluation",
    "WorldModelEvaluation": "spa.api.evaluation",
    "SpaError": "spa.errors",
}
"""The public names and the modules that define them."""

__all__ = ["__version__", *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module 'spa' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    # Cache the value, so that the next access does not call this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
