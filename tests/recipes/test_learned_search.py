"""Written searches by the model's own predictions: rounds, what is asked, and what is written when all is right."""

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import make_env
from spa.errors import ConfigError, DataError
from spa.examples.search import fresh_puzzles, make_examples, questions
from spa.examples.source import Puzzles
from spa.models.build import load_template
from spa.planning.dynamics import LearnedMoves, Simulator
from spa.planning.moves import MIN_TOKENS, answer_tokens, require_names
from spa.policies.scripted import ScriptedEngine
from spa.prompts.render import STATE
from spa.recipes import pipeline, setup
from spa.recipes.rounds import rounds_of
from spa.types import Prompt, SFTExample
from spa.worldmodel.examples import write_parquet
from spa.worldmodel.sft_files import read_examples
from spa_sweeps.methods import METHODS

SETTINGS = (
    "model_path=builtin:tiny",
    "sft.model.partial_pretrain=builtin:tiny",
    "es_manager.train.env_groups=8",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "generate.sampling.response_length=420",
    "generate.num_batches=4",
    "generate.search.examples=40",
    "trainer.device=cpu",
    "trainer.logger=[]",
)


def config(*overrides: str, method: str = "search_model") -> Config:
    return load_config("smol_frozen_lake", [*SETTINGS, *METHODS[method].overrides, *overrides])


def puzzles_of(cfg: Config) -> Puzzles:
    worker = setup.make_worker(cfg, None, mode="base")
    return Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))


class Copies:
    """Where actions truly lead, asked in the words of the prompt: games of all states of some puzzles, by their text."""

    def __init__(self, cfg: Config) -> None:
        player = puzzles_of(cfg)
        self.games: dict[str, TextEnv] = {}
        self.asked = 0
        for puzzle in fresh_puzzles(cfg, player, Counter(), most=200):
            for copy in puzzle.copies.values():
                self.games[copy.state_text("coords")] = copy

    def response(self, prompt: Prompt) -> str:
        self.asked += 1
        twin = self.games[prompt.messages[-1]["content"].partition(STATE)[2]].clone()
        action = twin.to_action(prompt.prefill.removeprefix("<think>"))
        assert action is not None
        twin.step(action)
        return f"{prompt.prefill}{twin.state_key()}"


def written(examples: list[SFTExample], path: Path) -> bytes:
    write_parquet(path, examples)
    return path.read_bytes()


def test_a_model_that_is_always_right_writes_what_copies_of_the_game_write(tmp_path: Path):
    cfg = config()
    player, truth = puzzles_of(cfg), Copies(cfg)
    learned = LearnedMoves(ScriptedEngine(truth.response), None)
    examples, lines, dropped, explored = make_examples(cfg, player, learned)
    wanted = make_examples(cfg, player, Simulator())
    # A model predicts no rewards.
    wanted_rows = [replace(example, reward=0.0) for example in wanted[0]]
    assert written(examples, tmp_path / "model") == written(wanted_rows, tmp_path / "simulator")
    assert (lines, dropped) == wanted[1:3]
    assert explored == 0 and wanted[3] > 0
    assert learned.counts["move_right"] == learned.counts["search_right"] == 1.0
    assert learned.counts["questions"] == truth.asked >= 4 * sum(lines)


def test_wrong_moves_are_used_and_counted_and_what_is_no_state_is_dropped():
    cfg = config("generate.search.examples=10")
    player, truth = puzzles_of(cfg), Copies(cfg)

    others = {"Left": "Right", "Right": "Left", "Up": "Down", "Down": "Up"}

    def mirrored(prompt: Prompt) -> str:
        action = prompt.prefill.removeprefix("<think>")
        twin = truth.games[prompt.messages[-1]["content"].partition(STATE)[2]].clone()
        twin.step(twin.to_action(others[action]) or 0)
        return f"{prompt.prefill}{twin.state_key()}"

    learned = LearnedMoves(ScriptedEngine(mirrored), None)
    examples, *_ = make_examples(cfg, player, learned)
    assert len(examples) == 11 and learned.counts["search_right"] < 0.2
    # States of later turns come from the predictions: the world of these is mirrored, so their
    # paths lead where the mirrored actions lead.
    for example in examples:
        twin = truth.games[example.state].clone()
        for name in example.executed:
            twin.step(twin.to_action(others[name]) or 0)
        assert example.next_state == twin.state_text("coords")
        assert example.success == (twin.state_outcome() == "goal")
    nonsense = LearnedMoves(ScriptedEngine(lambda prompt: f"{prompt.prefill}77"), None)
    with pytest.raises(DataError, match="unreadable_state"):
        make_examples(config("generate.search.examples=1"), player, nonsense)
    assert nonsense.counts["move_right"] == 0.0


def test_states_of_later_turns_are_those_that_the_model_predicts():
    """A model for which nothing moves knows one state of each puzzle, the start, and finds no goal there."""
    cfg = config("generate.search.examples=10", "generate.search.start_share=0")
    player = puzzles_of(cfg)
    still = LearnedMoves(ScriptedEngine(lambda prompt: f"{prompt.prefill}{name_of(prompt)}"), None)
    part = [*islice(fresh_puzzles(cfg, player, Counter(), most=20), 8)]
    for question in questions(part, player.worker, still):
        assert (question.start, question.turn) == (question.puzzle.start, 1)
    learned = LearnedMoves(ScriptedEngine(Copies(cfg).response), None)
    later = questions(part, player.worker, learned)
    assert {question.turn for question in later} <= {2, 3}
    assert any(question.start != question.puzzle.start for question in later)


def name_of(prompt: Prompt) -> str:
    env = make_env("frozen_lake", {"is_slippery": False})
    env.reset(seed=0)
    return env.key_of_text(prompt.messages[-1]["content"].partition(STATE)[2]) or ""


def test_the_first_round_plays_at_random_and_the_second_goes_on_from_its_model(tmp_path: Path):
    cfg = config(f"trainer.run_dir={tmp_path}")
    moves, search = rounds_of(cfg, tmp_path / "data", tmp_path / "sft")
    assert moves.cfg.generate.policy == "random" and moves.cfg.generate.example_format == "moves"
    assert moves.cfg.sft.trainer.total_training_steps == 80
    few = config(f"trainer.run_dir={tmp_path}", "custom_envs.FrozenLakeNoSlip.max_turn=2")
    moves_of_few = rounds_of(few, tmp_path / "data", tmp_path / "sft")[0]
    for one in (moves.cfg, moves_of_few.cfg):  # a turn for every action that the episode allows
        worker = setup.make_worker(one, None, mode="base")
        assert worker.prompters["FrozenLakeNoSlip"].max_turn == 10
    assert search.cfg.generate.policy == "search" and search.cfg.sft == cfg.sft
    resumed = config(f"trainer.run_dir={tmp_path}", "sft.trainer.resume_path=/old/global_step_5")
    resumed = rounds_of(resumed, tmp_path / "data", tmp_path / "sft")
    assert [one.cfg.sft.trainer.resume_path for one in resumed] == ["/old/global_step_5", None]
    assert [folder.relative_to(tmp_path) for _, folder in (*moves.stages, *search.stages)] == [
        Path("round_1/data"),
        Path("round_1/sft"),
        Path("data"),
        Path("sft"),
    ]


def test_both_rounds_and_ppo_with_the_built_in_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """On 3x3, with enough moves for a model that finds some goals; most of what it predicts is wrong."""
    cfg = config(
        "custom_envs.FrozenLakeNoSlip.env_config.size=3",
        "actor_rollout_ref.model.dtype=float32",
        "sft.model.dtype=float32",
        "sft.optim.lr=2e-3",
        "generate.search.examples=4",
        "generate.search.moves=400",
        "generate.search.moves_per_step=20",
        "sft.trainer.total_training_steps=1",
        "sft.trainer.eval_episodes=0",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        f"trainer.run_dir={tmp_path}",
        f"sft.trainer.default_local_dir={tmp_path}/sft",
        f"trainer.default_local_dir={tmp_path}/ppo",
    )
    pipeline.run(cfg)
    # The gate is off and nothing was measured, so there is no verdict to print.
    assert "World-model gate" not in capfd.readouterr().err
    examples = read_examples(tmp_path / "round_1" / "data" / "wm_train.parquet")
    env = make_env("frozen_lake", {"size": 3, "is_slippery": False})
    env.reset(seed=0)
    for example in examples:
        assert (
            example.response == f"<think>{example.executed[0]}{env.key_of_text(example.next_state)}"
        )
    summary = json.loads((tmp_path / "data" / "summary.json").read_text())
    assert summary["examples_train"] == 4
    found = summary["search"]
    assert found["dynamics"] == "model" and found["questions"] > 0 and 0 <= found["move_right"] <= 1
    assert found["tokens"] >= found["questions"]
    rounds = json.loads((tmp_path / "sft" / "rounds.json").read_text())
    assert [each["policy"] for each in rounds] == ["random", "search"]
    assert (tmp_path / "ppo" / "metrics.jsonl").is_file()


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("generate.search.thoughts=dealt", "generate.search.thoughts"),
        ("generate.rounds=3", "generate.rounds: must be at most 2 with generate.policy=search"),
    ],
)
def test_what_a_model_cannot_search_is_refused(override: str, path: str):
    with pytest.raises(ConfigError, match=path):
        config(override)


def test_copies_of_the_game_have_one_round():
    with pytest.raises(ConfigError, match=r"rounds: must be 1 with generate\.policy=search"):
        config("generate.rounds=2", method="search_simulator")


class WrongWord(FrozenLake):
    def outcome_of_text(self, text):
        return ""


class FewActions(FrozenLake):
    def legal_actions(self):
        return ("Left", "Down", "Right")


@pytest.mark.parametrize(
    ("game", "words"),
    [(WrongWord, "Define TextEnv.key_of_text"), (FewActions, "legal_actions leaves out actions")],
)
def test_a_game_that_its_own_texts_contradict_is_refused(game: type[FrozenLake], words: str):
    env = game(size=4, p=0.8, is_slippery=False)
    env.reset(seed=1)
    with pytest.raises(ConfigError, match=words):
        require_names(env, "Lake", "coords")


def test_an_answer_may_be_as_long_as_the_names_of_states():
    template = load_template(load_config("tiny"), "builtin:tiny")
    assert answer_tokens(["3"], template) == MIN_TOKENS
    assert answer_tokens(["30", "1234567890"], template) >= 30


@pytest.mark.parametrize(
    ("game", "readable"), [("frozen_lake", ["coords"]), ("sokoban", ["grid", "grid_and_coords"])]
)
def test_states_are_searched_where_the_prompt_shows_all_of_them(game: str, readable: list[str]):
    env = make_env(game, {"is_slippery": False} if game == "frozen_lake" else {})
    env.reset(seed=1)
    found = []
    for mode in ("grid", "coords", "grid_and_coords"):
        try:
            require_names(env, game, mode)
            found.append(mode)
        except ConfigError as refused:
            assert f"Set state_text to {' or '.join(readable)}" in str(refused)
    assert found == readable
