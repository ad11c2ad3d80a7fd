"""Convert world-model examples to token sequences with a loss mask (`sft.data.loss_on`).

Examples of one episode are prefixes of each other: the prompt of turn 3 contains turns 1 and 2.
Merging them into one sequence, with the loss of every example, reduces the computation to a third.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from spa.errors import ConfigError
from spa.formats.blocks import find_block
from spa.plugins import defined_by_methods, load_setting
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import tokens_touching
from spa.seeds import stream
from spa.types import IMAGE, Message, SFTExample

SFTMask = Callable[[Message, Sequence[int], ChatTemplate], list[bool]]
"""Function (message, its token ids, template) -> for each token, True if it contributes to the
loss.

A message with role assistant is a trained response, with its end marker and without its prefill. A
message with role user is the environment's text before a trained response. The first prompt never
contributes to the loss.
"""


def response(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """Select all tokens of responses."""
    return [message["role"] == "assistant"] * len(ids)


def states_only(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """Select the tokens of a response that overlap a state block."""
    spans = [find_block(message["content"], tag) for tag in ("observation", "prediction")]
    if message["role"] == "user" or spans == [None, None]:
        return [False] * len(ids)
    # Spans are character offsets in the response's text, which excludes the end marker.
    body = ids[: len(ids) - len(template.end_ids)]
    touching = tokens_touching(body, [span for span in spans if span], template)
    return touching + [False] * len(template.end_ids)


def no_states(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """Select the tokens of a response outside its state blocks."""
    if message["role"] == "user":
        return [False] * len(ids)
    return [not inside for inside in states_only(message, ids, template)]


SFT_MASKS: Mapping[str, SFTMask] = {
    "response": response,
    "states_only": states_only,
    "no_states": no_states,
}


def sft_mask(name: str) -> SFTMask:
    """Return the mask named `name`: a built-in one, one that a file of this name in `spa.methods`
    defines, or the user's own as `module:name`. Raises ConfigError if there is none."""
    masks = {**SFT_MASKS, **defined_by_methods("sft_mask")}
    return masks[name] if name in masks else load_setting("sft.data.loss_on", name, masks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One training sequence.

    `token_ids` is int32 [T]. `mask` is bool [T], True for tokens that contribute to the loss.
    `examples` is the number of data examples that were merged into the sequence. `responses` has
    the first token and the exclusive last token of each of their responses, and `prefill` is the
    text that precedes them.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    examples: int
    images: tuple[bytes, ...] = ()  # PNG files of the images in the prompt
    responses: tuple[tuple[int, int], ...] = ()
    prefill: str = ""


def training_sequences(
    examples: Sequence[SFTExample],
    template: ChatTemplate,
    *,
    max_length: int,
    merge_turns: bool,
    loss_on: str = "response",
    truncate: bool = True,
) -> tuple[list[TrainingSequence], int]:
    """Tokenize all examples, in order. Also returns the number of examples that were dropped
    because they do not fit into `max_length` tokens.

    If an example is too long, its oldest responses are removed, each as a whole. It is dropped if
    its last turn alone does not fit, or if `truncate` is False. Merging (`merge_turns`) drops no
    example: an episode that does not fit into one sequence gets several.
    """
    mask_of = sft_mask(loss_on)
    groups: dict[str, list[SFTExample]] = {}
    for index, example in enumerate(examples):
        # A counterfactual example (a plan tried in a copy of the game) forms a separate group. No
        # later turn continues it, so within its episode's group it would split a run of
        # `_mergeable`.
        line = f"{example.episode_id}#{example.extra.get('branch', 0)}"
        groups.setdefault(line if merge_turns else str(index), []).append(example)
    sequences = []
    dropped = 0
    for group in groups.values():
        for run in _mergeable(sorted(group, key=lambda example: example.turn)):
            # Examples that fit keep their whole conversation. Only longer ones are truncated.
            whole, fitting = _longest_that_fits(run, template, max_length, mask_of)
            sequences += [] if whole is None else [whole]
            part = run[fitting:]
            if not truncate:
                dropped += len(part)
                continue
            made: list[TrainingSequence] = []
            while part:
                # The sequence contains the last examples, up to the length limit. The next
                # iteration makes a sequence of the examples before them.
                sequence = _sequence(part, template, max_length, mask_of)
                if sequence is None:
                    part = part[:-1]
                    dropped += 1
                else:
                    made.append(sequence)
                    part = part[: -sequence.examples]
            # The sequences were made from the last examples back to the first.
            sequences += reversed(made)
    return sequences, dropped


def spread_evenly(examples: Sequence[int], size: int, order: Sequence[int]) -> list[list[int]]:
    """Return batches of sequence indices with nearly equal numbers of examples: at most `size` per
    batch, unless a single sequence has more.

    `examples` has the number of examples of each sequence. `order` is a permutation of the indices;
    it is the order in which sequences of equal size are assigned. There are at least
    ceil(sum(examples) / size) batches; there may be more, because sequences are not split. Their
    number depends only on `examples` and `size`.
    """
    # Balance greedily: the largest sequences first, each into the emptiest batch.
    largest_first = sorted(order, key=lambda index: -examples[index])
    count = -(-sum(examples) // size)
    while True:
        batches: list[list[int]] = [[] for _ in range(count)]
        loads = [(0, number) for number in range(count)]  # the emptiest batch comes first
        for index in largest_first:
            load, number = loads[0]
            batches[number].append(index)
            heapq.heapreplace(loads, (load + examples[index], number))
        # A sequence that is larger than a batch gets a batch of its own.
        if all(load <= size or len(batches[number]) == 1 for load, number in loads):
            # Sequences larger than a batch inflate `count`, so some batches may be empty.
            return [batch for batch in batches if batch]
        count += 1


def batch_order(
    examples: Sequence[int], size: int, *, seed: int, skip: int = 0
) -> Iterator[list[int]]:
    """Yield batches of sequence indices endlessly (see `spread_evenly`). Every epoch has each
    sequence once, in an order from its own random stream. The first `skip` batches are skipped, so
    that a resumed run trains on the same batches as an uninterrupted one."""
    epoch = 0
    passed = 0
    while True:
        rng = stream(seed, "sft/order", epoch)
        batches = spread_evenly(examples, size, rng.permutation(len(examples)).tolist())
        # The sizes of sequences largely determine which batch they are in, so the order of batches
        # is shuffled, too.
        for number in rng.permutation(len(batches)):
            if passed >= skip:
                yield batches[number]
            passed += 1
        epoch += 1


def _mergeable(examples: list[SFTExample]) -> list[list[SFTExample]]:
    """Split examples into runs in which each conversation begins with the previous one, including
    its response."""
    runs: list[list[SFTExample]] = []
    for example in examples:
        if runs:
            before = runs[-1][-1]
            # Prompts are compared as text: an example with another history begins a new run.
            conversation = (*before.prompt, {"role": "assistant", "content": before.response})
            if example.prompt[: len(conversation)] == conversation:
                runs[-1].append(example)
                continue
        runs.append([example])
    return runs


def _longest_that_fits(
    run: list[SFTExample], template: ChatTemplate, max_length: int, mask_of: SFTMask
) -> tuple[TrainingSequence | None, int]:
    """Find the longest prefix of a run that fits without truncation. Returns its sequence (None if
    not even one example fits) and its number of examples."""
    best: TrainingSequence | None = None
    low, high = 0, len(run) + 1  # `low` examples fit, `high` do not
    count = len(run)  # most runs fit as a whole
    while high - low > 1:
        sequence = _sequence(run[:count], template, None, mask_of)
        assert sequence is not None
        if len(sequence.token_ids) <= max_length:
            best, low = sequence, count
        else:
            high = count
        count = (low + high) // 2
    return best, low


def _sequence(
    examples: list[SFTExample], template: ChatTemplate, max_length: int | None, mask_of: SFTMask
) -> TrainingSequence | None:
    """Build one sequence from `examples`. The oldest responses, and thereby their loss, are removed
    until it fits. None if the last turn alone does not fit."""
    last = examples[-1]
    prefill = _prefill_of(last.response)
    messages = (*last.prompt, {"role": "assistant", "content": last.response})
    trained = {
        len(example.prompt) for example in examples
    }  # positions of the responses that contribute to the loss
    while True:
        head = 2 if messages[0]["role"] == "system" else 1
        ids, mask, responses = _tokenize(
            messages, head, trained, template, prefill, mask_of, last.images
        )
        if max_length is None or len(ids) <= max_length:
            return TrainingSequence(
                token_ids=np.asarray(ids, np.int32),
                mask=np.asarray(mask, np.bool_),
                examples=len(responses),
                images=last.images,
                responses=tuple(responses),
                prefill=prefill,
            )
        if len(messages) <= head + 1:
            return None
        # Remove the oldest response. Join the messages around it, so that rules and states keep
        # their order.
        joined = f"{messages[head - 1]['content']}\n\n{messages[head + 1]['content']}"
        messages = (
            *messages[: head - 1],
            {"role": "user", "content": joined},
            *messages[head + 2 :],
        )
        # A response and a user message are gone, so later responses moved up by two.
        trained = {position - 2 for position in trained if position - 2 >= head}


def _prefill_of(response: str) -> str:
    """Return the prefill that a rollout forces before such a response; "" for chats from other
    sources."""
    if response.startswith("<answer>"):
        return "<answer>"
    return "<think>" if "<think>" in response and "<answer>" in response else ""


def _tokenize(
    messages: Sequence[dict[str, str]],
    head: int,
    trained: set[int],
    template: ChatTemplate,
    prefill: str,
    mask_of: SFTMask,
    images: Sequence[bytes] = (),
) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
    """Tokenize a conversation whose first prompt is `messages[:head]`. Returns the token ids, the
    loss mask, and the token spans of the responses at the positions in `trained`."""
    # The images are in the order of their placeholders in the messages.
    left = iter(images)

    def shown(text: str) -> list[bytes]:
        return list(islice(left, text.count(IMAGE)))

    def masked(message: dict[str, str], tokens: list[int]) -> list[bool]:
        mask = mask_of(message, tokens, template)
        if len(mask) != len(tokens):
            raise ConfigError(
                f"sft.data.loss_on: the mask of a message has {len(mask)} values, but the message has "
                f"{len(tokens)} tokens. Return one bool per token."
            )
        return mask

    ids = template.start(tuple(messages[:head]), prefill, shown(messages[head - 1]["content"]))
    mask = [False] * len(ids)
    responses = list[tuple[int, int]]()
    for position in range(head, len(messages), 2):
        text = messages[position]["content"]
        # Remove text before the prefill: published examples may have some, but responses in
        # rollouts begin with the prefill.
        text = text[max(0, text.find(prefill)) :]
        response_ids = template.response_ids(text, prefill)
        if position in trained:
            responses.append((len(ids), len(ids) + len(response_ids)))
        ids += response_ids
        response = {"role": "assistant", "content": text.removeprefix(prefill)}
        mask += (
            masked(response, response_ids) if position in trained else [False] * len(response_ids)
        )
        if position + 1 < len(messages):
            text = messages[position + 1]["content"]
            delta = template.follow(text, prefill, response=response_ids, images=shown(text))
            ids += delta
            # A mask may also train on the user message before a trained response.
            later = position + 2 in trained
            mask += masked(messages[position + 1], delta) if later else [False] * len(delta)
    return ids, mask, responses
