"""World-model evaluation of players whose knowledge is known: a perfect one, a copying one, a random one."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from spa import cli
from spa.config.load import load_config
from spa.errors import ConfigError
from spa.policies.scripted import ScriptedEngine, formatted, random_engine
from spa.recipes import setup
from spa.recipes.policies import find_target
from spa_measurements.accuracy import Asked, prediction_report
from spa_measurements.measure_world_model import (
    Asking,
    find_situations,
    measure_world_model,
    world_model_report,
)
from spa_measurements.situations import ceiling, execute, has_chance, random_situation, replay

DETERMINISTIC = ["FrozenLakeNoSlip", "SimpleSokoban", "Sudoku", "RubiksCube"]


def config(tag: str, state_text: str = "grid_and_coords", *more: str):
    tags = f"[{json.dumps(tag)}]"
    return load_config(
        "tiny",
        [
            f"es_manager.val.env_configs.tags={tags}",
            f"es_manager.train.env_configs.tags={tags}",
            f"state_text={state_text}",
            *more,
        ],
    )


def asking(cfg, response) -> Asking:
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    return Asking(
        engine=ScriptedEngine(response),
        worker=player,
        sampling=setup.val_sampling(cfg),
        base_seed=5,
    )


def report(tag: str, response, count: int = 40, state_text: str = "grid_and_coords"):
    cfg = config(tag, state_text)
    who = asking(cfg, response)
    situations, chance = find_situations(who, tag, count, frozenset())
    return world_model_report(cfg, who, situations, chance=chance, steps=3)


def perfect(state_text: str = "grid_and_coords"):
    def response(prompt) -> str:
        env = copy.deepcopy(prompt.context)
        rng = np.random.default_rng(prompt.seed)
        before = env.state_text(state_text)
        actions = [env.random_action(rng) for _ in range(int(rng.integers(1, 4)))]
        execute(env, actions, len(actions))
        return formatted(
            prompt, " || ".join(actions), observation=before, prediction=env.state_text(state_text)
        )

    return response


def copier(prompt) -> str:
    state = prompt.context.state_text("grid_and_coords")
    action = prompt.context.random_action(np.random.default_rng(prompt.seed))
    return formatted(prompt, action, observation=state, prediction=state)


@pytest.mark.parametrize("tag", DETERMINISTIC)
def test_a_perfect_model_scores_one(tag):
    found = report(tag, perfect())
    assert found["observation_exact"]["mean"] == found["prediction_exact"]["mean"] == 1.0
    assert found["cell_accuracy"] == 1.0 and found["changed_cell_f1"] == 1.0
    assert found["prediction_exact_where_changed"] == 1.0
    assert all(score["exact"] == 1.0 for score in found["entities"].values())
    assert [part["prediction_exact"]["mean"] for part in found["open_loop"]] == [1.0] * len(
        found["open_loop"]
    )
    assert found.get("drawing_agrees", 1.0) == 1.0


@pytest.mark.parametrize("order", ["plan_first", "answer_first"])
def test_a_perfect_model_scores_one_in_every_order_of_its_response(order):
    cfg = config("FrozenLakeNoSlip", "coords", f"agent_proxy.response_format={order}")
    who = asking(cfg, perfect("coords"))
    situations, chance = find_situations(who, "FrozenLakeNoSlip", 20, frozenset())
    found = world_model_report(cfg, who, situations, chance=chance, steps=3)
    assert found["format_rate"] == 1.0 and found["prediction_exact"]["mean"] == 1.0
    assert [part["prediction_exact"]["mean"] for part in found["open_loop"]] == [1.0] * len(
        found["open_loop"]
    )


def test_responses_without_predictions_are_refused(tmp_path):
    cfg = config(
        "FrozenLakeNoSlip",
        "coords",
        "agent_proxy.response_format=no_prediction",
        "gate.enable=false",
    )
    with pytest.raises(ConfigError, match="no predictions to measure"):
        measure_world_model(cfg, find_target("random"), output=tmp_path / "out.json", transitions=4)


def test_a_copying_model_scores_the_copy_baseline():
    found = report("FrozenLakeNoSlip", copier)
    copied = found["baselines"]["copy"]
    assert found["observation_exact"]["mean"] == 1.0
    assert 0 < copied["prediction_exact"] < 1
    assert (
        found["prediction_exact"]["mean"] == copied["prediction_exact"] == found["nothing_changed"]
    )
    assert found["cell_accuracy"] == copied["cell_accuracy"] and found["changed_cell_f1"] == 0.0
    assert found["prediction_exact_where_changed"] == 0.0
    assert found["open_loop"][0]["prediction_exact"]["mean"] == found["open_loop"][0]["copy_exact"]


def test_copying_is_not_right_where_the_response_is_malformed():
    asked = [
        Asked(tag="T", puzzle=str(n), state="a", next_state="b" if read else "a", observation="a" if read else None, prediction="b" if read else None)
        for n, read in enumerate((True, True, False, False, False))
    ]  # fmt: skip
    found = prediction_report(asked, {})
    assert found["prediction_exact"]["mean"] == 0.4
    assert found["baselines"]["copy"]["prediction_exact"] == 0.0


def test_a_random_model_scores_near_nothing():
    found = report("FrozenLakeNoSlip", random_engine(max_actions=3).response)
    assert found["prediction_exact"]["mean"] == 0.0 and found["cell_accuracy"] < 0.1
    assert found["baselines"]["other_state"]["prediction_exact"] < 0.1


def test_drawing_and_sentence_that_contradict_are_found():
    def response(prompt) -> str:
        grid, sentence = (
            prompt.context.state_text("grid"),
            "no holes (O); goal (G) is at (0,0); player (P) is at (9,9).",
        )
        return formatted(prompt, "Up", observation="x", prediction=f"{grid}\n{sentence}")

    assert report("FrozenLakeNoSlip", response)["drawing_agrees"] == 0.0
    assert "drawing_agrees" not in report(
        "FrozenLakeNoSlip", perfect("coords"), state_text="coords"
    )


def test_malformed_responses_are_wrong_and_end_the_open_loop_rollout():
    found = report("FrozenLakeNoSlip", lambda prompt: "<think>no idea")
    assert found["format_rate"] == 0.0 and found["prediction_exact"]["mean"] == 0.0
    assert [part["prediction_exact"]["n"] for part in found["open_loop"]] == [8, 8, 8]
    assert [part["copy_exact"] for part in found["open_loop"]] == [0.0, 0.0, 0.0]


def test_an_open_loop_rollout_feeds_back_what_was_predicted():
    shown: list[str] = []

    def response(prompt) -> str:
        shown.append(prompt.messages[-1]["content"])
        return formatted(prompt, "Up", observation="x", prediction="DREAMT")

    report("Sudoku", response, count=5)
    assert ["DREAMT" in text for text in shown] == [False] * 5 + [True] * 2


def test_legal_actions_are_never_shown_beside_a_predicted_state():
    cfg = config("FrozenLake", "grid_and_coords")
    spec = replace(cfg.custom_envs["FrozenLake"], show_legal_actions=True)
    cfg = replace(cfg, custom_envs={**cfg.custom_envs, "FrozenLake": spec})
    who = asking(cfg, copier)
    situations, chance = find_situations(who, "FrozenLake", 5, frozenset())
    found = world_model_report(cfg, who, situations, chance=chance, steps=3)
    assert len(found["open_loop"]) == 1


def test_slippery_ice_has_a_ceiling():
    def stays(prompt) -> str:
        return formatted(prompt, "Up", observation="x", prediction="x")

    found = report("FrozenLake", stays)
    # a move goes each of three ways with probability 1/3; walls make some equal
    assert 0.3 < found["ceiling"] < 0.7
    assert "ceiling" not in report("FrozenLakeNoSlip", stays)


def test_chance_is_seen_and_its_likeliest_outcome_weighed():
    cfg = config("FrozenLake")
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    slippery, prompter = player.make_env("FrozenLake"), player.prompters["FrozenLake"]
    assert has_chance(slippery, prompter, base_seed=0)
    start = random_situation(slippery, prompter, tag="t", index=0, base_seed=0, from_start=True)
    assert start is not None and start.prefix == ()
    assert ceiling(slippery, start, (), "grid") == 1.0
    assert 0 < ceiling(slippery, start, ("Up",), "grid") < 1


def test_situations_are_states_in_the_midst_of_games():
    cfg = config("FrozenLakeNoSlip")
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    env, prompter = player.make_env("FrozenLakeNoSlip"), player.prompters["FrozenLakeNoSlip"]
    found = [
        random_situation(env, prompter, tag="t", index=i, base_seed=3, from_start=False)
        for i in range(30)
    ]
    assert sum(bool(s.prefix) for s in found if s) > 5 and len({s.puzzle for s in found if s}) > 20
    for situation in found:
        assert situation is not None
        replay(env, situation)
        assert env.state_text(prompter.state_text) == situation.state
        assert execute(env, situation.actions, 10)[0] == situation.actions
        assert env.state_text(prompter.state_text) == situation.next_state


def test_trained_puzzles_are_passed_over():
    cfg = config("FrozenLakeNoSlip")
    who = asking(cfg, copier)
    first, _ = find_situations(who, "FrozenLakeNoSlip", 3, frozenset())
    again, _ = find_situations(who, "FrozenLakeNoSlip", 3, frozenset({first[0].puzzle}))
    assert [s.puzzle for s in again[:2]] == [s.puzzle for s in first[1:]]


def test_a_model_gets_likelihoods_and_equal_seeds_equal_bytes(tmp_path, untrained_model):
    cfg = load_config("tiny", ["actor_rollout_ref.rollout.response_length=4", "trainer.device=cpu"])
    for name in ("a", "b"):
        measure_world_model(
            cfg, find_target(str(untrained_model)), output=tmp_path / f"{name}.json", transitions=20
        )
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    found = json.loads((tmp_path / "a.json").read_text())["tags"]["FrozenLakeNoSlip"]["likelihood"]
    nothing = found["uniform_nll_per_token"]
    assert all(abs(value - nothing) < 1 for value in found["nll_per_token"].values())


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(
            [
                "eval",
                "random",
                "--config",
                "tiny",
                "--world-model",
                "--transitions",
                "10",
                "--quiet",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "prediction exact" in out and "copying" in out
    assert "[" in out and "\\[" not in out
    assert (tmp_path / "runs/tiny/eval/random-tiny-FrozenLakeNoSlip-world-model.json").is_file()
    # Another measurement of the same name moves the first one away.
    again = ["eval", "random", "--config", "tiny", "--world-model", "--transitions", "5"]
    assert cli.main([*again, "--greedy", "--quiet"]) == 0
    assert len(list((tmp_path / "runs/tiny/eval/previous/1").iterdir())) == 1
    with pytest.raises(SystemExit):
        cli.main(["eval", "random", "--config", "tiny", "--world-model", "--transitions", "0"])
    assert "--transitions: 0 is less than 1" in capsys.readouterr().err


def test_a_copier_scores_as_the_copy_baseline_however_often_a_puzzle_is_asked():
    asked = [
        Asked(tag="T", puzzle=puzzle, state="a", next_state=after, observation="a", prediction="a")
        for puzzle, after in (("p", "a"), ("p", "a"), ("p", "a"), ("q", "b"))
    ]
    found = prediction_report(asked, {})
    assert found["prediction_exact"]["mean"] == 0.5
    assert found["baselines"]["copy"]["prediction_exact"] == 0.5
