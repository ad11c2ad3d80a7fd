"""Each example is run as its first lines say."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from spa.algo.estimators import estimator_named
from spa.cli import main
from spa.config.load import load_config
from spa.engines.factory import make_engine
from spa.errors import ConfigError
from spa.formats.search import breadth_first, explore, write_search
from spa.policies.scripted import random_engine
from spa.recipes import setup
from spa.types import StopReason
from spa_author.checker import check

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_environment_conforms():
    from custom_env import GuessNumber  # pyright: ignore[reportMissingImports]

    assert [finding for finding in check(GuessNumber) if not finding.ok] == []


def test_the_environment_answers_guesses():
    from custom_env import GuessNumber  # pyright: ignore[reportMissingImports]

    env = GuessNumber(highest=20)
    env.reset(seed=3)
    env.hidden = 7
    assert env.step("10")[0] == "The number is between 1 and 9."
    assert env.step("3")[0] == "The number is between 4 and 9."
    assert env.step("15")[4] == {
        "action_is_valid": False,
        "action_is_effective": False,
        "success": False,
    }
    assert env.step("7")[:3] == ("Found: 7.", 1.0, True)
    assert GuessNumber().to_action("seven") is None


def test_searches_of_a_players_slides_are_written():
    from slide import Slide  # pyright: ignore[reportMissingImports]

    assert [finding for finding in check(Slide) if not finding.ok] == []
    env = Slide()
    env.reset(seed=0)
    env.player, env.goal, env.rocks = "20", "04", ["11", "12", "32", "33", "00"]
    true, _ = explore(env)
    assert (
        write_search(breadth_first("20", lambda key: true[key]))
        == """20: Left20 seen Down40 Right24 Up10 ; 40 24 10
40 Down: Left40 seen Down40 seen Right44 Up10 seen ; 24 10 44
24 Right: Left20 seen Down44 seen Right24 seen Up04 goal
Right Up"""
    )
    assert main(["run", "slide.yaml", "--dry-run", "model_path=builtin:tiny"]) == 0


def test_a_lamp_that_is_pressed_puts_out_its_neighbours():
    from lamps import Lamps  # pyright: ignore[reportMissingImports]

    assert [finding for finding in check(Lamps) if not finding.ok] == []
    env = Lamps(count=4)
    env.reset(seed=0)
    env.lit, env.wanted = (True, False, True, True), (False, True, False, True)
    assert env.step(env.to_action("Press 2"))[:3] == (
        "Lamps: 1 off, 2 on, 3 off, 4 on. Wanted on: 2, 4.",
        1.0,
        True,
    )
    assert (
        env.step(env.to_action("press 4"))[0] == "Lamps: 1 off, 2 on, 3 off, 4 on. Wanted on: 2, 4."
    )
    assert env.to_action("Press 5") is None
    assert all(env.action_space.contains(env.to_action(name)) for name in env.action_names())


def test_every_pattern_of_lamps_is_reached_by_pressing_what_is_wanted():
    from lamps import Lamps  # pyright: ignore[reportMissingImports]

    env = Lamps()
    for seed in range(50):
        env.reset(seed=seed)
        assert env.lit != env.wanted
        results = [env.step(lamp) for lamp, on in enumerate(env.wanted, 1) if on]
        assert results[-1][4]["success"], env.start


def test_nim_conforms_and_pays_both_players():
    from nim import Nim  # pyright: ignore[reportMissingImports]

    assert [finding for finding in check(Nim) if not finding.ok] == []
    env = Nim()
    env.reset(seed=0)
    env.heaps = [1, 0, 2]
    assert env.step("take 1 from 1")[4]["rewards"] == [0.0, 0.0] and env.current_player() == 1
    assert env.step("take 3 from 3")[4]["action_is_valid"] is False and env.current_player() == 1
    _, reward, over, _, info = env.step("take 2 from 3")
    assert (reward, over, info["rewards"], info["successes"]) == (
        1.0,
        True,
        [-1.0, 1.0],
        [False, True],
    )


def test_a_game_of_views_is_copied_as_the_player_to_move_sees_it():
    from nim import Nim  # pyright: ignore[reportMissingImports]

    class ViewNim(Nim):
        """Each player is told which one he is; without `changes`, a copy is played again."""

        changes = None
        me = 0

        def reset(self, *, seed=None, options=None):
            self.me = 0
            return super().reset(seed=seed, options=options)

        def look_as(self, player):
            self.me = player

        def state_text(self, mode):
            return f"You are player {self.me}. {super().state_text(mode)}"

    assert [finding for finding in check(ViewNim) if not finding.ok] == []


def test_self_play_pairs_the_groups_of_training_and_validation_has_none():
    cfg = load_config(
        "nim.yaml", ["model_path=builtin:tiny", "es_manager.train.env_groups=4", "seed.train=1"]
    )
    player = setup.make_worker(cfg, None, mode="base")
    specs = setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())
    size = cfg.es_manager.train.group_size
    pairs = list(zip(specs[:size], specs[size : 2 * size], strict=True))
    assert all(a.table == b.table and (a.seat, b.seat) == (0, 1) for a, b in pairs)
    assert all((a.puzzle_seed, a.noise_seed) == (b.puzzle_seed, b.noise_seed) for a, b in pairs)
    assert len({spec.table for spec in specs}) == len(specs) // 2
    against_random = setup.episode_specs(cfg.es_manager.val, "val", base_seed=0, step=0)
    assert {spec.table for spec in against_random} == {""} and {
        spec.seat for spec in against_random
    } == {0, 1}
    with pytest.raises(ConfigError, match="self_play needs an even number"):
        load_config("nim.yaml", ["model_path=builtin:tiny", "es_manager.train.env_groups=3"])


def test_its_configuration_plays_in_the_world_model_format():
    cfg = load_config("custom_env.yaml", ["model_path=builtin:tiny"])
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=0, step=0)[:6]
    episodes = player.rollout(
        random_engine(None, max_actions=1), specs, setup.selfplay_sampling(cfg)
    )
    assert len(episodes) == 6 and all(episode.stop is not StopReason.ERROR for episode in episodes)
    assert all(turn.response.well_formed for episode in episodes for turn in episode.turns)


def test_the_advantage_centres_outcomes():
    from custom_advantage import centred  # pyright: ignore[reportMissingImports]

    batch = type("Batch", (), {"mask": torch.tensor([[True, False, True], [False, True, True]])})
    rewards = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    advantages, returns = centred(batch, rewards, gamma=1.0)
    assert advantages.tolist() == [[1.0, 0.0, 1.0], [0.0, -1.0, -1.0]]
    assert returns is advantages


@pytest.mark.parametrize("name", ["centred", "centred_and_whitened"])
def test_a_configuration_takes_the_advantage(name: str, capsys: pytest.CaptureFixture[str]):
    assert (
        main(
            [
                "run",
                "tiny",
                "--stages",
                "ppo",
                f"algorithm.adv_estimator=custom_advantage:{name}",
                "--dry-run",
            ]
        )
        == 0
    )
    assert "is valid" in capsys.readouterr().out
    found = estimator_named(f"custom_advantage:{name}", {"gamma"})
    assert (found.needs_values, found.whitened) == (False, name == "centred_and_whitened")


def test_the_engine_is_taken_by_its_name():
    cfg = load_config("demo", ["actor_rollout_ref.rollout.name=custom_engine:Dice"])
    engine = make_engine(cfg, "builtin:tiny")
    player = setup.make_worker(cfg, engine.template, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=0, step=0)[:4]
    assert all(
        episode.stop is not StopReason.ERROR
        for episode in player.rollout(engine, specs, setup.val_sampling(cfg))
    )


def test_the_engine_plays_the_demo(capsys: pytest.CaptureFixture[str]):
    runpy.run_path("custom_engine.py", run_name="__main__")
    match = re.fullmatch(r"success in (\d+) of 512 episodes\n", capsys.readouterr().out)
    assert match and 0.05 < int(match[1]) / 512 < 0.6


def test_a_method_of_ones_own_is_compared_and_tried(tmp_path: Path, base: Path):
    from helpers.grids import run_small
    from helpers.runs import SMALL

    from spa_sweeps.compare import methods_compared

    few = [
        "trainer.total_training_steps=1",
        "sft.trainer.total_training_steps=1",
        "generate.num_batches=1",
    ]
    overrides = [*SMALL, *few, f"model_path={base}", f"trainer.run_dir={tmp_path / 'run'}"]
    own = "custom_method:short_sight"
    summary = run_small(methods_compared("base", [*overrides, f"compare.arms=[spa,'{own}']"]))
    assert set(summary["methods"]) == {"spa", "short_sight"} and set(summary["difference"]) == {
        "short_sight"
    }
    assert (tmp_path / "run" / "short_sight" / "sft").is_symlink()  # only PPO is its own
    assert methods_compared("base", overrides, only=["spa", own]).grid.missing == []
    tried = [
        "compare",
        "base",
        *overrides,
        "--sweep",
        "algorithm.lam=1.0,0.9",
        "--method",
        own,
        "--dry-run",
    ]
    assert main(tried) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_file:x", "cannot load"),
        ("custom_env:GuessNumber", "is not an object of the class spa.methods.Method"),
    ],
)
def test_what_is_no_method_is_named(name: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", "demo", "--methods", f"spa,{name}", "--dry-run"]) == 2
    assert said in capsys.readouterr().err
