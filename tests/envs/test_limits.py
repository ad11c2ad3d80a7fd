"""What an environment may do to a run: spoil its own episodes, and nothing else."""

import contextlib
import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from faulty_env import Faulty
from helpers.play import answer, play, says

from spa.config.load import load_config
from spa.envs import registry
from spa.envs.eval_sets import eval_set_hashes
from spa.envs.limits import (
    EnvCrash,
    EnvFault,
    LostEpisodes,
    TimedOut,
    boundary,
    checked_step,
    checked_text,
    plain,
    time_limit,
)
from spa.envs.pool import group_specs
from spa.envs.registry import make_env
from spa.envs.workers import EnvWorkers
from spa.errors import ConfigError
from spa.planning.node import simulate
from spa.policies.named import expert_engine
from spa.policies.scripted import random_engine
from spa.recipes import evaluate, setup
from spa.recipes.policies import find_target
from spa.run.signals import StopRequested, stoppable
from spa.types import Episode, StopReason

FAULTS = {
    "raise": "the ice broke",
    "nan": "the reward nan",
    "overflow": "the reward 1e+308; return a finite reward between -1e+06 and 1e+06",
    "words": "returned 'much' as the reward; return a number",
    "none": "step returned None",
    "four": "return (text, reward, terminated, truncated, info)",
    "info": "returned None as info; return a dict",
    "hang": "took more than",
    "exit": "the turn called sys.exit(0)",
    "base": "Panic: no ice left",
    "memory": "MemoryError",
    "huge": "state_text returned a string of 21,000,000 characters; return at most 200,000 characters",
    "bytes": "state_text returned b'x'; return a string",
}
MODULE = "faulty_env:Faulty"


def four_groups() -> list:
    """Puzzle seeds 9, 10, 11, 12, one episode each."""
    return group_specs("train", base_seed=9, step=0, tags=["Lake"], n_groups=[4], group_size=1)


def outcomes(fault: str, **settings) -> list[Episode]:
    make = settings.pop("make", lambda tag: Faulty(fault))
    return play(
        four_groups(), says(answer("Right || Left || Right")), make=make, max_turn=2, **settings
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_episode_and_is_named(fault, caplog):
    with stoppable():
        episodes = outcomes(fault, env_timeout_s=1.0 if fault == "hang" else 60.0)
    assert [episode.stop is StopReason.ERROR for episode in episodes] == [True, False, False, True]
    for episode in (episodes[0], episodes[3]):
        assert FAULTS[fault] in episode.error
    assert "(environment Lake, puzzle seed 9) failed in turn 1" in caplog.text
    healthy = outcomes("")
    for one, other in ((episodes[1], healthy[1]), (episodes[2], healthy[2])):
        assert one.turns == other.turns


def test_a_lost_episode_keeps_nothing_but_its_reason():
    """So that it is the same whenever it was lost, also if it was never played."""
    first, _, _, last = outcomes("raise")
    for episode in (first, last):
        assert (episode.turns, episode.messages, episode.puzzle_hash, episode.token_ids) == (
            (),
            (),
            "",
            None,
        )


def test_what_a_step_tells_beside_the_reward_becomes_plain_data():
    for episode in outcomes("objects"):
        text = json.dumps(episode.to_json())
        assert ("<Panic>" in text and "<set>" in text) is (episode.puzzle_seed % 3 == 0)


def test_numbers_of_other_libraries_become_plain_data():
    assert plain(torch.tensor(False)) is False
    assert plain({"reward": torch.tensor(0.5), "many": torch.zeros(2)}) == {
        "reward": 0.5,
        "many": "<Tensor>",
    }


def test_a_stop_that_was_asked_for_and_swallowed_is_not_forgotten():
    class Swallowing(Faulty):
        def step(self, action):
            with contextlib.suppress(BaseException):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)
            return super().step(action)

    with pytest.raises(StopRequested), stoppable():
        outcomes("", make=lambda tag: Swallowing())


def test_an_interrupt_is_the_users():
    with pytest.raises(KeyboardInterrupt):
        outcomes("interrupt")


def test_a_player_that_asks_an_environment_is_inside_the_boundary():
    class Drawing(Faulty):
        def random_action(self, rng):
            raise SystemExit(0)

    engine = random_engine(max_actions=1)
    episodes = play(four_groups(), engine, make=lambda tag: Drawing(), max_turn=1)
    assert {episode.error for episode in episodes} == {"the player called sys.exit(0)"}


def test_a_solver_has_the_limit_that_is_configured(monkeypatch):
    class Slow(Faulty):
        def expert_actions(self, limit):
            time.sleep(30)
            return ("Right",)

    monkeypatch.setattr("spa.envs.limits.MAKING_S", 0.1)  # a puzzle is made in less
    engine = expert_engine(max_actions=1)
    episodes = play(four_groups(), engine, make=lambda tag: Slow(), max_turn=1, env_timeout_s=0.4)
    for episode in episodes:
        assert "the player took more than 0.5 s (raise es_manager.env_timeout_s" in episode.error


def test_episodes_that_are_declared_lost_are_not_played(tmp_path):
    (tmp_path / "lost.jsonl").write_text(
        '{"episode_id": "train/0/1/0", "reason": "by hand"}\n{"episode_id": "tra'
    )
    made = []
    lost = LostEpisodes(tmp_path / "lost.jsonl")
    episodes = outcomes("", make=lambda tag: made.append(tag) or Faulty(), lost=lost)
    assert [episode.error for episode in episodes] == ["", "by hand", "", ""] and len(made) == 3


def test_a_hang_that_swallows_errors_is_ended_too_and_shows_where_it_was():
    episodes = outcomes("spin", env_timeout_s=1.0)
    assert [episode.stop is StopReason.ERROR for episode in episodes] == [True, False, False, True]
    assert "faulty_env.py" in episodes[0].error
    assert "more than 1 s (raise es_manager.env_timeout_s if the" in episodes[0].error


def test_a_limit_lasts_after_another_one_inside_it():
    with (
        pytest.raises(TimedOut, match=r"the outer took more than 0\.3 s and hung at"),
        time_limit(0.3, "the outer"),
    ):
        with time_limit(0.2, "the inner"):
            pass
        time.sleep(3)


def test_errors_inside_a_time_limit_stay_what_they_are():
    with pytest.raises(ZeroDivisionError), time_limit(30, "it"):
        raise ZeroDivisionError


def test_only_the_first_faults_of_many_are_listed(caplog):
    specs = group_specs("train", base_seed=0, step=0, tags=["Lake"], n_groups=[13], group_size=1)
    play(specs, says(answer("Right || Left")), make=lambda tag: Faulty("raise"), max_turn=1)
    assert caplog.text.count("the ice broke") == 3
    assert "1 more episodes failed" in caplog.text


def test_what_passes_the_checks_is_unchanged():
    assert checked_step(("s", 1, False, True, {"a": 1})) == (1.0, True, {"a": 1})
    assert checked_text("s", "it") == "s"
    with pytest.raises(EnvFault, match="it returned 3"):
        checked_text(3, "it")


@pytest.fixture(scope="module")
def workers():
    """Two processes that can import the faulty environment."""
    paths = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        made = EnvWorkers(2, timeout_s=3.0)
        yield made
        made.close()


def test_environments_in_other_processes_play_as_they_would_here(workers):
    here = outcomes("")
    there = outcomes("", make=lambda tag: workers.make(MODULE, {}), lanes=2)
    assert [episode.turns for episode in here] == [episode.turns for episode in there]
    assert [episode.puzzle_hash for episode in here] == [episode.puzzle_hash for episode in there]


def test_what_hangs_or_dies_there_is_replaced_and_the_others_go_on(workers, caplog):
    # Seeds 9 and 11 share a process, as 10 and 12 do: the first of each pair is healthy or not.
    healthy = outcomes("")
    for fault, told in (
        ("hang", "step took more than 3 s"),
        ("die", "the environment's process ended in step (exit status 7)"),
        ("kill_group", "the environment's process ended in step (exit status -9)"),
    ):
        episodes = outcomes(
            fault, make=lambda tag, fault=fault: workers.make(MODULE, {"fault": fault}), lanes=2
        )
        assert [episode.stop is StopReason.ERROR for episode in episodes] == [
            True,
            False,
            False,
            True,
        ], fault
        assert told in episodes[0].error and told in episodes[3].error
        assert [episodes[i].turns for i in (1, 2)] == [healthy[i].turns for i in (1, 2)]


def test_what_ends_its_process_is_marked_and_not_played_again(workers, tmp_path):
    make, path = (
        (lambda tag: workers.make(MODULE, {"fault": "die_in_reset"})),
        tmp_path / "lost.jsonl",
    )
    first = outcomes("", make=make, lanes=2, lost=LostEpisodes(path))
    lives = [worker.life for worker in workers._workers]
    again = outcomes("", make=make, lanes=2, lost=LostEpisodes(path))
    assert [episode.error for episode in again] == [episode.error for episode in first]
    assert "the environment's process ended in reset (exit status 7)" in first[0].error
    assert [worker.life for worker in workers._workers] == lives  # nothing died the second time
    assert LostEpisodes(path).is_unmakeable("train/0/0/0")


def test_what_a_policy_ends_is_marked_too(workers, tmp_path):
    """Uniformly random play asks the environment for its actions."""
    episodes = play(
        four_groups(),
        random_engine(max_actions=2),
        make=lambda tag: workers.make(MODULE, {"fault": "die_in_random_plan"}),
        max_turn=2,
        lanes=2,
        lost=LostEpisodes(tmp_path / "lost.jsonl"),
    )
    assert "ended in random_plan" in episodes[0].error
    known = LostEpisodes(tmp_path / "lost.jsonl")
    ids = [episode.episode_id for episode in episodes]
    assert [known.reason(one) is not None for one in ids] == [True, False, False, True]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_was_added_by_hand_may_lack_its_end(tmp_path, end):
    path = tmp_path / "lost.jsonl"
    path.write_text('{"episode_id": "train/3/17/0"}' + end)
    LostEpisodes(path).mark("train/5/2/1", EnvCrash("it ended", "step"))
    known = LostEpisodes(path)
    assert known.reason("train/3/17/0") and known.reason("train/5/2/1")


@pytest.mark.parametrize("fault", ["exit", "base", "huge", "bytes", "objects"])
def test_no_fault_there_ends_the_process_or_sends_objects_here(workers, fault):
    lives = [worker.life for worker in workers._workers]
    episodes = outcomes("", make=lambda tag: workers.make(MODULE, {"fault": fault}), lanes=2)
    lost = [False] * 4 if fault == "objects" else [True, False, False, True]
    assert [episode.stop is StopReason.ERROR for episode in episodes] == lost
    assert [worker.life for worker in workers._workers] == lives


def test_with_processes_of_their_own_no_environment_is_made_here(monkeypatch, tmp_path):
    """Sample responses, validation puzzles and training puzzles are all looked at there."""
    monkeypatch.setattr(registry, "env_class", lambda env_type: pytest.fail("made in this process"))
    cfg = load_config(
        "demo",
        [
            "es_manager.env_workers=1",
            "ctx_manager.mode=add_worldmodel",
            "es_manager.val.env_groups=2",
            "es_manager.train.env_groups=2",
            "es_manager.train.group_size=4",
            "state_text=coords",
        ],
        stages=("selfplay",),
    )
    player = setup.make_worker(cfg, None, mode="add_worldmodel", lost=tmp_path / "lost.jsonl")
    held_out = setup.validation_hashes(cfg, player)
    assert len(held_out - eval_set_hashes()) == 2
    assert len(setup.training_specs(cfg, player, "train", step=0, held_out=held_out)) == 8
    assert player.workers is not None
    player.workers.close()


def test_a_wrong_option_there_is_the_users_to_solve(workers):
    with pytest.raises(ConfigError, match="option 'sise' is unknown"):
        workers.make("frozen_lake", {"sise": 4})


def test_draws_from_a_generator_are_those_made_here(workers):
    env, rng, twin = (
        workers.make("frozen_lake", {}),
        np.random.default_rng(3),
        np.random.default_rng(3),
    )
    local = Faulty()
    for one in (env, local):
        one.reset(seed=1)
    assert [env.random_action(rng) for _ in range(6)] == [
        local.random_action(twin) for _ in range(6)
    ]
    assert env.finite_puzzles is False
    # Attributes, not methods, of `TextEnv`: prompts of a written search unpack the last one.
    assert env.players == 1 and env.default_state_text == "grid"
    assert env.state_key_format == local.state_key_format


def test_a_copy_there_goes_its_own_way_and_comes_back_after_its_process(workers):
    env = workers.make("frozen_lake", {})
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    local = make_env("frozen_lake", {})
    local.reset(seed=1)
    plan = ("Right", "Down")
    there = simulate(env, plan, "coords", np.random.default_rng(0))
    assert there.state == simulate(local, plan, "coords", rng).state is not None
    assert env.state_text("coords") == local.state_text("coords")  # it has not moved
    env.step("Right")
    twin = env.clone(3)
    local.step("Right")
    twin.step("Down")
    deeper = twin.clone()
    deeper.step("Left")
    states = [game.state_text("coords") for game in (twin, deeper)]
    env._worker.stop()
    assert [game.state_text("coords") for game in (twin, deeper)] == states
    assert env.state_text("coords") == local.state_text("coords")  # which is played again


def test_planned_play_with_workers_knows_which_predictions_are_right(tmp_path):
    found = []
    for workers in (0, 1):
        cfg = load_config(
            "demo",
            [
                f"es_manager.env_workers={workers}",
                "imagine.n=3",
                "imagine.dynamics=simulator",
                "imagine.noise_prob=0.5",
                "es_manager.val.env_groups=2",
                "es_manager.val.group_size=2",
            ],
        )
        output = tmp_path / f"{workers}.json"
        found.append(evaluate.evaluate_target(cfg, find_target("random"), output=output))
    assert found[0]["imagination"]["right"] is not None
    assert found[0]["imagination"] == found[1]["imagination"]
    assert found[0]["tags"] == found[1]["tags"]


def test_closed_workers_leave_no_process_behind():
    workers = EnvWorkers(1, timeout_s=3.0)
    env = workers.make("frozen_lake", {})
    process = env._worker.process
    workers.close()
    assert not process.is_alive()


def test_a_boundary_that_an_ending_interpreter_closes_is_no_fault_of_the_environment():
    opened = boundary.__wrapped__("the turn")  # type: ignore[attr-defined]
    next(opened)
    opened.close()  # what becomes of a generator that is thrown away; no EnvFault
    assert opened.gi_frame is None
