"""Tokens and actions of self-play, from its summary."""

import json

import pytest

from spa_report.usage import of_self_play

PLAYED = {"episodes": 10, "num_actions": 3.0, "response_length": 100.0}


@pytest.mark.parametrize(
    ("summary", "generate", "tokens"),
    [
        ({}, {}, 1000),
        ({}, {"epsilon": 0.5}, 500),
        # The planner's record has the turns that the model played alone.
        ({"imagination": {"tokens_per_episode": 40}}, {"epsilon": 0.5}, 400),
        ({}, {"mixture": {"self": 1, "random": 3}}, 250),
        # Other players write shorter responses than the model.
        ({"model_tokens": 600}, {"epsilon": 0.5}, 600),
        ({"model_tokens": 400}, {"mixture": {"self": 1, "random": 3}}, 400),
        ({"search": {"tokens": 7}}, {"policy": "search"}, 7),
    ],
)
def test_tokens_are_those_that_the_model_sampled(summary, generate, tokens, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"played": PLAYED, **summary}))
    found = of_self_play(tmp_path, generate)
    assert found is not None
    assert (found.tokens, found.environment_steps, found.episodes) == (tokens, 30, 10)
