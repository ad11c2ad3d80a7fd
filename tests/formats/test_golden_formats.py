"""What every response format asks for, writes, reads and corrects: recorded texts, to the letter."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spa.envs.registry import make_env
from spa.formats.registry import parse_response, relabel_turn
from spa.policies.scripted import formatted
from spa.prompts.render import Prompter, sample_response
from spa.types import Prompt, Turn
from spa.worldmodel.base_format import without_states

GOLDEN = Path(__file__).parents[1] / "golden" / "formats.json"
NAMES = (
    "prediction_first",
    "plan_first",
    "answer_first",
    "no_prediction",
    "choose_plan",
    "search",
    "constraint_propagation",
)
OPTIONS = [(("Left",), "P at (0,0)"), (("Down", "Up"), "P at (0,1)")]


def responses() -> dict[str, str]:
    """Well-formed and broken responses of all kinds."""
    seen = "<observation>\nP at (0,1)\n</observation>"
    foreseen = "<prediction>\nP at (0,0)\n</prediction>"
    answer = "<answer>Left || Up</answer>"
    options = "\nI could do Left:\nP at (0,0)\nI could do Left, then Up:\nP at (0,1)\nI do Left, then Up. "
    return {
        "plain": f"<think>{seen} I do not know. {foreseen}</think>{answer}",
        "plan": f"<think>{seen} Go. I do Left, then Up. {foreseen}</think>{answer}",
        "after": f"<think>{seen} Go.</think>{answer}{foreseen}",
        "none": f"<think>{seen} Go.</think>{answer}",
        "options": f"<think>{seen}{options}{foreseen}</think>{answer}",
        "other_choice": f"<think>{seen}{options}{foreseen}</think><answer>Right</answer>",
        "base": f"<think>thoughts</think> {answer} more",
        "search": "<think>01: Left00 goal\nLeft</think><answer>Left</answer>",
        "cut": f"<think>{seen} Go",
        "twice": f"<think>{seen}{seen}{foreseen}</think>{answer}",
        "outside": f"<think></think>{seen}{foreseen}{answer}",
        "nothing": "",
    }


def recorded(name: Any) -> dict[str, Any]:
    env = make_env("frozen_lake", {"size": 3, "is_slippery": False})
    env.reset(seed=1)
    found: dict[str, Any] = {}
    for mode in ("base", "add_worldmodel"):
        prompter = Prompter(mode=mode, response_format=name, state_text="coords")
        found[f"prompt {mode}"] = prompter.first_messages(env)[1]["content"]
        for placeholders in ("brackets", "words"):
            own = replace(prompter, placeholders=placeholders, enable_think=False)
            found[f"next {mode} {placeholders}"] = own.next_message(
                env, turn=2, actions_left=3, reward=0.5
            )["content"]
        prompt = Prompt(
            episode_id="e",
            messages=(),
            token_ids=np.zeros(0, dtype=np.int32),
            prefill=prompter.prefill,
            seed=0,
            continued=False,
            mode=mode,
            response_format=name,
        )
        found[f"scripted {mode}"] = formatted(prompt, "Left || Up", prediction="P")
    fresh = make_env("frozen_lake", {"size": 3, "is_slippery": False})
    prompter = Prompter(mode="add_worldmodel", response_format=name, state_text="coords")
    found["sample"] = sample_response(fresh, prompter)
    for key, text in responses().items():
        for mode in ("base", "add_worldmodel"):
            parsed = parse_response(text, mode=mode, order=name)
            found[f"parsed {mode} {key}"] = json.loads(json.dumps(asdict(parsed)))
        parsed = parse_response(text, mode="add_worldmodel", order=name)
        turn = Turn(
            state="P at (0,1)",
            actions_left=4,
            response_text=text,
            response=parsed,
            executed=("Left",),
            reward=0.0,
            penalty=0.0,
            next_state="P at (2,2)",
        )
        for label, options in (("", ()), (" options", OPTIONS)):
            corrected = relabel_turn(turn, action_sep="||", order=name, options=options)
            found[f"relabelled{label} {key}"] = [corrected.text, corrected.reason]
        found[f"without states {key}"] = without_states(turn, prompter)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_each_format_are_as_recorded(name: str):
    wanted = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    assert recorded(name) == wanted
