"""Load models, and play single episodes."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from spa.api.environments import find_spec, spec_of, tag_of, text_env
from spa.api.html import show_in_notebooks
from spa.api.settings import Overrides, as_texts
from spa.config.load import load_config
from spa.config.schema import Config
from spa.custom_rewards import load_rewards, with_rewards
from spa.envs.pool import EpisodeSpec
from spa.envs.registry import make_env
from spa.errors import ConfigError, EnvFault
from spa.models.load import BUILTIN
from spa.policies.named import require_solver
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.policies import API, Target, behind_api, engine_of, find_target
from spa.recipes.prompters import make_prompter
from spa.rollout.loop import check_room, collect
from spa.seeds import stream_seed
from spa.types import Engine, Episode

if TYPE_CHECKING:
    from spa.api.runs import Run

API_CONFIG = "evaluate_api_llm"
"""The configuration that defines models behind APIs."""

show_in_notebooks()


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, or a policy without a model (`random`, `expert`), that is ready to play. Create it
    with `load_model`.

    `play` takes prompts, limits and sampling parameters from `config`. `template` is None for
    engines that return text without tokens.
    """

    name: str
    config: Config
    target: Target
    engine: Engine
    template: ChatTemplate | None

    def close(self) -> None:
        """Free memory, processes and connections."""
        self.engine.close()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, config={self.config.trainer.experiment_name!r})"


def load_model(
    name: "str | Path | Run",
    *,
    config: str | Path | Config | None = None,
    overrides: Overrides = (),
) -> Model:
    """Load a model for playing.

    Args:
        name: `builtin:tiny`, a Hugging Face Hub name, the folder of a model, checkpoint or run, a
            `Run`, the name of a model behind an API (a key of `model_info`), or the policy `random` or
            `expert`.
        config: the configuration with prompts, limits and sampling. Default: the checkpoint's own,
            `tiny` for `builtin:tiny`, `evaluate_api_llm` for the API models that it lists,
            otherwise `base`.
        overrides: overrides of the configuration.

    Raises ModelError if there is no such model, ConfigError for an invalid configuration.
    """
    target, cfg = open_config(name, config, overrides)
    engine, template = engine_of(cfg, target)
    return Model(name=target.name, config=cfg, target=target, engine=engine, template=template)


def open_config(
    name: "str | Path | Run", config: str | Path | Config | None = None, overrides: Overrides = ()
) -> tuple[Target, Config]:
    """Resolve `name` to a target, and load its configuration. Raises ModelError if there is no such
    model, ConfigError for an invalid configuration."""
    target = find_target(str(getattr(name, "path", name)))
    texts = as_texts(overrides)
    if isinstance(config, Config):
        # Overrides are resolved while a configuration is loaded, so a loaded configuration accepts
        # none.
        if texts:
            raise ConfigError(
                "overrides cannot change a configuration that is already loaded; pass the configuration by "
                "name or path instead"
            )
        cfg = config
    else:
        cfg = load_config(config or target.config or _default_config(target), texts)
    return behind_api(cfg, target), cfg


def _default_config(target: Target) -> str:
    if target.name == BUILTIN:
        return "tiny"
    # Models behind APIs are listed in their own configuration.
    if target.name == API or target.name in load_config(API_CONFIG).model_info:
        return API_CONFIG
    return "base"


def play(
    model: "str | Path | Run | Model",
    env: str | gymnasium.Env[Any, Any],
    seed: int = 10,
    *,
    config: str | Path | Config | None = None,
) -> Episode:
    """Play one episode and return it. A notebook shows it as a replay.

    Args:
        model: a loaded model, or a name that `load_model` takes. Load it once to play many episodes.
        env: a TextEnv, which is played without its wrappers, or a name that `make` takes. A tag refers
            to the model's configuration.
        seed: seed of the puzzle, of random outcomes and of sampling. Avoid seeds below 10: prompts
            contain sample responses with good moves for these puzzles.
        config: the configuration, if the model is given by name.

    Raises SpaError if the model or the environment cannot be used. If the environment or an API
    fails during the episode, `Episode.error` contains the reason.
    """
    if not isinstance(model, Model):
        with closing(load_model(model, config=config)) as loaded:
            return play(loaded, env, seed)
    cfg = model.config
    given = None if isinstance(env, str) else text_env(env)
    spec = find_spec(str(env), cfg) if given is None else spec_of(given)
    tag = str(env) if given is None else tag_of(given)
    try:
        game = given or make_env(spec.env_type, spec.env_config)
        if model.target.name == "expert":
            # Some environments can tell only after a reset whether they can be solved.
            game.reset(seed=seed)
            require_solver(game, tag)
        prompter = make_prompter(cfg, spec, cfg.ctx_manager.mode, env=game)
    except EnvFault as error:
        raise ConfigError(f"{tag}: {error}") from error
    rewards = load_rewards(f"custom_envs.{tag}.reward", spec.reward)
    sampling = setup.val_sampling(cfg)
    max_model_len = cfg.actor_rollout_ref.rollout.max_model_len
    episodes = collect(
        [
            EpisodeSpec(
                episode_id=f"play/{seed}/0/0",
                tag=tag,
                group=0,
                member=0,
                puzzle_seed=seed,
                # The environment's randomness and the sampling have their own random streams:
                # neither may repeat the random numbers that made the puzzle.
                noise_seed=stream_seed(seed, "play/noise"),
                sample_seed=stream_seed(seed, "play/sample"),
            )
        ],
        make_env=lambda _: game,
        prompters={tag: prompter},
        template=model.template,
        engine=model.engine,
        sampling=sampling,
        format_penalty=cfg.es_manager.format_penalty,
        max_model_len=max_model_len,
        env_timeout_s=cfg.es_manager.env_timeout_s,
    )
    # A prompt that leaves no room for a response is a mistake in the configuration, so it raises an
    # error. Other errors are recorded in the episode.
    check_room(episodes, sampling.max_tokens, max_model_len)
    return with_rewards(episodes, {tag: rewards})[0]
