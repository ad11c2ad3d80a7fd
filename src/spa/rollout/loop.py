"""The rollout loop: send prompts to the engine, parse and execute its responses, and repeat until
every episode has ended.

If an environment raises, hangs or returns invalid values, or if the chat template cannot encode a
puzzle's text, only the episode fails, never the run.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.limits import (
    SLOW,
    EnvCrash,
    EnvFault,
    LostEpisodes,
    boundary,
    checked_reward,
    checked_step,
    checked_text,
    making_s,
)
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.prompts.template_parts import TemplateFault
from spa.rollout.episode_builder import EpisodeBuilder
from spa.run import watchdog
from spa.seeds import stream
from spa.types import Completion, Engine, Episode, SamplingParams, StopReason

log = logging.getLogger(__name__)

MakeEnv = Callable[[str], TextEnv]
# Largest number of failed episodes that a rollout logs. The trajectory files record every failure.
SHOWN_FAULTS = 3
# Without this limit, an environment in which it is always the opponent's turn could block the
# rollout forever. Time limits may not help: worker processes limit single calls, and
# `env_timeout_s` may be null.
MOST_OPPONENT_MOVES = 1000


def collect(
    specs: Sequence[EpisodeSpec],
    *,
    make_env: MakeEnv,
    prompters: Mapping[str, Prompter],
    template: ChatTemplate | None,
    engine: Engine,
    sampling: SamplingParams,
    format_penalty: float,
    max_model_len: int,
    env_timeout_s: float | None = None,
    lanes: int = 0,
    lost: LostEpisodes | None = None,
) -> list[Episode]:
    """Play all of `specs` concurrently. Returns one episode per spec, in order.

    `make_env` builds an environment for a tag. Without a `template`, episodes have no tokens, as
    text-only engines require. An episode whose first prompt leaves no room for a response ends at
    once. An environment may take `env_timeout_s` seconds per turn. `lanes` is the number of turns
    executed in parallel, for environments in separate processes; 0 executes them one after the
    other. Episodes in `lost` are not played. Episodes that crash a process are added to it.

    Raises any SpaError of an environment's constructor, since the user can fix it.
    """
    room = max_model_len - sampling.max_tokens
    with ThreadPoolExecutor(lanes) if lanes else nullcontext() as pool:
        # Threads help only if environments run in other processes.
        each = pool.map if pool is not None else map
        lost = LostEpisodes() if lost is None else lost
        # The players of one game share its environment.
        tables: dict[str, list[EpisodeSpec]] = {}
        for spec in specs:
            tables.setdefault(spec.table or spec.episode_id, []).append(spec)
        games = list(
            each(
                lambda table: _Game(table, make_env, prompters, template, lost, env_timeout_s),
                tables.values(),
            )
        )
        _end_too_long([builder for game in games for builder in game.builders], room)
        for game in games:
            game.end_together()
        # Each round plays one turn of every unfinished game: all prompts in one batch, then all
        # environments.
        while active := [(game, builder) for game in games if (builder := game.asked) is not None]:
            completions = engine.generate(
                [builder.prompt(game.env, making_s(env_timeout_s)) for game, builder in active],
                sampling,
            )
            turns = [
                (game, completion)
                for (game, _), completion in zip(active, completions, strict=True)
            ]
            list(
                each(
                    lambda turn: turn[0].play(turn[1], format_penalty=format_penalty, room=room),
                    turns,
                )
            )
            # Dropping the caches of finished episodes makes room for the others.
            engine.forget(
                [
                    s.spec.episode_id
                    for game, _ in active
                    for s in game.builders
                    if s.stop is not None
                ]
            )
    builders = {builder.spec.episode_id: builder for game in games for builder in game.builders}
    _report_faults([builder for builder in builders.values() if builder.error])
    return [builders[spec.episode_id].episode() for spec in specs]


def _report_faults(failed: Sequence[EpisodeBuilder]) -> None:
    """Log the first `SHOWN_FAULTS` episodes that an error of the environment or engine ended, and
    the number of the others."""
    for builder in failed[:SHOWN_FAULTS]:
        spec = builder.spec
        log.warning(
            "Episode %s (environment %s, puzzle seed %d) failed in turn %d: %s",
            spec.episode_id,
            spec.tag,
            spec.puzzle_seed,
            builder.failed_turn,
            builder.error,
        )
    if len(failed) > SHOWN_FAULTS:
        log.warning(
            "%d more episodes failed; read their errors in the trajectory files",
            len(failed) - SHOWN_FAULTS,
        )


def _end_too_long(builders: Sequence[EpisodeBuilder], room: int) -> None:
    """Stop the episodes whose first prompt does not fit into `room` tokens."""
    for builder in builders:
        if builder.buffer is not None and len(builder.buffer) > room:
            builder.stop = StopReason.CONTEXT
            log.warning(
                "Episode %s stopped: its first prompt has %d tokens, but only %d fit with a "
                "response",
                builder.spec.episode_id,
                len(builder.buffer),
                room,
            )


def check_room(episodes: Sequence[Episode], response: int, max_model_len: int) -> None:
    """Raise ConfigError if every episode ended before its first response because its prompt left no
    room for a response of `response` tokens. Pass the episodes of all ranks, so that every rank
    makes the same decision."""
    too_long = any(episode.stop is StopReason.CONTEXT for episode in episodes)
    if too_long and not any(episode.turns or episode.error for episode in episodes):
        raise ConfigError(
            f"No first prompt fits: each prompt and a response of {response} tokens exceed "
            f"actor_rollout_ref.rollout.max_model_len={max_model_len}. Raise max_model_len, "
            "or lower response_length."
        )


def puzzle_hash(env: TextEnv) -> str:
    """Return the content hash of an environment's current puzzle, 16 hexadecimal digits."""
    return content_hash(checked_text(env.puzzle_text(), "puzzle_text"))


def content_hash(text: str) -> str:
    """Return the content hash of the puzzle with this `puzzle_text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Game:
    """A running game, with a builder for each player whose episode is recorded. The other players
    make random moves."""

    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        make_env: MakeEnv,
        prompters: Mapping[str, Prompter],
        template: ChatTemplate | None,
        lost: LostEpisodes,
        env_timeout_s: float | None = None,
    ) -> None:
        watchdog.beat()
        first = specs[0]
        self.lost = lost
        self.env_timeout_s = env_timeout_s
        self.builders = [EpisodeBuilder(spec, prompters[spec.tag], template) for spec in specs]
        self.turn: EpisodeBuilder | None = self.builders[0]
        known = [reason for spec in specs if (reason := lost.reason(spec.episode_id)) is not None]
        if known:
            return self._lose(known[0])
        try:
            with boundary(
                "making the puzzle",
                making_s(env_timeout_s),
                advice=SLOW,
            ):
                self.env = make_env(first.tag)
                self.env.reset(seed=first.puzzle_seed, options=first.reset_options())
                checked_text(
                    self.env.state_text(self.builders[0].prompter.state_text), "state_text"
                )
                # The opponent has its own random stream, so that its moves do not depend on the
                # random numbers used by the policy and the environment.
                self.chance = stream(first.noise_seed, "opponent")
                for builder in self.builders:
                    builder.assign_player(self.env.players)
                    builder.puzzle_hash = puzzle_hash(self.env)
                self._go_on(None)
        except (EnvFault, TemplateFault) as error:
            self._fail(error)

    @property
    def asked(self) -> EpisodeBuilder | None:
        """The builder that waits for a response; None if the episode has ended."""
        return None if self.turn is None or self.turn.stop is not None else self.turn

    def play(self, completion: Completion, *, format_penalty: float, room: int) -> None:
        """Process a response: record its tokens, execute its actions, and build the next prompt or
        stop."""
        watchdog.beat()
        builder = self.turn
        if builder is None:
            raise ValueError("play was called after the end of the episode; start a new episode")
        # An engine reports a failure, such as an API refusal, in the completion's text.
        if completion.finish_reason == "error":
            self._mark(completion.error)
            return self._lose(completion.text)
        builder.append_completion(completion)
        try:
            with boundary("the turn", self.env_timeout_s, advice=SLOW):
                ended = builder.step(self.env, completion, format_penalty)
                # A move may reward the other players as well.
                for info in builder.turns[-1].infos:
                    self._pay(info, but=builder)
                if ended:
                    self._end(builder.turns[-1].infos[-1], but=builder)
                elif builder.stop is None:
                    self._go_on(room)
                self.end_together()
        except (EnvFault, TemplateFault) as error:
            self._fail(error)

    def _go_on(self, room: int | None) -> None:
        """Let the opponent make its moves, then build the prompt of the player to move."""
        if self.env.players > 1:
            self._let_opponent_move()
        if self.turn is not None:
            self.turn.build_prompt(self.env, room)

    def _let_opponent_move(self) -> None:
        """Make random moves for the opponent until it is a builder's turn or the game is over."""
        builders = {builder.number: builder for builder in self.builders}
        moves = 0
        while (mover := self.env.current_player()) not in builders:
            moves += 1
            if moves > MOST_OPPONENT_MOVES:
                raise EnvFault(
                    f"the opponent has moved {MOST_OPPONENT_MOVES:,} times in a row without the "
                    "model's turn; check current_player of the environment"
                )
            self.env.look_as(mover)
            action = self.env.to_action(self.env.random_action(self.chance))
            if action is None:
                raise EnvFault(
                    "the environment's random_action returned an action for the opponent that "
                    "to_action does not accept"
                )
            _, ended, info = checked_step(self.env.step(action))
            self._pay(info)
            if ended:
                return self._end(info)
            # After an illegal move it may still be the opponent's turn. The opponent could then
            # repeat the move forever.
            if self.env.current_player() == mover and not info.get("action_is_valid"):
                raise EnvFault(
                    "the environment's random_action returned an illegal action for the opponent"
                )
        self.turn = builders[mover]
        self.env.look_as(mover)

    def _pay(self, info: Mapping[str, Any], but: EpisodeBuilder | None = None) -> None:
        for builder in self.builders:
            if builder is not but and builder.number is not None:
                builder.receive(checked_reward(info["rewards"][builder.number]))

    def _end(self, info: Mapping[str, Any], but: EpisodeBuilder | None = None) -> None:
        for builder in self.builders:
            if builder is not but and builder.number is not None:
                builder.stop = (
                    StopReason.SUCCESS if info["successes"][builder.number] else StopReason.FAILURE
                )
        self.turn = None

    def end_together(self) -> None:
        """Truncate the other players' episodes once one player's episode has stopped."""
        if any(builder.stop is not None for builder in self.builders):
            for builder in self.builders:
                builder.stop = builder.stop or StopReason.MAX_TURNS

    def _fail(self, error: EnvFault | TemplateFault) -> None:
        self._mark(error)
        self._lose(str(error))

    def _mark(self, error: Exception | None) -> None:
        """Record the episodes of this game in `lost` if the environment crashed its process, or
        hung and was killed. A resumed run then does not play them again."""
        if isinstance(error, EnvCrash):
            for builder in self.builders:
                self.lost.mark(builder.spec.episode_id, error)

    def _lose(self, reason: str) -> None:
        for builder in self.builders:
            builder.fail(reason)
