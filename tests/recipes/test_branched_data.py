"""Stage 1 with branched play and with mixtures, by the real recipe."""

import json
from pathlib import Path

from spa.config.load import load_config
from spa.examples.play import policy_of
from spa.recipes import selfplay
from spa.worldmodel.examples import is_counterfactual
from spa.worldmodel.sft_files import read_examples

SETTINGS = (
    "es_manager.train.env_groups=6",
    "es_manager.train.group_size=2",
    "es_manager.val.env_groups=2",
    "trainer.validation_steps=1",
    "generate.num_batches=1",
    "trainer.logger=[]",
)


def made(tmp_path, *overrides):
    cfg = load_config("tiny", [*SETTINGS, f"trainer.run_dir={tmp_path}", *overrides])
    out = selfplay.run_self_play(cfg)
    return (
        cfg,
        read_examples(out / "wm_train.parquet"),
        json.loads((out / "summary.json").read_text()),
    )


def test_branched_play_costs_no_tokens_and_tells_of_every_action(tmp_path):
    _, examples, summary = made(tmp_path, "generate.policy=counterfactual")
    assert summary["examples_counterfactual"] > 2 * summary["episodes"]
    states = {}
    for example in examples:
        if len(example.executed) == 1:
            states.setdefault((example.episode_id, example.turn), set()).add(example.executed[0])
    assert sum(len(actions) >= 4 for actions in states.values()) >= 0.9 * len(states)
    assert any(
        example.next_state == example.state for example in examples
    )  # moves against the edge are data, too


def test_a_mixture_shares_the_episodes_and_only_its_branched_ones_have_branches(tmp_path):
    cfg, examples, _ = made(tmp_path, "generate.mixture={random: 1, counterfactual: 1}")
    who = {example.episode_id: policy_of(cfg, example.episode_id) for example in examples}
    assert set(who.values()) == {"random", "counterfactual"}
    assert {who[example.episode_id] for example in examples if is_counterfactual(example)} == {
        "counterfactual"
    }


def test_coverage_keeps_the_number_of_rows(tmp_path):
    _, rows, summary = made(tmp_path, "generate.policy=counterfactual", "generate.coverage=true")
    assert len(rows) == summary["examples_train"]


def test_an_environment_that_fails_when_it_is_copied_costs_the_rows_of_its_episode(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    env = "{env_type: 'faulty_env:Faulty', max_actions_per_traj: 9, env_config: {fault: clone}}"
    tags = [
        f"es_manager.{split}.env_configs={{tags: [Bad], n_groups: null}}"
        for split in ("train", "val")
    ]
    _, rows, summary = made(
        tmp_path, "generate.policy=counterfactual", f"+custom_envs.Bad={env}", *tags
    )
    assert summary["dropped"]["environment_fault"] > 0
    assert rows and all(row.puzzle_seed % 3 for row in rows)
    assert "called sys.exit(0)" in caplog.text
