"""Build an episode from the conversation and tokens of one player."""

import numpy as np

from spa.envs.base import TextEnv
from spa.envs.limits import checked_text
from spa.envs.pool import EpisodeSpec
from spa.models.vision import to_png
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate, TokenBuffer
from spa.rollout.turns import paid, stop_after, take_turn
from spa.seeds import stream_seed
from spa.types import Completion, Episode, Message, Prompt, StopReason, Turn

_NO_IDS = np.zeros(0, dtype=np.int32)


class EpisodeBuilder:
    """Collects the messages, tokens and turns of one player. `number` is the player's index; None
    in a single-player game."""

    def __init__(
        self, spec: EpisodeSpec, prompter: Prompter, template: ChatTemplate | None
    ) -> None:
        self.spec = spec
        self.prompter = prompter
        self.template = template
        self.number: int | None = None
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        self.begin = 0  # index of the current conversation's first message
        self.images: list[bytes] = []
        self.buffer: TokenBuffer | None = None
        self.used_actions = 0
        self.stop: StopReason | None = None
        self.error = ""
        self.puzzle_hash = ""
        self.version = 0
        self.failed_turn = 0

    def assign_player(self, players: int) -> None:
        """Set the player's number in a game of `players` players."""
        self.number = self.spec.seat % players if players > 1 else None

    def build_prompt(self, env: TextEnv, room: int | None = None) -> None:
        """Append the messages that precede the next response. If the prompt would exceed `room`
        tokens, stop the episode instead."""
        if not self.messages:
            self.messages += self.prompter.first_messages(env)
            for message in self.messages:
                checked_text(message["content"], "the first prompt")
            self.images += _see(env)
            if self.template is not None:
                self.buffer = TokenBuffer(
                    self.template, tuple(self.messages), self.prompter.prefill, self.images
                )
                # A second player's first prompt shows a game in progress and may already be too
                # long.
                if room is not None and len(self.buffer) > room:
                    self.stop = StopReason.CONTEXT
            return
        left = self.prompter.max_actions_per_traj - self.used_actions
        if not self.prompter.history:
            self.build_prompt_alone(env, room, left)
            return
        reward = self.turns[-1].reward
        message = self.prompter.next_message(
            env, turn=len(self.turns) + 1, actions_left=left, reward=reward
        )
        images = _see(env)
        if self.buffer is not None:
            # Check the length before appending: an episode must not end with a prompt that has no
            # response.
            if (
                room is not None
                and len(self.buffer) + len(self.buffer.user_delta(message["content"], images))
                > room
            ):
                self.stop = StopReason.CONTEXT
                return
            self.buffer.append_user(message["content"], images)
        self.messages.append(message)
        self.images += images

    def build_prompt_alone(self, env: TextEnv, room: int | None, left: int) -> None:
        """Begin a new conversation for the next turn, with the rules and the current state, because
        `history` is off. `left` actions remain in the episode. If the prompt would exceed `room`
        tokens, stop the episode instead."""
        messages = self.prompter.first_messages(env, turn=len(self.turns) + 1, actions_left=left)
        if self.buffer is not None and self.template is not None:
            ids = self.template.start(messages, self.prompter.prefill)
            if room is not None and len(ids) > room:
                self.stop = StopReason.CONTEXT
                return
            self.buffer.restart(ids)
        self.begin = len(self.messages)
        self.messages += messages

    def prompt(self, env: TextEnv, limit_s: float | None) -> Prompt:
        """Build the prompt for the engine. `limit_s` is passed on unchanged; see `Prompt`."""
        ids = self.buffer.ids() if self.buffer is not None else _NO_IDS
        turns_left = self.prompter.max_turn - len(self.turns)
        return Prompt(
            episode_id=self.spec.episode_id,
            messages=tuple(self.messages[self.begin :]),
            token_ids=ids,
            prefill=self.prompter.prefill,
            # Each turn has its own stream, so that its samples do not depend on the rest of the
            # batch.
            seed=stream_seed(self.spec.sample_seed, "turn", len(self.turns)),
            images=tuple(self.images),
            mode=self.prompter.mode,
            action_sep=self.prompter.action_sep,
            response_format=self.prompter.response_format,
            turn=len(self.turns),
            turns_left=turns_left,
            continued=self.prompter.history and turns_left > 1,
            actions_left=self.prompter.max_actions_per_traj - self.used_actions,
            max_actions=self.prompter.max_actions_per_turn,
            context=env,
            limit_s=limit_s,
        )

    def append_completion(self, completion: Completion) -> None:
        """Append the tokens of a response."""
        self.version = completion.version
        if (
            self.buffer is not None
            and completion.token_ids is not None
            and completion.logprobs is not None
        ):
            self.buffer.append_sampled(
                completion.token_ids, completion.logprobs, forced=completion.forced
            )

    def step(self, env: TextEnv, completion: Completion, format_penalty: float) -> bool:
        """Execute the actions of a response, and set `stop` if the episode ends. Returns whether
        the game has ended."""
        prompter = self.prompter
        text = prompter.prefill + completion.text
        turn, ended = take_turn(
            env,
            prompter,
            text,
            actions_left=prompter.max_actions_per_traj - self.used_actions,
            format_penalty=format_penalty,
            finish_reason=completion.finish_reason,
        )
        self.used_actions += len(turn.executed)
        self.messages.append({"role": "assistant", "content": text})
        self.turns.append(turn)
        self.stop = stop_after(
            turn, ended, prompter, turns=len(self.turns), used_actions=self.used_actions
        )
        return ended

    def receive(self, reward: float) -> None:
        """Add a reward from another player's move to this player's last turn, if there is one."""
        if reward and self.turns:
            self.turns[-1] = paid(self.turns[-1], reward)

    def fail(self, reason: str) -> None:
        """Mark the episode as failed and drop its turns, so that the result does not depend on the
        turn in which it failed."""
        self.failed_turn = len(self.turns) + 1
        self.stop = StopReason.ERROR
        self.error = reason
        self.puzzle_hash = ""
        self.version = 0
        self.turns = []
        self.messages = []
        self.images = []
        self.buffer = None

    def episode(self) -> Episode:
        """Return the finished episode."""
        # Without a turn, the buffer contains only a prompt, from which nothing can be learned.
        tokens = self.buffer.arrays() if self.buffer is not None and self.turns else {}
        return Episode(
            episode_id=self.spec.episode_id,
            tag=self.spec.tag,
            mode=self.prompter.mode,
            state_text=self.prompter.state_text,
            response_format=self.prompter.response_format,
            history=self.prompter.history,
            puzzle_seed=self.spec.puzzle_seed,
            noise_seed=self.spec.noise_seed,
            puzzle_hash=self.puzzle_hash,
            group=self.spec.group,
            member=self.spec.member,
            seat=self.number,
            stop=self.stop or StopReason.ERROR,
            success=self.stop is StopReason.SUCCESS,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            error=self.error,
            version=self.version,
            images=tuple(self.images),
            **tokens,
        )


def _see(env: TextEnv) -> list[bytes]:
    """Return the image of the current state as a list of one PNG file; empty if the environment
    shows no image."""
    image = env.image()
    return [] if image is None else [to_png(image)]
