"""Dataclasses that several packages share, and the protocol of engines.

Shape letters: B sequences, T tokens, A = T - 1 predictions, L sampled tokens of one response, G
groups, K members per group.

There is one index convention. Episode arrays are token-aligned, `[T]`: entry t describes token t.
Training arrays are prediction-aligned, `[B, A]`: entry a describes the prediction of token a + 1
from tokens 0..a. Only `spa.training.batch` converts from one to the other.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:  # importing torch is slow, and playing environments does not need it
    import torch

Message = dict[str, str]
"""A chat message: {"role": "system" | "user" | "assistant", "content": text}."""

IMAGE = "<image>"
"""Placeholder for an image in a message's text. The images are PNG files, stored next to the
messages in the order of their placeholders."""

Metrics = dict[str, float]

PromptMode = Literal["base", "add_worldmodel"]
"""Blocks of a response. "base": thoughts and an answer. "add_worldmodel": also an observation of
the current state and a prediction of the next one."""


class StopReason(StrEnum):
    """Reason why an episode ended."""

    SUCCESS = "success"  # the environment reports that the goal is reached
    # the environment ended without reaching the goal (fell into a hole, wrong answer)
    FAILURE = "failure"
    MAX_ACTIONS = "action_cap"  # the trajectory's budget of actions is used up
    MAX_TURNS = "turn_cap"  # the limit of `max_turn` responses is reached
    CONTEXT = "context"  # the next turn would not fit into max_model_len
    # the environment, the engine or the chat template failed; the episode is reported, and training
    # skips it
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. They define the distribution that log-probs refer to: the softmax of the
    logits divided by the temperature, after top-k and then top-p filtering. Log-probs of greedy
    sampling refer to the raw logits."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = -1  # -1 keeps all tokens
    max_tokens: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation that an engine continues with a response.

    Example: Prompt(episode_id="train/3/17/0", messages=[...], token_ids=array([1, ...]),
    prefill="<think>", seed=123)
    """

    # the same for all turns of an episode, so that an engine can keep the episode's KV cache
    episode_id: str
    messages: tuple[Message, ...]
    # int32 [T], the conversation so far, including generation prompt and prefill; empty for engines
    # without tokens
    token_ids: np.ndarray
    prefill: str  # text with which the response must begin (already part of token_ids)
    seed: int  # seed of this prompt's own sampling stream
    images: tuple[bytes, ...] = ()  # the images of the messages, as PNG files
    # The next three describe the requested response. Planners and policies without a model use
    # them; engines ignore them.
    mode: PromptMode = "base"
    action_sep: str = "||"  # separator of the actions in an answer
    response_format: str = "prediction_first"
    turn: int = 0  # index of the turn in the episode, from 0
    turns_left: int | None = None  # turns left in the episode, including this one; None: unknown
    continued: bool = True  # a later turn may continue this conversation, so caching is worthwhile
    # actions left in the episode; None: no limit besides `max_actions`
    actions_left: int | None = None
    max_actions: int | None = None  # largest number per response; None: no known limit
    # the live environment, for policies and planners; never sent to a model or a server
    context: Any = None
    # seconds that policies and planners may spend on `context` per response; None: no limit
    limit_s: float | None = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's output for one prompt."""

    text: str  # without the prefill and without the end marker
    # int32 [L], end marker included if the response ends with it; None from an engine without
    # tokens (an API, scripted play without a chat template) and after an error
    token_ids: np.ndarray | None
    # float32 [L], log-probs of the ids under the distribution that they were sampled from
    logprobs: np.ndarray | None
    finish_reason: Literal["stop", "length", "error"]
    version: int = 0  # version of the weights that produced it
    forced: int = 0  # number of leading ids that were given to the engine; it sampled the others
    error: Exception | None = None  # error of the environment, if a policy or planner called it


class Engine(Protocol):
    """Interface of all engines, which turn prompts into completions."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per prompt, in the same order."""
        ...

    def load_weights(self, model: torch.nn.Module, *, version: int) -> None:
        """Switch to the weights of `model`, and drop all caches computed with the old weights.
        Later completions carry `version`."""
        ...

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop the caches of finished episodes."""
        ...

    def close(self) -> None:
        """Release memory, processes and connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """The parts of a response. A part is None if its block is missing or not closed. Except in mode
    "base", a repeated block also gives None.

    Example: ParsedResponse(think="go left", observation=None, prediction=None, actions=("Left", "Up"),
    well_formed=True)
    """

    think: str | None
    observation: str | None
    prediction: str | None
    actions: tuple[str, ...]  # at most max_actions_per_turn; empty if there is no answer block
    # True if the response follows the requested format (`parse_response`) and has at least one
    # action
    well_formed: bool
    # (actions, predicted state) of each imagined plan
    options: tuple[tuple[tuple[str, ...], str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: the state that was shown, the response, and what the environment did."""

    state: str  # as shown to the model
    actions_left: int
    response_text: str  # prefill included
    response: ParsedResponse
    # the executed actions in order, by the environment's own names; free-text actions as written
    executed: tuple[str, ...]
    reward: float  # sum over the executed actions
    penalty: float  # format penalty, 0 or negative
    next_state: str
    # one per executed action: action_is_valid, action_is_effective, success
    infos: tuple[dict[str, Any], ...] = ()
    finish_reason: str = "stop"
    world_state: str | None = None  # the correct observation of `state`; None: `state` itself
    # the correct prediction, which describes `next_state`; None: `next_state` itself
    next_world_state: str | None = None
    # unweighted values of the terms of a user-defined reward; the game's own reward may be one of
    # them
    reward_terms: dict[str, float] | None = None

    @property
    def score(self) -> float:
        """Sum of reward and penalty."""
        return self.reward + self.penalty

    @property
    def target(self) -> str:
        """The correct observation of a world-model response."""
        return self.state if self.world_state is None else self.world_state

    @property
    def next_target(self) -> str:
        """The correct prediction of a world-model response."""
        return self.next_state if self.next_world_state is None else self.next_world_state


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Episode:
    """One played episode, as text and as tokens.

    `token_ids` is append-only. It contains the tokens that the chat template produced for prompts,
    and the sampled ids exactly as the engine returned them. `token_ids` and the arrays of the same
    length are None for text-only engines.
    """

    episode_id: str
    tag: str  # environment tag, e.g. "SimpleSokoban"
    mode: str  # prompt mode: "base" | "add_worldmodel"
    state_text: str  # "grid" | "coords" | "grid_and_coords"
    puzzle_seed: int
    noise_seed: int
    puzzle_hash: str  # content hash of the puzzle
    group: int
    member: int
    stop: StopReason
    success: bool
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]  # as sent, with the responses as sampled
    token_ids: np.ndarray | None = None  # int32   [T]
    sampled: np.ndarray | None = None  # bool    [T]  True exactly on ids the engine sampled
    logprobs: np.ndarray | None = None  # float32 [T]  0 where not sampled
    turn_index: np.ndarray | None = None  # int16   [T]  -1 before the first turn
    error: str = ""
    version: int = 0
    images: tuple[bytes, ...] = ()  # the images in the messages, as PNG files
    response_format: str = "prediction_first"  # format of world-model responses
    # False: each turn is a separate conversation; `messages` and tokens contain them one after the
    # other
    history: bool = True
    seat: int | None = None  # the player's index in a game of several players; otherwise None

    @property
    def score(self) -> float:
        """Sum of rewards and penalties."""
        return sum(turn.score for turn in self.turns)

    def to_json(self) -> dict[str, Any]:
        """Convert the episode, text and tokens, to a JSON-compatible dict; `from_json` restores an
        equal episode."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "images":
                if value:
                    out["images"] = [base64.b64encode(image).decode() for image in value]
                continue
            # Default values of these three fields are left out, which makes the files of most runs
            # smaller.
            if (item.name, value) in (
                ("response_format", "prediction_first"),
                ("history", True),
                ("seat", None),
            ):
                continue
            if isinstance(value, np.ndarray):
                value = value.tolist()
            elif item.name == "turns":
                value = [_turn_to_json(turn) for turn in self.turns]
            elif isinstance(value, StopReason):
                value = value.value
            elif item.name == "messages":
                value = list(self.messages)
            out[item.name] = value
        return out

    def __repr__(self) -> str:
        """Describe the episode by tag, puzzle and outcome, without its long texts and tokens."""
        outcome = f"stop={self.stop.value!r}, success={self.success}, score={self.score:g}"
        turns = len(self.turns)
        return f"Episode({self.tag!r}, puzzle_seed={self.puzzle_seed}, turns={turns}, {outcome})"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Episode:
        """Restore an episode from the dict that `to_json` returned."""
        data = dict(data)
        # JSON has neither int16 nor float32, so the types are restored.
        dtypes = {
            "token_ids": np.int32,
            "sampled": np.bool_,
            "logprobs": np.float32,
            "turn_index": np.int16,
        }
        for name, dtype in dtypes.items():
            if data.get(name) is not None:
                data[name] = np.asarray(data[name], dtype=dtype)
        data["stop"] = StopReason(data["stop"])
        data["messages"] = tuple(data["messages"])
        data["turns"] = tuple(_turn_from_json(turn) for turn in data["turns"])
        data["images"] = tuple(base64.b64decode(image) for image in data.get("images", ()))
        return cls(**data)


def tokens_in(episodes: Sequence[Episode]) -> int:
    """Return the total number of tokens of the episodes, including prompts and environment text.
    Episodes without tokens count as 0."""
    return sum(len(episode.token_ids) for episode in episodes if episode.token_ids is not None)


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    """Convert a turn to a JSON-compatible dict; optional fields without a value are left out."""
    data: dict[str, Any] = asdict(turn)
    if not data["response"]["options"]:
        del data["response"]["options"]
    return {
        name: value
        for name, value in data.items()
        if value is not None or name not in ("world_state", "next_world_state", "reward_terms")
    }


def _turn_from_json(data: dict[str, Any]) -> Turn:
    response = dict(data["response"])
    response["actions"] = tuple(response["actions"])
    response["options"] = tuple((tuple(plan), state) for plan, state in response.get("options", ()))
    return Turn(
        **{
            **data,
            "response": ParsedResponse(**response),
            "executed": tuple(data["executed"]),
            "infos": tuple(data["infos"]),
        }
    )


def _check(name: str, value: torch.Tensor | None, shape: tuple[int, ...], dtype: str) -> None:
    if value is None:
        return
    # Dtypes are compared by name, so that this module need not import torch.
    if tuple(value.shape) != shape or str(value.dtype) != f"torch.{dtype}":
        raise ValueError(
            f"{name}: expected {dtype} {shape}, got {value.dtype} {tuple(value.shape)}"
        )


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Token sequences as right-padded tensors, ready for the models.

    With right padding, a causal model needs no attention mask: padding comes after every real
    token.
    """

    input_ids: torch.Tensor  # int64 [B, T]
    lengths: torch.Tensor  # int64 [B]     tokens per row, without padding
    mask: torch.Tensor  # bool  [B, A]  True where the prediction counts in the loss
    images: Any = None  # the rows' images as in spa.models.vision; None without images

    def __post_init__(self) -> None:
        rows, tokens = self.input_ids.shape
        _check("input_ids", self.input_ids, (rows, tokens), "int64")
        _check("lengths", self.lengths, (rows,), "int64")
        _check("mask", self.mask, (rows, tokens - 1), "bool")

    def __len__(self) -> int:
        return self.input_ids.shape[0]


@dataclass(frozen=True, kw_only=True)
class EpisodeBatch(TokenBatch):
    """Episodes as tensors. `mask` is True where the predicted token was sampled, or where
    `actor.loss_mask` selects it.

    `rl_weights` and `ce_weights` are the weights of each token in the policy loss and in the
    cross-entropy losses. An update divides the sums of weighted losses by numbers of tokens or rows
    in the whole mini-batch. Methods (`spa.methods`) change the weights.
    """

    # int64 [B, A] turn index of the predicted token. The tokens of a prompt have the turn of the
    # response that follows, but -1 in the first prompt, in padding and in replayed examples.
    turns: torch.Tensor
    turn_ends: torch.Tensor  # bool    [B, A]  True on the last sampled token of each turn
    # float32 [B, A] nonzero only on the last sampled token of the episode (or of each turn);
    # normalization may make other tokens nonzero
    rewards: torch.Tensor
    scores: torch.Tensor  # float32 [B]     un-normalized score of the episode
    group_ids: torch.Tensor  # int64   [B]
    tag_ids: torch.Tensor  # int64   [B]     environment tag, for `inductive` normalization
    # float32 [B, A] the engine's log-probs of the sampled tokens; 0 elsewhere
    sampler_logprobs: torch.Tensor
    rl_weights: torch.Tensor  # float32 [B, A]  weights of the policy loss; 0 outside the mask
    ce_weights: (
        torch.Tensor
    )  # float32 [B, A]  weights of the cross-entropy loss; 0 where there is none
    # int64 [B] index of the row's episode in its step; -1 for replayed examples
    episodes: torch.Tensor
    starts: torch.Tensor  # int64   [B]     position of the row's first token in its episode
    # bool [B] truncated by max_turn or max_model_len, not ended by the game
    truncated: torch.Tensor | None = None
    # int64 [B, A] equal on tokens of turns that begin in the same state with the same number of
    # actions left
    anchors: torch.Tensor | None = None
    # bool [B, A] True where the predicted token was sampled; None: the same as `mask`
    sampled: torch.Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, dtype in (
            ("scores", "float32"),
            ("group_ids", "int64"),
            ("tag_ids", "int64"),
            ("episodes", "int64"),
            ("starts", "int64"),
            ("truncated", "bool"),
        ):
            _check(name, getattr(self, name), (len(self),), dtype)
        for name, dtype in (
            ("turns", "int64"),
            ("turn_ends", "bool"),
            ("rewards", "float32"),
            ("sampler_logprobs", "float32"),
            ("rl_weights", "float32"),
            ("ce_weights", "float32"),
            ("anchors", "int64"),
        ):
            _check(name, getattr(self, name), tuple(self.mask.shape), dtype)

    @property
    def played(self) -> torch.Tensor:
        """bool [B]: True for rows of played episodes, False for replayed examples."""
        return self.episodes >= 0


@dataclass(frozen=True, kw_only=True)
class ScoredBatch(EpisodeBatch):
    """Episodes with model outputs from before this step's updates: log-probs of the actor (old) and
    of the reference model, and state values of the critic."""

    old_logprobs: torch.Tensor  # float32 [B, A]
    ref_logprobs: torch.Tensor | None = None  # float32 [B, A]
    values: torch.Tensor | None = None  # float32 [B, A]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("old_logprobs", "ref_logprobs", "values"):
            _check(name, getattr(self, name), tuple(self.mask.shape), "float32")


@dataclass(frozen=True, kw_only=True)
class PPOBatch(ScoredBatch):
    """Episodes with everything that a policy or value update needs."""

    advantages: torch.Tensor  # float32 [B, A]
    returns: torch.Tensor  # float32 [B, A]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("advantages", "returns"):
            _check(name, getattr(self, name), tuple(self.mask.shape), "float32")


@dataclass(frozen=True, kw_only=True)
class MiniBatch(PPOBatch):
    """The rows of one optimizer step. Its weights are normalized over the whole mini-batch, so the
    loss is a plain sum over tokens, however the rows are split into micro-batches."""

    token_weights: (
        torch.Tensor
    )  # float32 [B, A]  weights of a mean over the mask, without `rl_weights`

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("token_weights", self.token_weights, tuple(self.mask.shape), "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTExample:
    """One SFT example: the conversation before an assistant turn, and the corrected response."""

    prompt: tuple[Message, ...]
    response: str
    tag: str
    episode_id: str
    turn: int
    puzzle_seed: int
    puzzle_hash: str
    success: bool
    reward: float
    # the correct observation: the shown state, unless the environment defines another text
    state: str
    next_state: str
    executed: tuple[str, ...] = ()
    predicted: str | None = None  # what the model wrote, before relabelling
    observed: str | None = None
    images: tuple[bytes, ...] = ()  # the images in the prompt, as PNG files
    extra: dict[str, Any] = field(default_factory=dict)
