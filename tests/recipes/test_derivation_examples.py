"""Written derivations from examples to evaluation with the built-in model: puzzles, later turns, controls, stages."""

import json
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.config.schema import Config
from spa.errors import ConfigError
from spa.examples.search import make_examples, too_few
from spa.examples.source import Puzzles
from spa.formats.blocks import think_text
from spa.formats.registry import parse_response
from spa.planning.dynamics import Simulator
from spa.recipes import evaluate, pipeline, selfplay, setup
from spa.recipes.policies import Target
from spa.types import SFTExample
from spa.worldmodel.sft_files import read_examples
from spa_games.formats.constraint_propagation import derive, score_derivation, write_derivation
from spa_games.sudoku import Sudoku
from spa_sweeps.methods import METHODS, controls_of

SETTINGS = (
    "model_path=builtin:tiny",
    "sft.model.partial_pretrain=builtin:tiny",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.rollout.response_length=32",
    "generate.sampling.response_length=1280",
    "generate.search.examples=24",
    "actor_rollout_ref.model.dtype=float32",
    "sft.model.dtype=float32",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.test_freq=2",
    "sft.trainer.eval_episodes=2",
    "trainer.device=cpu",
    "trainer.logger=[]",
)


def config(*overrides: str, method: str = "supplied_rules") -> Config:
    changed = [*SETTINGS, *METHODS[method].overrides, *overrides]
    return load_config("smol_sudoku_propagation", changed)


def examples(method: str = "supplied_rules", *overrides: str) -> list[SFTExample]:
    cfg = config(*overrides, method=method)
    return make_examples(cfg, puzzles_of(cfg), Simulator())[0]


def puzzles_of(cfg: Config) -> Puzzles:
    worker = setup.make_worker(cfg, None, mode="base")
    return Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))


def game_of(example: SFTExample) -> Sudoku:
    """The game in the state of an example, which the derivation's own actions lead to."""
    env = Sudoku(board_size=4, clues=[6, 7, 8], max_steps=None)
    env.reset(seed=example.puzzle_seed)
    for action in derive(env.constraint_problem()).path or ():
        if env.state_text("coords") == example.state:
            return env
        env.step(action)
    raise AssertionError("the derivation's own actions lead to no such state")


def test_every_example_is_exact_and_answers_with_its_first_actions():
    sft_examples = examples()
    assert len({example.puzzle_hash for example in sft_examples}) == len(sft_examples) == 25
    assert {example.turn for example in sft_examples} == {0, 1}
    for example in sft_examples:
        env = game_of(example)
        thoughts, _ = think_text(example.response)
        score = score_derivation(thoughts, env.constraint_problem())
        assert score is not None and score.failure == ""
        response = parse_response(example.response, mode="base")
        path = tuple(thoughts.split("\n")[-1].split())
        assert response.well_formed and response.actions == example.executed == path[:5]
        before = env.steps
        assert (before == 0) == (example.turn == 0) and before <= 5
        prompt = example.prompt[1]["content"]
        assert prompt.endswith(f"State:\n{example.state}\nActions left: {10 - before}.")
        assert "Reply only with <think>[the open cells, cells as row and column" in prompt
        for action in example.executed:
            _, _, _, _, info = env.step(action)
            assert info["action_is_effective"]
        assert example.success == all(env.cells)
        assert example.next_state == env.state_text("coords")


def test_a_puzzle_that_stalls_is_dropped_with_the_reason():
    cfg = config(
        "custom_envs.SudokuFewClues.env_config={board_size: 9, clues: 30, max_steps: null}",
        "generate.sampling.response_length=100000",
        "actor_rollout_ref.rollout.max_model_len=110000",
        "generate.search.examples=2",
    )
    sft_examples, lines, dropped, _ = make_examples(cfg, puzzles_of(cfg), Simulator())
    assert len(sft_examples) == len(lines) == 3 and {*dropped} == {"stalled"}
    assert "single candidates alone" in too_few("stalled", "simulator")


def test_controls_have_the_same_puzzles_and_prompts():
    right = examples()
    permuted, other, bare = (
        examples(f"supplied_rules_{name}") for name in ("permuted", "other_puzzle", "actions")
    )
    for control in (permuted, other):
        assert [each.prompt for each in control] == [each.prompt for each in right]
    assert [each.executed for each in other] == [each.executed for each in bare]
    assert [each.executed for each in other] == [each.executed for each in right]
    assert all(each.response.startswith("<answer>") for each in bare)
    for true, false, elsewhere in zip(right, permuted, other, strict=True):
        problem = game_of(true).constraint_problem()
        thoughts = [think_text(each.response)[0] for each in (true, false, elsewhere)]
        assert thoughts[0] == write_derivation(derive(problem)) != thoughts[2]
        score = score_derivation(thoughts[1], problem)
        assert score is not None
        # The rule holds, and every digit is another one.
        assert score.kinds["candidate"] == (score.lines, score.lines) and score.failure
        assert not {*false.executed} & {*(derive(problem).path or ())}


def test_controls_and_baseline_of_the_preset():
    assert controls_of(config()) == ("supplied_rules_permuted", "supplied_rules_other_puzzle")
    assert [*config().compare.arms] == ["random_format", "supplied_rules"]
    random = load_config(
        "smol_sudoku_propagation", [*SETTINGS, *METHODS["random_format"].overrides]
    )
    assert random.generate.policy == "random"


def test_predicted_moves_are_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"generate\.search\.dynamics: must be simulator.*neighb"):
        config("generate.search.dynamics=model", "generate.rounds=2")


def test_a_game_without_variables_is_refused():
    lake = (
        "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
        "es_manager.val.env_configs.tags=[FrozenLakeNoSlip]",
    )
    with pytest.raises(ConfigError, match=r"FrozenLake does not implement TextEnv\.constr"):
        examples("supplied_rules", *lake)


def test_examples_then_sft_then_evaluation(tmp_path: Path):
    cfg = config(f"trainer.run_dir={tmp_path}")
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    assert len(read_examples(data / "wm_train.parquet")) == 24
    assert len(read_examples(data / "wm_val.parquet")) == 1
    summary = json.loads((data / "summary.json").read_text())
    assert summary["search"]["dynamics"] == "simulator" and summary["actions_elsewhere"] > 24
    tuned = pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    measured = json.loads((tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()[-1])
    kinds = {"open", "next", "fact", "candidate", "value", "path", "answer"}
    assert kinds <= {key.rpartition("/")[2] for key in measured if "teacher_forced" in key}
    assert "val/search/exact" in measured
    result = evaluate.evaluate_target(
        cfg, Target(name="tuned", label="tuned", model=str(tuned)), output=tmp_path / "eval.json"
    )
    tag = result["tags"]["SudokuFewClues"]
    assert 0 <= tag["search/exact"] <= 1 and tag["search/over_limit"] + tag["search/exact"] <= 1
