"""State perplexity: which tokens are counted, and the figures by hand."""

import json
import shutil

import numpy as np
import pytest
from helpers.families import CHATML, template, tokenizer

from spa import cli
from spa.errors import ModelError
from spa.models.load import load_tokenizer
from spa.prompts.template import ChatTemplate
from spa_measurements.likelihood import Scored
from spa_measurements.perplexity import perplexity_report, state_sequence

BEFORE = ({"role": "system", "content": "Be brief: P_."},)


def scored(*logprobs: float) -> Scored:
    n = len(logprobs)
    return Scored(
        logprob=np.array(logprobs, dtype=np.float32),
        top=np.ones(n, dtype=np.float32),
        hit=np.ones(n, dtype=bool),
        block=np.zeros(n, dtype=np.int8),
    )


@pytest.mark.parametrize("name", ["qwen2", "llama3", "gemma", "mistral", "unmarked"])
@pytest.mark.parametrize("state", ["P_\n_G", "P_<|im_end|>_G"])
def test_exactly_the_state_is_marked_in_the_ids_of_an_episodes_first_prompt(name, state):
    made = template(name)
    prompt = f"P_ rules\n{state}\nActions left: 3."
    found = state_sequence(made, BEFORE, prompt, state)
    assert found.ids.tolist() == made.start((*BEFORE, {"role": "user", "content": prompt}), "")
    marked = np.flatnonzero(found.block == 0)
    read = made.tokenizer.decode(found.ids[marked[0] : marked[-1] + 1])
    # a token may hold the line breaks around it
    assert state in read and len(read) <= len(state) + 2
    assert (np.diff(marked) == 1).all() and found.block[0] == -1
    alone = state_sequence(made, (), state, state)
    assert state in made.tokenizer.decode(alone.ids[alone.block == 0])


def test_a_template_that_changes_states_is_named(monkeypatch):
    made = tokenizer("qwen2")
    monkeypatch.setattr(
        made, "chat_template", CHATML.replace("message['content']", "message['content'] | trim")
    )
    with pytest.raises(ModelError, match="changes the string of a state"):
        state_sequence(ChatTemplate(made), (), "  abc", "  abc")


def test_perplexity_by_hand():
    log = np.log
    found = perplexity_report([scored(-log(4), -log(4)), scored(-log(16))], ["P_", "GO__"])
    assert found["per_token"]["mean"] == pytest.approx(8)  # geometric mean of 4 and 16
    assert found["per_symbol"]["mean"] == pytest.approx((4 * 2) ** 0.5)  # 16 over 4 symbols is 2
    assert found["distinct_symbols"] == 4 and not found["worse_than_guessing"]
    assert found["per_token"]["low"] == pytest.approx(4) and found["per_token"][
        "high"
    ] == pytest.approx(16)


def test_command_line_measures_every_text(tmp_path, monkeypatch, capsys, untrained_model):
    monkeypatch.chdir(tmp_path)
    args = [
        "eval",
        str(untrained_model),
        "--state-perplexity",
        "--tags",
        "FrozenLake,Countdown",
        "--states",
        "4",
    ]
    assert cli.main([*args, "--quiet", "--output", "p.json", "trainer.device=cpu"]) == 0
    assert "grid_and_coords" in capsys.readouterr().out
    result = json.loads((tmp_path / "p.json").read_text())
    assert list(result["tags"]["FrozenLake"]) == ["coords", "grid", "grid_and_coords"]
    assert list(result["tags"]["Countdown"]) == ["grid"]
    vocabulary = len(load_tokenizer(str(untrained_model)))
    for contexts in result["tags"]["FrozenLake"].values():
        for found in contexts.values():
            assert vocabulary / 3 < found["per_token"]["mean"] < vocabulary * 3  # it knows nothing
    assert (
        cli.main(
            [
                "eval",
                str(untrained_model),
                "--state-perplexity",
                "--tags",
                "FrozenLak",
                "trainer.device=cpu",
            ]
        )
        == 2
    )
    assert "FrozenLake" in capsys.readouterr().err


def test_a_run_is_measured_with_its_own_configuration(tmp_path, capsys, untrained_model):
    run = tmp_path / "runs" / "mine"
    shutil.copytree(untrained_model, run / "sft" / "global_step_2")
    (run / "sft" / "global_step_2" / "complete.json").write_text('{"sha256": {}}')
    (run / "sft" / "config.yaml").write_text("defaults: [base]\nseed: {val: 7}\n")
    args = ["eval", str(run), "--state-perplexity", "--tags", "FrozenLake", "--states", "2"]
    assert cli.main([*args, "--quiet", "trainer.device=cpu"]) == 0
    output = run / "eval" / "sft-global_step_2-perplexity.json"
    assert f"result: {output}" in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["seed"] == 7
    assert result["model"] == str(run / "sft" / "global_step_2")
