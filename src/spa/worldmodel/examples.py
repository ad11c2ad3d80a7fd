"""Make world-model examples from episodes: relabel responses, shuffle states for the control, split
by puzzle. `parquet.py` writes them to files."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from spa.errors import ConfigError, DataError
from spa.formats.base import Relabelled
from spa.formats.blocks import find_block, replace_state
from spa.formats.plans import Option, imagined, with_options
from spa.formats.registry import relabel_turn
from spa.seeds import derange, stream
from spa.types import Episode, Message, SFTExample, StopReason, Turn
from spa.worldmodel.parquet import write_parquet

__all__ = [
    "assistant_positions",
    "block_of",
    "by_reason",
    "corrected_messages",
    "coverage_sample",
    "episode_examples",
    "hidden_share",
    "is_counterfactual",
    "make_example",
    "shuffle_next_states",
    "split_by_puzzle",
    "with_responses",
    "write_parquet",
]

EPISODE_ERROR = "episode_error"
_WORD = re.compile(r"\w+")


def by_reason(counts: Mapping[str, int]) -> str:
    """Format the counts of dropped examples as text: "3 no_prediction, 1 duplicate", or "none"."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def episode_examples(
    episode: Episode, *, action_sep: str, options: Sequence[Sequence[Option]] = ()
) -> tuple[list[SFTExample], Counter[str]]:
    """Return one example per turn that can be relabelled, and the number of dropped turns by
    reason.

    An example's prompt is the conversation before the turn, with earlier responses corrected where
    possible. `options` has, for each turn, the plans from which its response chooses
    (`spa.worldmodel.branches.turn_options`). Episodes that ended in an error yield no examples.

    Raises DataError if the episode has fewer assistant messages than turns.
    """
    if episode.stop is StopReason.ERROR:
        # Count a failed episode without turns as one dropped turn.
        return [], Counter({EPISODE_ERROR: max(1, len(episode.turns))})
    responses = assistant_positions(episode)
    corrected = _corrected(episode, action_sep, options)
    messages = _with_responses(episode.messages, responses, corrected)
    examples: list[SFTExample] = []
    dropped: Counter[str] = Counter()
    for index, (turn, relabelled) in enumerate(zip(episode.turns, corrected, strict=True)):
        if relabelled.text is None:
            dropped[relabelled.reason] += 1
            continue
        examples.append(
            make_example(episode, index, turn, messages[: responses[index]], relabelled.text)
        )
    return examples, dropped


def corrected_messages(episode: Episode, *, action_sep: str) -> tuple[Message, ...]:
    """Return the episode's messages. Every response that can be relabelled is replaced by its
    corrected text."""
    corrected = _corrected(episode, action_sep)
    return _with_responses(episode.messages, assistant_positions(episode), corrected)


def _corrected(
    episode: Episode, action_sep: str, options: Sequence[Sequence[Option]] = ()
) -> list[Relabelled]:
    known = options or [()] * len(episode.turns)
    return [
        relabel_turn(turn, action_sep=action_sep, order=episode.response_format, options=own)
        for turn, own in zip(episode.turns, known, strict=True)
    ]


def assistant_positions(episode: Episode) -> list[int]:
    """Return the indices of the responses in the episode's messages. Raises DataError if there are
    fewer responses than turns."""
    positions = [
        index for index, message in enumerate(episode.messages) if message["role"] == "assistant"
    ]
    if len(positions) < len(episode.turns):
        raise DataError(
            f"Episode {episode.episode_id} has {len(episode.turns)} turns but only "
            f"{len(positions)} assistant messages, because the trajectory file is "
            "incomplete; generate the file again"
        )
    return positions


def _with_responses(
    messages: Sequence[Message], positions: Sequence[int], corrected: Sequence[Relabelled]
) -> tuple[Message, ...]:
    out = list(messages)
    for position, relabelled in zip(positions, corrected, strict=False):
        if relabelled.text is not None:
            out[position] = {"role": "assistant", "content": relabelled.text}
    return tuple(out)


def make_example(
    episode: Episode, index: int, turn: Turn, prompt: tuple[Message, ...], response: str
) -> SFTExample:
    """Build the example of turn `index`, with `response` after the conversation `prompt`."""
    return SFTExample(
        prompt=prompt,
        response=response,
        tag=episode.tag,
        episode_id=episode.episode_id,
        turn=index,
        puzzle_seed=episode.puzzle_seed,
        puzzle_hash=episode.puzzle_hash,
        success=episode.success,
        reward=turn.reward,
        state=turn.target,
        next_state=turn.next_target,
        executed=turn.executed,
        predicted=turn.response.prediction,
        observed=turn.response.observation,
        images=episode.images[: index + 1],  # one per turn so far
        extra={
            "state_text": episode.state_text,
            "noise_seed": episode.noise_seed,
            "group": episode.group,
            "member": episode.member,
            "penalty": turn.penalty,
            "score": episode.score,
        },
    )


def hidden_share(examples: Sequence[SFTExample]) -> float:
    """Return the share, from 0 to 1, of words in the true states that no system or user message of
    the prompt contains. Skips examples whose prompts show images."""
    words = 0
    hidden = 0
    for example in examples:
        if example.images:
            continue
        # Earlier responses are not searched: the model writes them in play, so it can only have
        # guessed a word that appears nowhere else.
        texts = [message["content"] for message in example.prompt if message["role"] != "assistant"]
        shown = {word for text in texts for word in _WORD.findall(text)}
        target = _WORD.findall(example.state)
        words += len(target)
        hidden += sum(word not in shown for word in target)
    return hidden / words if words else 0.0


def split_by_puzzle(
    examples: Sequence[SFTExample],
    *,
    val_fraction: float,
    seed: int,
    trained: Collection[str] = (),
    validated: Collection[str] = (),
) -> tuple[list[SFTExample], list[SFTExample]]:
    """Split examples into training and validation sets, so that all examples of a puzzle are in one
    set.

    `val_fraction` is the share of puzzles for validation, rounded so that each set has at least one
    puzzle. If there is only one puzzle, all examples are for training. The choice depends on the
    set of puzzles and the seed, not on the order of the examples. `trained` and `validated` are the
    puzzles of earlier rounds of the same model, which keep their set. Raises ConfigError unless 0 <
    val_fraction < 1.
    """
    if not 0 < val_fraction < 1:
        raise ConfigError(f"val_fraction must be above 0 and below 1, got {val_fraction}")
    # Sort, because the order of a set is not reproducible.
    puzzles = sorted({example.puzzle_hash for example in examples}.difference(trained, validated))
    count = min(max(round(val_fraction * len(puzzles)), 1), len(puzzles) - 1)
    order = stream(seed, "world_model_split").permutation(len(puzzles))
    held_out = {puzzles[index] for index in order[: max(count, 0)]}.union(validated)
    train = [example for example in examples if example.puzzle_hash not in held_out]
    val = [example for example in examples if example.puzzle_hash in held_out]
    return train, val


def shuffle_next_states(examples: Sequence[SFTExample], seed: int) -> list[SFTExample]:
    """Build the control data set, in which every prediction block has the next state of another
    example.

    The states are permuted over all examples of an environment tag, so their distribution is
    unchanged. Every example gets another text than the true one, unless more than half of the
    examples share a text. Responses in the prompts of later examples contain the same shuffled
    text. `next_state` and all other fields remain true; `extra["shuffled"]` is set.

    Call it on the training examples after the split. Raises DataError for an example without
    exactly one prediction block.
    """
    responses = list(examples)
    for tag in sorted({example.tag for example in examples}):
        indices = [index for index, example in enumerate(examples) if example.tag == tag]
        states = [block_of(examples[index], "prediction") for index in indices]
        donors = derange(states, stream(seed, f"shuffled_next_states/{tag}"))
        for index, donor in zip(indices, donors, strict=True):
            response = replace_state(examples[index].response, "prediction", states[donor])
            responses[index] = replace(
                examples[index],
                response=response,
                extra={**examples[index].extra, "shuffled": True},
            )
    shuffled = _shuffled_options(responses, seed)
    return with_responses(shuffled, [example.response for example in shuffled])


def _shuffled_options(examples: Sequence[SFTExample], seed: int) -> list[SFTExample]:
    """Permute the states of listed plans over all examples of a tag. The prediction is set to the
    new state of the chosen plan."""
    out = list(examples)
    for tag in dict.fromkeys(example.tag for example in examples):
        known = [
            (index, imagined(example.response))
            for index, example in enumerate(examples)
            if example.tag == tag
        ]
        states = [state for _, options in known for _, state in options]
        dealt = (
            iter(derange(states, stream(seed, f"shuffled_options/{tag}"))) if states else iter(())
        )
        for index, options in known:
            if options:
                example = examples[index]
                others = [(plan, states[next(dealt)]) for plan, _ in options]
                text = with_options(example.response, others, example.executed)
                chosen = next((state for plan, state in others if plan == example.executed), None)
                text = text if chosen is None else replace_state(text, "prediction", chosen)
                out[index] = replace(example, response=text)
    return out


def is_counterfactual(example: SFTExample) -> bool:
    """Return whether the example describes a plan that was tried in a copy
    (`spa.worldmodel.branches`). Later prompts do not contain the response of such an example."""
    return bool(example.extra.get("branch"))


def coverage_sample(examples: Sequence[SFTExample], seed: int) -> list[SFTExample]:
    """Resample the examples with replacement, so that rare outcomes, such as a blocked move, are as
    frequent as common ones.

    Examples are of the same kind if they have the same tag and executed actions, and both or
    neither changed the state. Each of the n examples of a kind has the weight 1 / n. The number of
    examples and their order are kept.
    """
    kinds = [
        (example.tag, example.executed, example.state != example.next_state) for example in examples
    ]
    counts = Counter(kinds)
    weights = np.array([1.0 / counts[kind] for kind in kinds])
    # Sample by weight: a point on the cumulative sum selects the example whose interval contains
    # it.
    ends = np.cumsum(weights)
    points = stream(seed, "coverage").random(len(examples)) * (ends[-1] if len(examples) else 0.0)
    places = np.minimum(np.searchsorted(ends, points, side="right"), len(examples) - 1)
    return [examples[place] for place in np.sort(places)]


def block_of(example: SFTExample, tag: str) -> str:
    """Return the text of a state block of the response. Raises DataError if there is not exactly
    one."""
    span = find_block(example.response, tag)
    if span is None:
        raise DataError(
            f"Episode {example.episode_id}, turn {example.turn}: the response must have exactly one "
            f"{tag} block; run `spa data filter` to remove other responses"
        )
    # Remove only the newlines that relabelling put around the state.
    return example.response[span[0] : span[1]].removeprefix("\n").removesuffix("\n")


def with_responses(examples: Sequence[SFTExample], responses: Sequence[str]) -> list[SFTExample]:
    """Return the examples with other responses, also in the prompts of later examples."""
    # Counterfactual examples repeat turn numbers, and no later prompt contains their responses.
    by_turn = {
        (example.episode_id, example.turn): text
        for example, text in zip(examples, responses, strict=True)
        if not is_counterfactual(example)
    }
    return [
        replace(example, response=text, prompt=_rewritten_history(example, by_turn))
        for example, text in zip(examples, responses, strict=True)
    ]


def _rewritten_history(
    example: SFTExample, responses: dict[tuple[str, int], str]
) -> tuple[Message, ...]:
    """Return the example's prompt with its earlier responses replaced. `responses` maps (episode
    id, turn) to the new text; other responses are kept."""
    history: list[Message] = []
    turn = 0
    for message in example.prompt:
        if message["role"] == "assistant":
            content = responses.get((example.episode_id, turn), message["content"])
            history.append({"role": "assistant", "content": content})
            turn += 1
        else:
            history.append(message)
    return tuple(history)
