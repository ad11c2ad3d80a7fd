"""Episodes as replays: what happened to each action, which tokens were trained on, hostile text as text."""

import json

import numpy as np
import pytest
from report_fixtures import TOKENIZER, play

from spa_report.replay import MAX_TEXT, any_wrong, find_tokenizer, replay

HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202etxet esrever\u2066",
    "\ud800",
    "x" * 2 * MAX_TEXT,
]


def episode(thoughts="go", **changes):
    rng = np.random.Generator(np.random.PCG64(3))
    story = play(
        rng,
        puzzle=5,
        skill=0.3,
        foresight=0.5,
        world_model=True,
        episode_id="val/0/0/0",
        thoughts=thoughts,
    )
    return {**json.loads(json.dumps(story.to_json())), **changes}


def test_boards_are_compared_with_the_truth():
    story = episode()
    shown_turns = replay(story)["turns"]
    for raw, turn in zip(story["turns"], shown_turns, strict=True):
        claim = raw["response"]["prediction"]
        assert turn["prediction_wrong"] == (
            None if claim is None else claim.strip() != raw["next_state"].strip()
        )
        if claim is not None:
            marked = any(differs for row in turn["predicted"]["rows"] for _, differs in row)
            assert marked == turn["prediction_wrong"]
    assert any_wrong(story) is True


def test_every_sampled_token_has_its_numbers_and_no_other_has():
    story = episode()
    scores = {"advantages": [0.25] * len(story["token_ids"]), "wrong_length": [1.0]}
    view = replay(story, tokenizer=TOKENIZER, scores=scores)
    parts = [view["prompt_tokens"], *(turn["tokens"] for turn in view["turns"])]
    assert sum(len(part["id"]) for part in parts) == len(story["token_ids"])
    for part in parts:
        assert set(part["numbers"]) == {"logprob", "advantage"}
        for sampled, value in zip(part["sampled"], part["numbers"]["advantage"], strict=True):
            assert value == (0.25 if sampled else None)
    response = "".join(t for t, s in zip(parts[1]["text"], parts[1]["sampled"], strict=True) if s)
    assert response == story["turns"][0]["response_text"]


def test_a_character_of_several_tokens_is_shown_once():
    story = episode(thoughts="naïve 🙂")
    view = replay(story, tokenizer=TOKENIZER)
    text = "".join(view["turns"][0]["tokens"]["text"])
    assert "naïve 🙂" in text and "\ufffd" not in text


def test_without_a_tokenizer_the_ids_are_shown():
    story = episode()
    assert replay(story)["prompt_tokens"]["text"][0] == f"[{story['token_ids'][0]}]"


@pytest.mark.parametrize(("model", "known"), [("builtin:tiny", True), ("Qwen/Qwen3-0.6B", False)])
def test_the_tokenizer_is_that_of_the_stages_model(tmp_path, model, known):
    (tmp_path / "config.yaml").write_text(f"model_path: {model}\n")
    assert (find_tokenizer(tmp_path, tmp_path) is not None) == known


def test_the_tokenizer_of_a_linked_stage_is_found(tmp_path):
    checkpoint = tmp_path / "elsewhere" / "sft" / "global_step_1"
    checkpoint.mkdir(parents=True)
    TOKENIZER.save(str(checkpoint / "tokenizer.json"))
    stage = tmp_path / "run" / "ppo"
    stage.mkdir(parents=True)
    (stage / "config.yaml").write_text("model_path: Qwen/Qwen3-0.6B\n")
    (tmp_path / "run" / "sft").symlink_to(tmp_path / "elsewhere" / "sft")
    assert find_tokenizer(stage, tmp_path / "run") is not None


def test_text_only_engines_have_no_tokens():
    story = episode(token_ids=None, sampled=None, logprobs=None, turn_index=None)
    assert replay(story)["turns"][0]["tokens"] is None


def test_the_fate_of_each_action():
    story = episode()
    turn = story["turns"][0]
    turn["response"]["actions"] = ["Up", "fly", "Left", "Down"]
    turn["executed"] = ["Up", "Left"]
    turn["infos"] = [
        {"action_is_valid": True, "action_is_effective": False},
        {"action_is_valid": False},
    ]
    fates = [(action["text"], action["fate"]) for action in replay(story)["turns"][0]["actions"]]
    assert fates == [
        ("Up", "no effect"),
        ("fly", "not executed"),
        ("Left", "refused"),
        ("Down", "not executed"),
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(text):
    story = episode(thoughts=text, episode_id=text, tag=text, error=text)
    view = replay(story, tokenizer=TOKENIZER if len(text) < 1000 else None)
    encoded = json.dumps(view, ensure_ascii=False).encode()  # no lone surrogate is left
    for forbidden in ("\x1b", "\x07", "\u202e", "\u2066"):
        assert forbidden.encode() not in encoded
    assert len(view["turns"][0]["think"]) <= MAX_TEXT + 50
