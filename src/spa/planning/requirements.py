"""Requirements for planning in an environment."""

from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.planning.planner import DynamicsName, Proposals


def require_state_value(env: TextEnv, tag: str, *, instead: str) -> None:
    """Raises ConfigError, with the setting that does without, if states of the environment cannot
    be judged by their text."""
    if env.state_value(env.world_state_text("grid_and_coords")) is None:
        raise ConfigError(
            f"The environment {tag} has no state values (TextEnv.state_value), so {instead}"
        )


def require_dynamics(
    env: TextEnv, tag: str, dynamics: DynamicsName, depth: int = 1, proposals: Proposals = "sampled"
) -> None:
    """Raises ConfigError if predicted states of the environment cannot be judged, simulated, or shown
    in a prompt, as planning further than one turn needs. Raises it also if its actions cannot all
    be named."""
    require_state_value(
        env,
        tag,
        instead=(
            "spa cannot plan in it. Set imagine.n to 1; for self-play set generate.imagine.n to "
            "1, as in the preset tiny"
        ),
    )
    # Predictions are written like `world_state_text`, prompts like `state_text`.
    hidden = env.state_text("grid_and_coords") != env.world_state_text("grid_and_coords")
    if (depth > 1 or proposals == "exhaustive") and (
        hidden or env.image() is not None or env.players > 1
    ):
        raise ConfigError(
            f"Predicted states of {tag} differ from the states in its prompts. Set "
            "imagine.depth to 1 and imagine.proposals to sampled. For self-play, set the "
            "same keys in generate.imagine, and keep to false"
        )
    if proposals == "exhaustive" and not env.action_names():
        raise ConfigError(
            f"The actions of {tag} are free text, so imagine.proposals=exhaustive cannot "
            "list them; use imagine.proposals=sampled"
        )
    if dynamics == "simulator":
        try:
            env.clone()
        except NotImplementedError:
            raise ConfigError(
                f"The environment {tag} has no clone method, which "
                "imagine.dynamics=simulator needs; implement clone or use another value of "
                "imagine.dynamics"
            ) from None
