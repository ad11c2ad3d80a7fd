"""Read the rollouts of several training stacks into one type: verifiers, TRL, OpenEnv through TRL,
dumps of verl and RAGEN, plain chats, and episodes of spa.

A file is JSON lines, one JSON list, or a Parquet table. The keys of a row reveal the stack that
wrote it. A batch whose columns are lists (TRL) is split into rows.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from spa.errors import DataError
from spa.run.files import files_below

SUFFIXES = (".jsonl", ".parquet", ".json")
"""File types of rollouts. In a folder, only files of the first type that occurs are read."""

Chat = tuple[tuple[str, str], ...]
"""(role, text) of every message, including the responses."""

# Matches a ChatML message: `<|im_start|>role\n text <|im_end|>`. The last message may be truncated.
_HEADER = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|$)", re.S)
# Matches the header after decoding without special tokens: a line that contains only the role.
_BARE_HEADER = re.compile(r"\n(user|assistant|tool)\n")
# Matches the stem of a spa run's trajectory file, such as `val-000050`: the split and the step.
_OURS = re.compile(r"(.+)-(\d{6,})")
_LOGPROBS = ("logprobs", "completion_logprobs", "sampling_per_token_logps", "old_per_token_logps")
_LARGEST = 1e300  # Values with a larger magnitude do not count as numbers.
_BATCH = 64  # Number of rows of a Parquet table that are converted to Python objects at a time.
# Keys of masks in several stacks. Masks that exclude environment tokens come first, because a row
# may also have a mask for padding.
_MASKS = ("env_mask", "tool_mask", "completion_mask", "loss_mask", "response_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode. `token_ids` are the tokens after the prompt, and `mask` is True for tokens that
    are trained on."""

    where: str  # file and row
    stack: str
    chat: Chat
    group: str  # rollouts of one group have the same prompt
    batch_group: str = ""  # distinguishes groups of a step that may have the same prompt
    reward: float | None = None
    turn_rewards: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()  # tokens of the messages before the first response
    token_ids: tuple[int, ...] | None = None
    mask: tuple[bool, ...] | None = None
    states: tuple[str, ...] = ()  # the true state before each response, and the final state
    # Number of responses whose tokens in the next prompt differ from the sampled tokens.
    replaced: int = 0
    # One per token of `token_ids`: usually 0 for tokens that were not sampled, and NaN if the stack
    # recorded no number.
    logprobs: tuple[float, ...] | None = None
    # The actions that the environment executed for each response. Empty if not recorded.
    actions: tuple[tuple[str, ...], ...] = ()
    seed: int | None = None  # seed of the puzzle
    noise_seed: int | None = None  # seed of random outcomes in the game
    step: int | None = None  # training step
    split: str = ""  # "train" or "val"; empty if unknown
    tag: str = ""  # tag of the environment in the configuration; empty if unknown
    cut: bool = False  # True if a replay differs from the record, so that later states are unknown

    @property
    def responses(self) -> tuple[str, ...]:
        """The responses of the model in order."""
        return tuple(text for role, text in self.chat if role == "assistant")


def read_rollouts(path: str | Path) -> tuple[Rollout, ...]:
    """Read every rollout of a file or folder.

    In a folder, the `*.jsonl` files are read. Without these, the `*.parquet` files are read, and
    without both, the `*.json` files. JSON is last, because stacks write settings as JSON next to
    their rollouts.

    Raises DataError if there is no such file, if a file cannot be read, or if a row has no
    messages, text or tokens. The error names the file and, for a row, its number.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        below = files_below(path)
        kinds = ([file for file in below if file.suffix == kind] for kind in SUFFIXES)
        files = next(filter(None, kinds), [])
    if not path.exists() or not files:
        raise DataError(
            f"{path} has no rollouts. Give a .jsonl, .json or .parquet file, or a folder of such files."
        )
    found = tuple(rollout for file in files for rollout in _dated(file))
    if not found:
        raise DataError(f"{path} has no rollouts: it has no lines with messages, text or tokens.")
    return found


def _dated(file: Path) -> Iterator[Rollout]:
    """Read the rollouts of a file. For a spa run, add the step and split from the file name."""
    # Rows of other stacks may contain the step, but no split.
    name = _OURS.fullmatch(file.stem)
    for rollout in _file(file):
        named = name and rollout.stack == "spa"
        yield replace(rollout, step=int(name[2]), split=name[1]) if name and named else rollout


def _file(file: Path) -> Iterator[Rollout]:
    if file.suffix == ".parquet":
        for number, row in enumerate(_parquet_rows(file), 1):
            yield from read_rows(row, f"{file}, row {number}")
        return
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}. Give a UTF-8 file of rollouts.") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    # If the first line is not valid JSON, the file is one JSON list on several lines.
    if text.lstrip().startswith("[") and len(lines) > 1 and not _is_json(lines[0][1]):
        lines = [(1, text)]
    for number, line in lines:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{file}, row {number} is not valid JSON: {error}. Correct or remove the row."
            ) from error
        message = (
            data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
        )
        # A JSON list of messages is one rollout, and a list of anything else is several rows.
        is_list = isinstance(data, list) and not ("role" in message or "from" in message)
        for index, row in enumerate(data if is_list else [data], 1):
            yield from read_rows(row, f"{file}, row {index if is_list else number}")


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows, one batch at a time, because even a small file may fill the memory if its
    data are repetitive."""
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}. Give a Parquet file of rollouts.") from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_rows(row: Any, where: str) -> Iterator[Rollout]:
    """Read the rollouts of one row. There are several if the row is a batch in columns or an
    episode of several agents. Raises DataError for a row that cannot be read."""
    try:
        # An episode record of the `verifiers` library contains a list of traces.
        if isinstance(row, Mapping) and isinstance(row.get("traces"), list):
            yield from [
                _trace(trace, where) for trace in row["traces"] if isinstance(trace, Mapping)
            ]
        else:
            yield from [read_row(part, where) for part in _unbatched(row)]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        told = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{where}: the row has the keys of a rollout, but a value has the wrong type or content. Correct or remove "
            f"the row ({told[:200]})"
        ) from error


def _unbatched(row: Any) -> list[Any]:
    """Split a batch in columns, as TRL's rollout functions return it, into rows. Any other row is
    returned unchanged in a list."""
    ids = row.get("completion_ids") if isinstance(row, Mapping) else None
    # A list of lists is a batch with one inner list per rollout.
    if not (isinstance(ids, list) and ids and isinstance(ids[0], list)):
        return [row]
    # A column of another length belongs to the whole batch and not to its rows, so drop it.
    columns = {
        name: value
        for name, value in row.items()
        if isinstance(value, list) and len(value) == len(ids)
    }
    return [{name: value[index] for name, value in columns.items()} for index in range(len(ids))]


def read_row(row: Any, where: str) -> Rollout:
    """Read a row of a file as one rollout. Raises DataError if it has no messages, text or
    tokens."""
    if isinstance(row, list):
        row = {"messages": row}
    if not isinstance(row, Mapping):
        raise DataError(
            f"{where}: a rollout must be a JSON object or a list of messages, not {type(row).__name__}"
        )
    # Check the most specific keys first. The keys of spa and of traces of verifiers occur in no
    # other stack.
    if "episode_id" in row and "turns" in row:
        return _from_spa(row, where)
    if isinstance(row.get("nodes"), list):
        return _trace(row, where)
    if "completion" in row:
        # TRL's tables of completions have the key `advantage`. Other rows of TRL look like rows of
        # verifiers.
        table = "advantage" in row
        stack = "TRL" if table else "verifiers or TRL"
        told = _chat(row["completion"], "assistant")
        chat = (*_chat(row.get("prompt", ""), "user"), *(_split(told) if table else told))
    elif "output" in row:
        stack = "verl or RAGEN"
        told = _split(_chat(row["output"], "assistant"))
        chat = (*_chat(row.get("input", ""), "user"), *told)
    elif "messages" in row or "conversations" in row:
        stack = "chat"
        chat = _chat(row.get("messages") or row.get("conversations") or [], "user")
    elif "completion_ids" in row:
        stack = "TRL"
        chat = ()
    else:
        wanted = "messages, prompt and completion, input and output, or completion_ids"
        raise DataError(
            f"{where}: the keys {', '.join(map(str, row))} are not those of a rollout. A rollout needs the keys "
            f"{wanted}."
        )
    ids, mask = _tokens(row)
    begin = next((index for index, (role, _) in enumerate(chat) if role == "assistant"), len(chat))
    # Without an id, rollouts with the same messages before the first response form one group.
    group = str(
        row.get(
            "example_id", row.get("uid", row.get("group", chat[:begin] or row.get("prompt_ids")))
        )
    )
    reward = next(
        (row[name] for name in ("reward", "score", "env_reward") if _is_number(row.get(name))), None
    )
    # TRL's tables have one column per reward function, named after it.
    if reward is None and "advantage" in row:
        skipped = ("step", "advantage")
        named = [
            float(value) for name, value in row.items() if _is_number(value) and name not in skipped
        ]
        reward = sum(named) if named else None
    turns = tuple(
        float(r) for r in row.get("turn_rewards") or row.get("step_rewards") or () if _is_number(r)
    )
    return Rollout(
        where=where,
        stack=stack,
        chat=chat,
        group=group,
        reward=None if reward is None else float(reward),
        turn_rewards=turns,
        prompt_ids=tuple(token for token in row.get("prompt_ids") or () if isinstance(token, int)),
        token_ids=ids,
        mask=mask,
        logprobs=_logprobs(row, ids, mask),
        seed=_number(row, "seed", "env_seed", "puzzle_seed"),
        noise_seed=_number(row, "noise_seed"),
        step=_number(row, "step", "global_step", "training_step"),
    )


def _trace(row: Mapping[str, Any], where: str) -> Rollout:
    """Read a trace of verifiers 0.4.

    Its messages are the nodes of a tree, of which the last branch is read. Tokens are read from the
    first response on. A response that was tokenized again for the next request is a node that is
    not marked as sampled.
    """
    nodes = row["nodes"]
    path = []
    # Follow the last branch from its leaf to the root. The bound on the length ends the loop if the
    # parents in a damaged file form a cycle.
    index = len(nodes) - 1 if nodes else None
    while index is not None and len(path) < len(nodes):
        path.append(nodes[index])
        index = nodes[index].get("parent")
    path.reverse()
    chat = tuple(message for node in path for message in _chat([node["message"]], "user"))
    first = next(
        (place for place, node in enumerate(path) if _role(node) == "assistant"), len(path)
    )
    sampled = [node["message"] for node in nodes if node.get("sampled")]
    again = [node for node in path if _role(node) == "assistant" and not node.get("sampled")]
    ids = tuple(int(token) for node in path[first:] for token in node.get("token_ids") or ())
    mask = tuple(bool(trained) for node in path[first:] for trained in node.get("mask") or ())
    scores = [score for node in path[first:] for score in _spread(node)]
    told = (row.get("info") or {}).get("spa") or {}
    rewards = [
        reward for reward in (row.get("rewards") or {}).values() if isinstance(reward, Mapping)
    ]
    task = row.get("task") or {}
    return Rollout(
        where=where,
        stack="verifiers",
        chat=chat,
        group=str(task.get("key") or chat[:first]),
        reward=sum(float(r["score"]) * float(r.get("weight", 1.0)) for r in rewards)
        if rewards
        else None,
        turn_rewards=tuple(float(value) for value in told.get("turn_rewards") or ()),
        token_ids=ids or None,
        mask=mask if ids else None,
        states=tuple(told.get("states") or ()),
        replaced=sum(node["message"] in sampled for node in again),
        logprobs=None if all(math.isnan(score) or not score for score in scores) else tuple(scores),
        seed=_number(told, "seed"),
        noise_seed=_number(told, "noise_seed"),
    )


def _spread(node: Mapping[str, Any]) -> list[float]:
    """Expand the log-probs of a node, one per trained token, to all of its tokens. The other tokens
    get 0."""
    scores = iter(node.get("logprobs") or ())
    return [_score(next(scores, None)) if trained else 0.0 for trained in node.get("mask") or ()]


def _score(value: Any) -> float:
    """Return a log-prob as a float, or NaN if the stack recorded no number."""
    return float(value) if _is_number(value) else math.nan


def _role(node: Mapping[str, Any]) -> str:
    return str(node["message"].get("role"))


def _from_spa(row: Mapping[str, Any], where: str) -> Rollout:
    turns = row["turns"]
    ids = row.get("token_ids")
    sampled = row.get("sampled")
    rewards = tuple(float(turn["reward"] + turn["penalty"]) for turn in turns)
    scores = row.get("logprobs")
    states = [turn.get("world_state") or turn["state"] for turn in turns]
    states += [turns[-1].get("next_world_state") or turns[-1]["next_state"]] if turns else []
    return Rollout(
        where=where,
        stack="spa",
        chat=_chat(row["messages"], "user"),
        group=str(row.get("puzzle_hash")),
        # Several groups of a step may have the same puzzle.
        batch_group=f"{row.get('tag')} {row.get('group')}",
        # An episode that ended with an error has no total reward, but its turns count in the means
        # by turn.
        reward=None if row.get("stop") == "error" else sum(rewards),
        turn_rewards=rewards,
        token_ids=None if ids is None else tuple(ids),
        mask=None if sampled is None else tuple(map(bool, sampled)),
        states=tuple(states),
        logprobs=None if scores is None else tuple(map(_score, scores)),
        actions=tuple(tuple(turn["executed"]) for turn in turns),
        seed=_number(row, "puzzle_seed"),
        noise_seed=_number(row, "noise_seed"),
        tag=str(row.get("tag") or ""),
    )


def _chat(value: Any, role: str) -> Chat:
    """Parse a list of messages (with `role` and `content`, or `from` and `value`) or a text into
    messages. ChatML text is split into its messages. Any other text becomes one message with the
    role `role`."""
    if isinstance(value, str):
        # The generation prompt is part of the input, so verl's output begins inside the assistant's
        # message.
        begins = (
            value
            if value.startswith("<|im_start|>") or role != "assistant"
            else f"<|im_start|>{role}\n{value}"
        )
        chats = (
            tuple((name, text) for name, text in _HEADER.findall(begins))
            if "<|im_start|>" in value
            else ()
        )
        return chats or (((role, value),) if value else ())
    out = []
    for message in value if isinstance(value, list) else []:
        name = str(message.get("role") or message.get("from") or role)
        text = message.get("content", message.get("value")) or ""
        parts = text if isinstance(text, list) else [{"text": text}]
        text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
        # ShareGPT names the roles `gpt` and `human`.
        out.append(({"gpt": "assistant", "human": "user"}.get(name, name), text))
    return tuple(out)


def _split(chat: Chat) -> Chat:
    """Split a single response into messages. TRL's tables and verl's dumps store an episode of
    several turns as one response, without the special tokens around its messages."""
    if len(chat) != 1:
        return chat
    # `split` also returns the captured roles: text, role, text, and so on. The first text is a
    # response, so it gets the role `assistant`.
    parts = ["assistant", *_BARE_HEADER.split(chat[0][1])]
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def _tokens(row: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[bool, ...] | None]:
    steps = [
        step.get("tokens") for step in row.get("trajectory") or () if isinstance(step, Mapping)
    ]
    steps = [step for step in steps if isinstance(step, Mapping)]
    # In verifiers, each of several turns has its own prompt, so there is no single sequence of
    # tokens.
    if len(steps) == 1:
        row = {
            "completion_ids": steps[0].get("completion_ids"),
            "completion_mask": steps[0].get("completion_mask"),
        }
    ids = row.get("completion_ids") or row.get("response_ids")
    mask = next((row[name] for name in _MASKS if row.get(name) is not None), None)
    return None if ids is None else tuple(map(int, ids)), None if mask is None else tuple(
        bool(m) for m in mask
    )


def _logprobs(
    row: Mapping[str, Any], ids: tuple[int, ...] | None, mask: tuple[bool, ...] | None
) -> tuple[float, ...] | None:
    """Return one log-prob per token, from a row that has one for every token or for every trained
    token. Return None if their number fits neither."""
    values = next((row[name] for name in _LOGPROBS if isinstance(row.get(name), list)), None)
    if (
        values is None
        or ids is None
        or not all(score is None or _is_number(score) for score in values)
    ):
        return None
    if mask is not None and len(values) == sum(mask) < len(ids) == len(mask):
        return tuple(_spread({"logprobs": values, "mask": mask}))
    return tuple(map(_score, values)) if len(values) == len(ids) else None


def _number(row: Mapping[str, Any], *names: str) -> int | None:
    """Return the first integer found under `names`, in the row or in the extra data that stacks
    store with it. Return None if there is none."""
    # Look in the row first, then in the extra data of verifiers (`info`) and of verl
    # (`extra_info`).
    places = [
        row,
        *(row[name] for name in ("info", "extra_info") if isinstance(row.get(name), Mapping)),
    ]
    numbers = (place[name] for place in places for name in names if _is_number(place.get(name)))
    return next((int(value) for value in numbers if float(value).is_integer()), None)


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number within the range of a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
