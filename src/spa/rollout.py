"""Playing: prompts go to the engine, replies are parsed and executed, until every episode has ended.

An environment that raises, hangs or returns nonsense costs its own episode, never the run, and so does a chat template
that does not take a puzzle's text.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np

from spa import heartbeat
from spa.engines.base import Engine
from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, EnvCrash, EnvFault, boundary, checked_text
from spa.envs.lost import LostEpisodes
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError
from spa.models.vision import to_png
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate, TokenBuffer
from spa.prompts.template_parts import TemplateFault
from spa.seeds import stream_seed
from spa.turns import stop_after, take_turn
from spa.types import Completion, Episode, Message, Prompt, SamplingParams, Stop, Turn

log = logging.getLogger(__name__)

MakeEnv = Callable[[str], TextEnv]
SHOWN_FAULTS = 3
_NO_IDS = np.zeros(0, dtype=np.int32)


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
    """Play all of `specs` side by side; returns one episode per spec, in order.

    `make_env` builds an environment for a tag; `template` None plays without tokens (text-only engines). An episode
    whose first prompt leaves no room for a reply ends at once. An environment has `env_timeout_s` seconds for a turn;
    with `lanes`, that many turns are executed at a time, for environments in processes of their own. Episodes that
    `lost` knows are not played, and those that end a process are added to it.

    Raises ConfigError if no prompt fits, and whatever SpaError an environment raises while it is made: those are for
    the user to solve.
    """
    room = max_model_len - sampling.max_tokens
    with ThreadPoolExecutor(lanes) if lanes else nullcontext() as pool:
        each = pool.map if pool is not None else map
        lost = LostEpisodes() if lost is None else lost
        players = list(
            each(lambda spec: _Player(spec, make_env, prompters[spec.tag], template, lost, env_timeout_s), specs)
        )
        _check_room(players, room, max_model_len)
        while active := [player for player in players if player.stop is None]:
            completions = engine.generate([player.prompt() for player in active], sampling)
            turns = list(zip(active, completions, strict=True))
            list(each(lambda turn: turn[0].play(turn[1], format_penalty=format_penalty, room=room), turns))
            engine.forget([player.spec.episode_id for player in active if player.stop is not None])
    _report_faults([player for player in players if player.error])
    return [player.episode() for player in players]


def _report_faults(failed: "Sequence[_Player]") -> None:
    """Name the first of the episodes that an environment or engine spoilt, and count the others."""
    for player in failed[:SHOWN_FAULTS]:
        spec = player.spec
        log.warning(
            "episode %s (%s, puzzle seed %d) failed in turn %d: %s",
            spec.episode_id,
            spec.tag,
            spec.puzzle_seed,
            player.failed_turn,
            player.error,
        )
    if len(failed) > SHOWN_FAULTS:
        log.warning("%d more episodes failed; their reasons are in the trajectories", len(failed) - SHOWN_FAULTS)


def _check_room(players: "Sequence[_Player]", room: int, max_model_len: int) -> None:
    """End the episodes whose first prompt does not fit."""
    lengths = {player: len(player.buffer) for player in players if player.buffer is not None}
    for player, length in lengths.items():
        if length > room:
            player.stop = Stop.CONTEXT
            log.warning("episode %s: the first prompt has %d tokens, %d fit", player.spec.episode_id, length, room)
    if lengths and min(lengths.values()) > room:
        raise ConfigError(
            f"no prompt fits: the shortest has {min(lengths.values())} tokens, and a reply would end beyond the "
            f"{max_model_len} of actor_rollout_ref.rollout.max_model_len. Raise it, or lower response_length."
        )


def puzzle_hash(env: TextEnv) -> str:
    """The content hash of an environment's current puzzle."""
    text = checked_text(env.puzzle_text(), "puzzle_text")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Player:
    """One episode while it is being played."""

    def __init__(
        self,
        spec: EpisodeSpec,
        make_env: MakeEnv,
        prompter: Prompter,
        template: ChatTemplate | None,
        lost: LostEpisodes,
        env_timeout_s: float | None = None,
    ) -> None:
        self.spec, self.prompter, self.lost, self.env_timeout_s = spec, prompter, lost, env_timeout_s
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        self.used_actions = 0
        self.stop: Stop | None = None
        self.error, self.puzzle_hash = "", ""
        self.version = 0
        self.buffer: TokenBuffer | None = None
        self.images: list[bytes] = []
        self.failed_turn = 0
        heartbeat.beat()
        known = lost.reason(spec.episode_id)
        if known is not None:
            return self._lose(known)
        try:
            with boundary("making the puzzle", None if env_timeout_s is None else env_timeout_s + MAKING_S):
                self.env = make_env(spec.tag)
                self.env.reset(seed=spec.puzzle_seed, options=spec.reset_options())
                checked_text(self.env.state_text(prompter.state_text), "state_text")
                self.puzzle_hash = puzzle_hash(self.env)
                self.messages += prompter.first_messages(self.env)
                for message in self.messages:
                    checked_text(message["content"], "the first prompt")
                self.images += self._see()
        except EnvFault as error:
            return self._fail(error)
        try:
            if template is not None:
                self.buffer = TokenBuffer(template, tuple(self.messages), prompter.opener, self.images)
        except TemplateFault as error:
            self._lose(str(error))

    def _see(self) -> list[bytes]:
        """The picture of the current state, if prompts show one."""
        image = self.env.image()
        return [] if image is None else [to_png(image)]

    def prompt(self) -> Prompt:
        """What the engine is asked to continue."""
        ids = self.buffer.ids() if self.buffer is not None else _NO_IDS
        return Prompt(
            episode_id=self.spec.episode_id,
            messages=tuple(self.messages),
            token_ids=ids,
            opener=self.prompter.opener,
            seed=stream_seed(self.spec.sample_seed, "turn", len(self.turns)),
            images=tuple(self.images),
            action_sep=self.prompter.action_sep,
            reply_order=self.prompter.reply_order,
            context=self.env,
        )

    def play(self, completion: Completion, *, format_penalty: float, room: int) -> None:
        """Take a reply: record its tokens, execute its actions, prepare the next turn or stop."""
        heartbeat.beat()
        if completion.finish_reason == "error":
            return self._lose(completion.text)
        self.version = completion.version
        if self.buffer is not None and completion.token_ids is not None and completion.logprobs is not None:
            self.buffer.append_sampled(completion.token_ids, completion.logprobs)
        try:
            with boundary("the turn", self.env_timeout_s):
                self._execute(completion, format_penalty)
                if self.stop is None:
                    self._next_turn(room)
        except EnvFault as error:
            self._fail(error)

    def _execute(self, completion: Completion, format_penalty: float) -> None:
        prompter = self.prompter
        text = prompter.opener + completion.text
        turn, ended = take_turn(
            self.env,
            prompter,
            text,
            actions_left=prompter.max_actions_per_traj - self.used_actions,
            format_penalty=format_penalty,
            finish_reason=completion.finish_reason,
        )
        self.used_actions += len(turn.executed)
        self.messages.append({"role": "assistant", "content": text})
        self.turns.append(turn)
        self.stop = stop_after(turn, ended, prompter, turns=len(self.turns), used_actions=self.used_actions)

    def _next_turn(self, room: int) -> None:
        """Write the next user message, unless it would not fit."""
        message = self.prompter.next_message(
            self.env,
            turn=len(self.turns) + 1,
            actions_left=self.prompter.max_actions_per_traj - self.used_actions,
            reward=self.turns[-1].reward,
        )
        images = self._see()
        if self.buffer is not None:
            if len(self.buffer) + len(self.buffer.user_delta(message["content"], images)) > room:
                self.stop = Stop.CONTEXT
                return
            self.buffer.append_user(message["content"], images)
        self.messages.append(message)
        self.images += images

    def _fail(self, error: EnvFault) -> None:
        if isinstance(error, EnvCrash):
            self.lost.mark(self.spec.episode_id, error)
        self._lose(str(error))

    def _lose(self, reason: str) -> None:
        """The episode is lost, and with it what was played of it: a lost episode is the same whenever it was lost."""
        self.failed_turn = len(self.turns) + 1
        self.stop, self.error, self.puzzle_hash, self.version = Stop.ERROR, reason, "", 0
        self.turns, self.messages, self.images, self.buffer = [], [], [], None

    def episode(self) -> Episode:
        """The finished episode."""
        tokens = self.buffer.arrays() if self.buffer is not None and self.turns else {}
        return Episode(
            episode_id=self.spec.episode_id,
            tag=self.spec.tag,
            mode=self.prompter.mode,
            state_text=self.prompter.state_text,
            reply_order=self.prompter.reply_order,
            puzzle_seed=self.spec.puzzle_seed,
            noise_seed=self.spec.noise_seed,
            puzzle_hash=self.puzzle_hash,
            group=self.spec.group,
            member=self.spec.member,
            stop=self.stop or Stop.ERROR,
            success=self.stop is Stop.SUCCESS,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            error=self.error,
            version=self.version,
            images=tuple(self.images),
            **tokens,
        )
