"""Convert an episode from a trajectory file into the data that a page shows.

This uses the plain JSON of an episode, so the viewer needs neither torch nor a model. All text is
made safe to display: control characters and direction marks become escapes, and very long text is
truncated with a note.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spa
from spa.errors import DataError
from spa.run.console import printable
from spa.run.files import files_below, read_object
from spa.worldmodel.accuracy import is_exact
from spa_report import boards
from spa_report.reading import StageFolder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SYMBOL = re.compile(r"\b((?:\w{1,30} on )?\w{1,30}) \((\S)\) (?:is|are) at")
"""Matches the name and symbol of a cell's content in a state, as in `box on target (√) is at`."""
_LEGEND = re.compile(r"^Symbols: (.+)\.$", re.MULTILINE)
"""Matches the line of a prompt that explains symbols, as in `Symbols: P player, _ empty.`"""
# Limits per page. Longer text is truncated, and further tokens are omitted.
MAX_TEXT = 20_000
MAX_TOKENS = 8_000


def shown(text: str | None, limit: int = MAX_TEXT) -> str:
    """Make `text` printable. Beyond `limit` characters, it is truncated with a note of how many are
    omitted."""
    if not text:
        return ""
    if len(text) > limit:
        return printable(text[:limit]) + f" … [{len(text) - limit:,} more characters]"
    return printable(text)


def prediction_wrong(turn: dict[str, Any]) -> bool | None:
    """Return whether the turn's prediction differs from the next state, or None if there is no
    prediction to check."""
    # `next_world_state` takes precedence if recorded, because it may contain more than the prompt
    # shows. A turn without an executed action has no next state to predict.
    return (
        _differs(
            turn["response"].get("prediction"), turn.get("next_world_state") or turn["next_state"]
        )
        if turn.get("executed")
        else None
    )


def observation_wrong(turn: dict[str, Any]) -> bool | None:
    """Return whether the turn's observation differs from the state that was shown, or None if there
    is no observation."""
    return _differs(turn["response"].get("observation"), turn.get("world_state") or turn["state"])


def _differs(claim: str | None, truth: str) -> bool | None:
    return None if claim is None else not is_exact(claim, truth)


def any_wrong(episode: dict[str, Any]) -> bool | None:
    """Return whether any prediction of the episode is wrong, or None if it has no predictions or
    its prompts ask for none."""
    turns = episode.get("turns") or []
    known = [wrong for turn in turns if (wrong := prediction_wrong(turn)) is not None]
    # In `mode: base`, prompts do not ask for states, so predictions are not judged.
    return any(known) if known and episode.get("mode") != "base" else None


def replay(
    episode: dict[str, Any],
    *,
    tokenizer: "Tokenizer | None" = None,
    scores: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the data that a page needs to replay `episode` (an `Episode.to_json()`).

    `scores` has lists with one value per token, by name ("advantages", "values"), from the stage's
    `token_scores`.
    """
    turns = episode.get("turns") or []
    # The system message and the first user message contain the rules, which name the symbols and
    # the size of the board.
    texts = [message["content"] for message in episode.get("messages", ())[:2]]
    states = [text for turn in turns for text in (turn["state"], turn["next_state"])]
    size = boards.board_size([*texts, *states])
    tokens = _tokens(episode, tokenizer, scores or {})
    facts = (
        "tag",
        "mode",
        "state_text",
        "puzzle_seed",
        "noise_seed",
        "puzzle_hash",
        "group",
        "member",
        "version",
    )
    # Matches the line `Actions: Up, Down, Left, Right.` of the rules.
    named = re.search(r"^Actions: (.+?)\.?$", "\n".join(texts), re.MULTILINE)
    names = named[1].split(", ") if named else []
    form = str(episode.get("response_format", ""))
    return {
        "id": shown(str(episode.get("episode_id", "")), 200),
        "stop": shown(str(episode.get("stop", "")), 100),
        "success": bool(episode.get("success")),
        "score": round(sum(turn["reward"] + turn["penalty"] for turn in turns), 6),
        "error": shown(episode.get("error")),
        "facts": {name: shown(str(episode[name]), 200) for name in facts if name in episode},
        "messages": [
            {"role": shown(m["role"], 40), "content": shown(m["content"])}
            for m in episode.get("messages", ())
        ],
        "symbols": _symbols(texts, states),
        "turns": [
            _turn(turn, size, tokens.get(index), names, form) for index, turn in enumerate(turns)
        ],
        "prompt_tokens": tokens.get(-1),
    }


def _symbols(texts: Sequence[str], states: Sequence[str]) -> dict[str, str]:
    """Map each symbol to its meaning in lower case. States override the legend of the prompt."""
    legend = [
        entry.partition(" ")[::2]
        for text in texts
        for line in _LEGEND.findall(text)
        for entry in line.split(", ")
    ]
    named = [(symbol, name) for text in (*texts, *states) for name, symbol in _SYMBOL.findall(text)]
    return {
        symbol: shown(name.lower(), 40) for symbol, name in (*legend, *named) if len(symbol) == 1
    }


def written_search(form: str, text: str, actions: Sequence[str]) -> list[dict[str, Any]]:
    """Return the states, with their moves, of the search in a response of format `form`. Empty if
    there is no search. `actions` has the names of the environment's actions."""
    # Import only when needed, because it imports Gymnasium, which a list of episodes does not need.
    from spa.plugins import response_formats

    own = response_formats().get(form)
    return [
        {
            "key": shown(line["key"], 60),
            "moves": [[shown(part, 60) for part in move] for move in line["moves"]],
        }
        for line in (own.show(text, actions) if own is not None else ())
    ]


def _turn(
    turn: dict[str, Any],
    size: boards.Size | None,
    tokens: dict[str, Any] | None,
    names: Sequence[str],
    form: str,
) -> dict[str, Any]:
    response = turn["response"]
    observation = response.get("observation")
    prediction = response.get("prediction")
    return {
        "state": boards.read_board(turn["state"], size).to_json(),
        "observed": None
        if observation is None
        else boards.compare(observation, turn.get("world_state") or turn["state"], size).to_json(),
        "next_state": boards.read_board(turn["next_state"], size).to_json(),
        "predicted": None
        if prediction is None
        else boards.compare(
            prediction, turn.get("next_world_state") or turn["next_state"], size
        ).to_json(),
        "options": [
            {"plan": shown(", ".join(plan), 200), "state": boards.read_board(state, size).to_json()}
            for plan, state in response.get("options", ())
        ],
        "observation_wrong": observation_wrong(turn),
        "prediction_wrong": prediction_wrong(turn),
        "think": shown(response.get("think")),
        "search": written_search(form, response.get("think") or "", names),
        "response": shown(turn["response_text"]),
        "well_formed": bool(response.get("well_formed")),
        "cut_off": turn.get("finish_reason") == "length",
        "actions": _actions(turn),
        "actions_left": turn.get("actions_left"),
        "reward": turn["reward"],
        "penalty": turn["penalty"],
        "tokens": tokens,
    }


def _actions(turn: dict[str, Any]) -> list[dict[str, Any]]:
    """List the actions of the response with their results: executed, no effect, refused, or not
    executed."""
    # `executed` is a subsequence of the response's actions in the environment's spelling, so step
    # through both lists together.
    executed = turn.get("executed") or []
    infos = turn.get("infos") or []
    done = []
    position = 0
    for action in turn["response"].get("actions") or []:
        here = executed[position].strip().casefold() if position < len(executed) else None
        if action.strip().casefold() == here:
            info = infos[position] if position < len(infos) else {}
            done.append({"text": shown(executed[position], 200), "fate": _action_result(info)})
            position += 1
        else:
            done.append({"text": shown(action, 200), "fate": "not executed"})
    # Also show executed actions that match no action of the response.
    rest = executed[position:]
    return done + [{"text": shown(action, 200), "fate": _action_result({})} for action in rest]


def _action_result(info: dict[str, Any]) -> str:
    if info.get("action_is_valid") is False:
        return "refused"
    if info.get("action_is_effective") is False:
        return "no effect"
    return "executed"


def _tokens(
    episode: dict[str, Any], tokenizer: "Tokenizer | None", scores: dict[str, Any]
) -> dict[int, dict[str, Any]]:
    """Map each turn to its tokens, as columns: `text`, `id`, `sampled`, and `numbers` with a value
    per sampled token for each name."""
    ids = episode.get("token_ids")
    if not ids:
        return {}
    # Only columns with one number per id can be shown.
    numbers = {
        key.rstrip("s"): row
        for key, row in {"logprobs": episode.get("logprobs"), **scores}.items()
        if isinstance(row, list) and len(row) == len(ids)
    }
    sampled = episode.get("sampled") or [False] * len(ids)
    # Turn -1 has the tokens of the first prompt.
    turn_index = episode.get("turn_index") or [-1] * len(ids)
    positions: dict[int, list[int]] = {}
    for position in range(min(len(ids), MAX_TOKENS)):
        positions.setdefault(int(turn_index[position]), []).append(position)
    return {
        turn: {
            "id": [ids[position] for position in places],
            "text": _texts([ids[position] for position in places], tokenizer),
            "sampled": [int(sampled[position]) for position in places],
            "numbers": {
                # Only sampled tokens have numbers. Prompt and environment tokens get None.
                key: [_rounded(row[position]) if sampled[position] else None for position in places]
                for key, row in numbers.items()
            },
        }
        for turn, places in positions.items()
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _texts(ids: Sequence[int], tokenizer: "Tokenizer | None") -> list[str]:
    """The text of each token, or its id in brackets without a tokenizer. If a character spans
    several tokens, the last one shows it and the others are empty."""
    if tokenizer is None:
        return [f"[{number}]" for number in ids]
    texts = []
    pending: list[int] = []
    for number in ids:
        pending.append(number)
        text = tokenizer.decode(pending, skip_special_tokens=False)
        # A final U+FFFD means that the bytes so far are an incomplete UTF-8 character. Such a
        # character has at most four bytes.
        if text.endswith("\ufffd") and len(pending) < 4:
            texts.append("")
            continue
        texts.append(printable(text))
        pending.clear()
    return texts


def find_tokenizer(stage: Path, root: Path) -> "Tokenizer | None":
    """Find the tokenizer of a stage. Returns None if there is no `tokenizer.json`, in which case
    pages show token ids.

    The search starts with the stage's checkpoints, followed by all checkpoints of the run in
    `root`. Last is the stage's model, if that is the bundled model or a folder.
    """
    from tokenizers import Tokenizer

    folder_of_stage = StageFolder(stage, stage.name, "", None)
    # The result of an evaluation names its model.
    model = read_object(folder_of_stage.evaluation).get("model")
    # A damaged configuration must not prevent showing the episode.
    with suppress(DataError, OSError, RecursionError):
        model = model or folder_of_stage.config.get("model_path")
    builtin = Path(spa.__file__).parent / "assets"
    # Search the stage's own checkpoints first, because another stage may use another model.
    of_model = builtin if model == "builtin:tiny" else Path(str(model or stage))
    for folder, checkpoint in ((stage, "global_step_"), (root, "global_step_"), (of_model, "")):
        found = [
            path
            for path in files_below(folder)
            if path.name == "tokenizer.json" and checkpoint in str(path.relative_to(folder))
        ]
        for path in sorted(found, key=_newest_first):
            return Tokenizer.from_file(str(path))
    return None


def _newest_first(path: Path) -> int:
    numbers = re.findall(r"global_step_(\d+)", str(path))
    return -int(numbers[-1]) if numbers else 0
