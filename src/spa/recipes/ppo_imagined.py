"""What imagined plans say about the turns of a PPO step: `algorithm.imagined_advantage`."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from spa.algo.imagined import agreement, lead
from spa.config.schema import Config
from spa.planning.requirements import require_state_value
from spa.recipes import setup
from spa.types import Episode


def require_worths(cfg: Config) -> None:
    """Raises ConfigError if imagined plans are to count and an environment cannot say what a state is worth."""
    if cfg.algorithm.imagined_advantage > 0:
        check = partial(require_state_value, instead="algorithm.imagined_advantage must be 0")
        setup.check_puzzles(cfg, cfg.es_manager.train.env_configs.tags, check)


def imagined_advantages(cfg: Config, episodes: Sequence[Episode]) -> list[np.ndarray] | None:
    """float32 [T] per episode, on the tokens of each turn: how much more than the others the taken plan was imagined to
    be worth, times how far imagination agrees with what came in all these episodes, times
    `algorithm.imagined_advantage`; None if that is 0.
    """
    coef = cfg.algorithm.imagined_advantage
    if coef == 0:
        return None
    worth = {tag: _worths(cfg, tag, [e for e in episodes if e.tag == tag]) for tag in {e.tag for e in episodes}}
    leads, seen, came = [], list[float](), list[float]()
    for episode in episodes:
        of_turn = np.zeros(len(episode.turns) + 1, dtype=np.float32)  # the last entry is for tokens outside turns
        for number, turn in enumerate(episode.turns):
            plans = [plan for plan, _ in turn.reply.options]
            if not turn.reply.well_formed or turn.reply.actions not in plans:
                continue
            worths = [worth[episode.tag][state] for _, state in turn.reply.options]
            taken = plans.index(turn.reply.actions)
            of_turn[number] = lead(worths, taken)
            seen.append(worths[taken])
            came.append(worth[episode.tag][turn.next_target])
        assert episode.turn_index is not None
        leads.append(of_turn[episode.turn_index])
    gate = np.float32(coef * agreement(seen, came))
    return [gate * own for own in leads]


def _worths(cfg: Config, tag: str, episodes: Sequence[Episode]) -> dict[str, float]:
    """What the environment says of every state that was imagined or came."""
    turns = [turn for episode in episodes for turn in episode.turns]
    texts = {state for turn in turns for _, state in turn.reply.options} | {turn.next_target for turn in turns}
    with setup.first_puzzle(cfg, cfg.custom_envs[tag]) as env:
        return {text: env.state_value(text) or 0.0 for text in sorted(texts)}
