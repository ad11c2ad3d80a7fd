"""The rollout worker: everything that a rollout needs besides the engine.

Ranks exchange episodes as JSON with base64-encoded arrays. This takes a third of the space and time
that JSON lists of numbers, as in the trajectory files, would take.
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from spa.config.schema import EnvSpec
from spa.custom_rewards import WeightedReward, with_rewards
from spa.distributed.world import ALONE, World
from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, SLOW, EnvCrash, EnvFault, LostEpisodes, boundary, making_s
from spa.envs.pool import EpisodeSpec
from spa.envs.registry import make_env
from spa.envs.workers import EnvWorkers
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import check_room, collect, puzzle_hash
from spa.run import watchdog
from spa.types import Engine, Episode, SamplingParams

ARRAYS = {
    "token_ids": np.int32,
    "sampled": np.bool_,
    "logprobs": np.float32,
    "turn_index": np.int16,
}


def pack(episode: Episode) -> dict[str, Any]:
    """Convert an episode to a JSON-compatible dict; `unpack` restores an equal episode."""
    # Leave out the arrays here. They are packed as base64 below, because JSON would write them
    # number by number.
    bare: Any = replace(episode, **dict.fromkeys(ARRAYS))
    arrays = {name: getattr(episode, name) for name in ARRAYS}
    return bare.to_json() | {
        name: None if array is None else b64encode(array.tobytes()).decode()
        for name, array in arrays.items()
    }


def unpack(data: dict[str, Any]) -> Episode:
    """Restore an episode from the dict that `pack` returned."""
    # Copy, because `frombuffer` returns a read-only array.
    arrays: dict[str, Any] = {
        name: None
        if data[name] is None
        else np.frombuffer(b64decode(data[name]), dtype=dtype).copy()
        for name, dtype in ARRAYS.items()
    }
    return replace(Episode.from_json(data | dict.fromkeys(ARRAYS)), **arrays)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPreview:
    """A puzzle that has been created but not played."""

    env: TextEnv  # after `reset`
    hash: str  # content hash of the puzzle
    finite: bool  # True if there are so few puzzles that training and validation share them


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutWorker:
    """Everything that a rollout needs except the engine: environments, prompts, limits, and the
    other ranks."""

    specs: Mapping[str, EnvSpec]
    prompters: Mapping[str, Prompter]
    template: ChatTemplate | None
    format_penalty: float
    max_model_len: int
    world: World = ALONE
    env_timeout_s: float | None = None
    workers: EnvWorkers | None = None  # None: environments live in this process
    lost: LostEpisodes = field(default_factory=LostEpisodes)
    # tag -> rewards that replace the game's own
    rewards: Mapping[str, tuple[WeightedReward, ...]] = field(default_factory=dict)

    def make_env(self, tag: str) -> TextEnv:
        """Create an environment for a tag, in a worker process if there are any."""
        make = make_env if self.workers is None else self.workers.make
        return make(self.specs[tag].env_type, self.specs[tag].env_config)

    def replay_limit_s(self, turns: int) -> float | None:
        """Return the time limit in seconds for replaying an episode of `turns` turns in this
        process; None if there is no limit."""
        # Environments in other processes have their own limits.
        if self.env_timeout_s is None or self.workers is not None:
            return None
        return MAKING_S + self.env_timeout_s * (turns + 1)

    def peek_reset(self, spec: EpisodeSpec) -> "ResetPreview | None":
        """Create an episode's puzzle without playing it. Returns None if that fails; playing the
        episode will report the error. Records in `lost` a puzzle that crashes its process."""
        watchdog.beat()
        if self.lost.is_unmakeable(spec.episode_id):
            return None
        # Environments in other processes have their own limits.
        limit = making_s(self.env_timeout_s if self.workers is None else None)
        try:
            with boundary("reset", limit, advice=SLOW):
                env = self.make_env(spec.tag)
                env.reset(seed=spec.puzzle_seed, options=spec.reset_options())
                return ResetPreview(env=env, hash=puzzle_hash(env), finite=bool(env.finite_puzzles))
        except EnvFault as error:
            if isinstance(error, EnvCrash):
                self.lost.mark(spec.episode_id, error)
            log.warning(
                "%s: the environment cannot generate the puzzle of seed %d: %s",
                spec.tag,
                spec.puzzle_seed,
                error,
            )
            return None

    def rollout(
        self, engine: Engine, specs: list[EpisodeSpec], sampling: SamplingParams
    ) -> list[Episode]:
        """Play the given episodes. Each rank plays some of the groups, and every rank returns all
        episodes. Raises ConfigError if no first prompt leaves room for a response."""

        def play(mine: list[EpisodeSpec]) -> list[Episode]:
            episodes = collect(
                mine,
                make_env=self.make_env,
                prompters=self.prompters,
                template=self.template,
                engine=engine,
                sampling=sampling,
                format_penalty=self.format_penalty,
                max_model_len=self.max_model_len,
                env_timeout_s=self.env_timeout_s if self.workers is None else None,
                lanes=0 if self.workers is None else len(self.workers),
                lost=self.lost,
            )
            return with_rewards(episodes, self.rewards)

        # All episodes of a group, or of a game of two players, stay on one rank.
        episodes = self.world.parallel_map(specs, play, by=first_group, pack=pack, unpack=unpack)
        check_room(episodes, sampling.max_tokens, self.max_model_len)
        return episodes


def first_group(spec: EpisodeSpec) -> int:
    """Return the group of an episode or, in two-player self-play, the group of its game's first
    player."""
    return spec.group - spec.seat if spec.table else spec.group
