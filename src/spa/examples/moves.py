"""Single moves from random play: an action and the key of the state that it leads to. A search
program can query a model trained on them."""

from collections import Counter
from dataclasses import replace

from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.examples.play import Play, at_start
from spa.examples.source import Puzzles
from spa.types import Episode, SFTExample


class Moves(Play):
    """Source of single moves: one example per turn, with a single action (`spa.planning.moves`)."""

    has_states = False
    checks_puzzles = True
    order = 1

    def makes(self, cfg: Config) -> bool:
        """Return whether the examples are single moves."""
        return cfg.generate.example_format == "moves"

    def require(self, cfg: Config, env: TextEnv, tag: str) -> None:
        """Raise ConfigError unless the game can read the keys of its states from their texts, and
        render the texts from the keys."""
        from spa.planning.moves import require_names

        require_names(env, tag, cfg.state_text)

    def of_episode(
        self, cfg: Config, puzzles: Puzzles, episode: Episode
    ) -> tuple[list[SFTExample], Counter[str]]:
        """Return the move examples of an episode, and the number of dropped turns by reason."""
        from spa.planning.moves import move_examples

        made, dropped = super().of_episode(cfg, puzzles, episode)
        env = at_start(puzzles.worker.make_env(episode.tag), episode)
        return move_examples(made, env), dropped


def moves_config(cfg: Config) -> Config:
    """Return the configuration of the first of two rounds: random play with one action per turn,
    and SFT on these single moves. In the second round, searches use the predictions of the model
    trained in the first."""
    own = cfg.generate.search
    tags = cfg.es_manager.train.env_configs.tags
    # Each turn has one action, so that it is one transition. Allow enough turns for all actions of
    # an episode.
    proxy = replace(
        cfg.agent_proxy,
        response_format="plan_first",
        max_actions_per_turn=1,
        max_turn=max(cfg.custom_envs[tag].max_actions_per_traj for tag in tags),
    )
    # A tag's own `max_turn` would override `agent_proxy.max_turn`.
    games = {tag: replace(spec, max_turn=None) for tag, spec in cfg.custom_envs.items()}
    return replace(
        cfg,
        agent_proxy=proxy,
        custom_envs=games,
        ctx_manager=replace(cfg.ctx_manager, history=True),
        generate=replace(
            cfg.generate, rounds=1, group_size=1, policy="random", example_format="moves"
        ),
        # `moves` counts examples and `moves_per_step` is the batch size: together they fix the
        # number of steps.
        sft=replace(
            cfg.sft,
            data=replace(cfg.sft.data, train_batch_size=own.moves_per_step),
            trainer=replace(
                cfg.sft.trainer,
                total_training_steps=max(1, own.moves // own.moves_per_step),
                eval_episodes=0,
            ),
        ),
        # With `eval_episodes=0`, SFT measures no world-model accuracy, so the gate has no input.
        gate=replace(cfg.gate, enable=False),
    )


SOURCE = Moves()
