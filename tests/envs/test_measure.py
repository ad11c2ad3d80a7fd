"""`spa env measure --model`: the verdict's branches, and the command on games with and without names of states."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from spa.cli import execute
from spa.envs.frozen_lake import FrozenLake
from spa.envs.pool import EpisodeSpec
from spa.envs.reference import policy_success
from spa.formats.search import explore
from spa.planning.dynamics import LearnedMoves, Puzzle
from spa.policies.scripted import ScriptedEngine
from spa.prompts.render import STATE
from spa.seeds import stream
from spa.types import Prompt, SFTExample
from spa_author.measure import MoveParts, Plans, TimeUp, names_of_states, split
from spa_author.verdict import Measured, verdict


def measured(**figures: Any) -> Measured:
    """A game that random play wins in 20 % and the walk in 30 %, with good predictions."""
    known: dict[str, Any] = {
        "random": 0.2,
        "walk": 0.3,
        "look_ahead": 0.5,
        "optimum": 1.0,
        "right": 0.95,
        "copy": 0.3,
        "search": 0.85,
        "search_ahead": 0.4,
    }
    return Measured(
        game="Game", model="builtin:tiny", minutes=1.0, max_actions=6, **(known | figures)
    )


@pytest.mark.parametrize(
    ("figures", "known", "bottleneck", "train"),
    [
        ({"walk": 0.61}, "The walk wins 61.0 % without", "The board is", "Train nothing yet: make"),
        ({"random": 0.7}, "Random play wins 70.0 %", "The board is", "Train nothing yet: make"),
        ({"walk": 0.6}, "planning with them wins 85.0 %", "Wrong predictions are", "search_model"),
        ({"optimum": 0.39}, "possible policy wins 39.0 %", "The limit of actions", "raise max_act"),
        ({"right": None}, "the walk, wins 30.0 %", "not known", "to its end"),
        ({"copy": 0.95}, "no world model to learn", "The choice of actions", "vanilla"),
        ({"right": 0.35}, "it has not learned the moves", "World-model accuracy", "--minutes"),
        ({}, "95.0 % of held-out moves right (copy baseline 30.0 %), and", "Wrong", "search_model"),
        ({"search": 0.9}, "wins 90.0 % (the walk 30.0 %)", "own play", "search_model"),
        ({"optimum": None}, "wins 85.0 %", "own play", "search_model"),
        ({"right": 0.36}, "wins 85.0 %", "Wrong predictions", "search_model"),
        ({"search": 0.3, "search_ahead": 0.4}, "wins 40.0 %", "Wrong predictions", "search_model"),
        (
            {"right": 0.89, "search": 0.39, "search_ahead": None},
            "89.0 % of held-out",
            "plans of several moves need 90.0 %",
            "longer",
        ),
        (
            {"right": 0.9, "search": 0.39, "search_ahead": None},
            "planning with them wins only 39.0 %",
            "The search or the distance",
            "goal_distance",
        ),
        (
            {"search": None, "search_ahead": None},
            "whether this helps to win is not measured",
            "without a model, the walk wins 30.0 %",
            "spa and vanilla",
        ),
        (
            {"walk": None, "search": None, "search_ahead": None},
            "95.0 %",
            "random play wins 20.0 %",
            "spa and vanilla",
        ),
    ],
)
def test_a_verdict_follows_from_thresholds(figures, known, bottleneck, train):
    sentences = verdict(measured(**figures))
    for sentence, part in zip(sentences, (known, bottleneck, train), strict=True):
        assert part in sentence
        words = [word for word in sentence.split() if any(map(str.isalnum, word))]
        assert sentence.endswith(".") and len(words) <= 22


class Unnamed(FrozenLake):
    """A lake without reference methods and without names of states."""

    def __init__(self) -> None:
        super().__init__(size=3, is_slippery=False)

    def greedy_action(self, rng):
        return None

    def goal_distance(self):
        return None

    def best_success(self, limit):
        return None

    def state_key(self):
        return None


def run(game: str, folder: Path, *, minutes: float) -> dict:
    output = folder / "new" / "result.json"
    words = ["env", "measure", game, "--model", "builtin:tiny", "--minutes", str(minutes)]
    assert execute([*words, "--output", str(output), *config(folder)]) == 0
    return json.loads(output.read_text())


def config(folder: Path) -> list[str]:
    file = folder / "lake.yaml"
    lake = "{env_type: frozen_lake, max_actions_per_traj: 8, env_config: {size: 3, is_slippery: false}}"
    file.write_text(f"defaults: [base, _self_]\ncustom_envs:\n  Lake: {lake}\n")
    return ["--config", str(file)]


def test_a_lake_is_measured(tmp_path, capsys):
    result = run("Lake", tmp_path, minutes=0.1)
    assert result["max_actions"] == 8 and result["reference_puzzles"] >= 10
    assert 0 < result["random"] < result["walk"] <= result["optimum"] == 1.0
    assert result["sft_steps"] >= 1 and result["held_out"] >= 1
    assert set(result["accuracy"]) == {"state"} and 0 < result["copy"] < 1
    assert not result["full_states"]
    # On a busy machine no puzzle may be finished; then the result says so.
    assert (result["search"] is None) == ("raise --minutes" in result["no_planning"])
    printed = capsys.readouterr().out
    assert "optimum" in printed and "single moves" in printed
    for sentence in result["verdict"]:
        assert sentence in printed


def lake_puzzle(number: int) -> Puzzle:
    env = FrozenLake(size=3, is_slippery=False)
    env.reset(seed=number)
    true, copies = explore(env)
    spec = EpisodeSpec(
        episode_id="e", tag="Lake", group=0, member=0, puzzle_seed=0, noise_seed=0, sample_seed=0
    )
    text = env.state_text("coords")
    return Puzzle(
        number=number,
        spec=spec,
        puzzle_hash="",
        env=env,
        true=true,
        copies=copies,
        text=text,
        turn=1,
        rng=stream(number, "test"),
    )


def wins(policy_of, *, false: bool = False, until: float = inf) -> float:
    """The share of lakes that a policy wins with a model that is always right, or that takes each action for
    another."""
    won = 0
    for number in range(40):
        puzzle = lake_puzzle(number)

        def response(prompt: Prompt, puzzle=puzzle) -> str:
            state = puzzle.env.key_of_text(prompt.messages[-1]["content"].partition(STATE)[2])
            leads = {action: after for action, after, _ in puzzle.true[state]}
            names = [*leads]
            action = prompt.prefill.removeprefix("<think>")
            asked = names[names.index(action) - 2] if false else action
            return f"{prompt.prefill}{leads[asked]}"

        plans = Plans(LearnedMoves(ScriptedEngine(response), None), puzzle, until)
        won += bool(policy_success(puzzle.env.clone(), policy_of(plans), 8, puzzle.rng))
    return won / 40


def test_plans_win_by_what_the_model_predicts():
    assert wins(lambda plans: plans.search) == 1.0
    assert 0.7 < wins(lambda plans: plans.look_ahead) < 1.0
    assert wins(lambda plans: plans.search, false=True) < 0.3
    with pytest.raises(TimeUp):
        wins(lambda plans: plans.search, until=0.0)


def test_a_game_without_methods_says_which_are_missing(tmp_path, capsys):
    result = run(f"{__name__}:Unnamed", tmp_path, minutes=0.05)
    assert [result[name] for name in ("walk", "look_ahead", "optimum", "search")] == [None] * 4
    assert result["full_states"] and "TextEnv.state_key" in result["no_planning"]
    assert set(result["accuracy"]) == {"observation", "prediction", "answer"}
    assert result["right"] == result["accuracy"]["prediction"]
    printed = capsys.readouterr().out
    assert printed.count("not available") == 4 and "TextEnv.state_key" in printed


def test_names_of_states_are_read_from_the_rendering_that_shows_them():
    env = FrozenLake(size=3, is_slippery=False)
    env.reset(seed=0)
    assert names_of_states(env, "coords") == ("coords", "")
    assert names_of_states(env, "grid")[1] == ""
    slippery = FrozenLake(size=3)
    slippery.reset(seed=0)
    shown, reason = names_of_states(slippery, "grid")
    assert shown == "grid" and "turn chance off" in reason


def test_a_game_of_one_puzzle_holds_out_examples():
    one = SFTExample(
        prompt=(), response="", tag="t", episode_id="e", turn=0, puzzle_seed=0, puzzle_hash="one",
        success=False, reward=0.0, state="", next_state="",
    )  # fmt: skip
    examples = [replace(one, turn=turn) for turn in range(25)]
    learned, held_out = split(examples, seed=0)
    assert [each.turn for each in held_out] == [0, 10, 20]
    assert sorted([*learned, *held_out], key=lambda each: each.turn) == examples


def test_the_state_of_a_move_follows_its_action():
    form = MoveParts(("Go", "Go left"))
    assert form.parts("<think>Go12") == [("state", 9, 11)]
    assert form.parts("Go left12") == [("state", 7, 9)]


def test_an_interruption_keeps_the_reference_policies(tmp_path):
    output = tmp_path / "result.json"
    words = ["env", "measure", "Lake", "--model", "builtin:tiny", "--minutes", "0.4"]
    command = [sys.executable, "-m", "spa", *words, "--output", str(output), *config(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = ""
        while "optimum" not in printed:
            printed += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        printed += process.stdout.read()
    assert process.returncode == 130
    result = json.loads(output.read_text())
    assert result["walk"] > 0 and result["right"] is None
    assert result["verdict"][0] in printed


@pytest.mark.parametrize("minutes", ["0", "nan", "inf"])
def test_minutes_are_positive(minutes, capsys):
    with pytest.raises(SystemExit):
        execute(["env", "measure", "Lake", "--model", "builtin:tiny", "--minutes", minutes])
    assert "give minutes above 0" in capsys.readouterr().err
