"""Written search from examples to PPO with the built-in model: puzzles, prompts, arms, turns without a history."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError, DataError
from spa.evaluation.episode_metrics import episode_scores
from spa.examples.search import make_examples, of_other_puzzles
from spa.examples.source import Puzzles
from spa.formats.blocks import think_text
from spa.formats.registry import parse_response
from spa.formats.search import breadth_first, explore, score_search, write_search
from spa.models.build import load_template
from spa.planning.dynamics import Simulator
from spa.policies.scripted import ScriptedEngine
from spa.recipes import evaluate, pipeline, ppo_run, selfplay, setup
from spa.recipes.policies import Target
from spa.recipes.ppo_rollouts import make_batch
from spa.training.batch import split_turns
from spa.types import SFTExample
from spa.worldmodel.sft_files import read_examples
from spa_sweeps.methods import METHODS

SETTINGS = (
    "model_path=builtin:tiny",
    "sft.model.partial_pretrain=builtin:tiny",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "generate.sampling.response_length=420",
    "generate.search.examples=24",
    "actor_rollout_ref.model.dtype=float32",
    "sft.model.dtype=float32",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=2",
    "trainer.total_training_steps=1",
    "trainer.device=cpu",
    "trainer.logger=[]",
)


def config(*overrides: str, method: str = "search_simulator") -> Config:
    return load_config("smol_frozen_lake", [*SETTINGS, *METHODS[method].overrides, *overrides])


@cache
def examples(method: str, *overrides: str) -> list[SFTExample]:
    """Made once; nobody changes them."""
    cfg = config(*overrides, method=method)
    return make_examples(cfg, puzzles_of(cfg), Simulator())[0]


def puzzles_of(cfg: Config) -> Puzzles:
    worker = setup.make_worker(cfg, None, mode="base")
    return Puzzles(worker=worker, held_out=setup.validation_hashes(cfg, worker))


def true_of(example: SFTExample, cfg: Config):
    """The true transitions from the state of an example."""
    env = setup.make_worker(cfg, None, mode="base").make_env(example.tag)
    env.reset(seed=example.puzzle_seed)
    return next(
        explore(copy)[0]
        for copy in explore(env)[1].values()
        if copy.state_text("coords") == example.state
    )


def test_every_example_is_an_exact_search_and_parses_to_its_actions():
    cfg = config()
    sft_examples = examples("search_simulator")
    assert len({example.puzzle_hash for example in sft_examples}) == len(sft_examples)
    for example in sft_examples:
        text, complete = think_text(example.response)
        score = score_search(
            text, true_of(example, cfg), actions=("Left", "Down", "Right", "Up"), complete=complete
        )
        assert score is not None and score.failure == ""
        response = parse_response(example.response, mode="base", max_actions=2, order="search")
        assert response.well_formed and response.actions == example.executed == tuple(
            text.split("\n")[-1].split()[:2]
        )


def steps(env):
    """Copies of a game after each action that does not end it."""
    for name in env.action_names():
        twin = env.clone()
        twin.step(twin.to_action(name))
        if not twin.state_outcome():
            yield twin


def test_prompts_show_the_rules_and_the_current_state_alone():
    sft_examples = examples("search_simulator")
    assert {example.turn for example in sft_examples} == {0, 1, 2}
    for example in sft_examples:
        assert [message["role"] for message in example.prompt] == ["system", "user"]
        text = example.prompt[1]["content"]
        assert "Reply only with <think>[search, cells as two digits: from each cell found, where each action leads, "
        begins = f"\n\nTurn {example.turn + 1}:\nState:\n{example.state}\nActions left: "
        before = 6 - int(text.rpartition(begins)[2].removesuffix("."))
        assert example.turn <= before <= 2 * example.turn
        # As many actions lead there from the start of the puzzle, and no outcome lies on the way.
        env = setup.make_worker(config(), None, mode="base").make_env(example.tag)
        env.reset(seed=example.puzzle_seed)
        reached = [env]
        for _ in range(before):
            reached = [twin for each in reached for twin in steps(each)]
        assert example.state in {each.state_text("coords") for each in reached}
    assert len({example.prompt[1]["content"].partition("\n\n")[0] for example in sft_examples}) == 1


def test_validation_puzzles_are_left_out_and_seeds_differ():
    first = examples("search_simulator")
    cfg = config("es_manager.val.env_groups=64")
    puzzles = puzzles_of(cfg)
    sft_examples, _, dropped, explored = make_examples(cfg, puzzles, Simulator())
    # Four actions in each state of at least as many puzzles as there are examples.
    assert explored % 4 == 0 and explored >= 4 * 6 * len(sft_examples)
    assert not puzzles.held_out & {example.puzzle_hash for example in sft_examples}
    assert {*dropped} <= {"validation_puzzle", "too_long", "too_long_when_dealt", "duplicate"}
    other = examples("search_simulator", "seed.train=20000")
    assert {example.puzzle_hash for example in first} != {example.puzzle_hash for example in other}
    assert first == examples.__wrapped__("search_simulator")


def test_large_boards_drop_puzzles_whose_dealt_search_does_not_reach_the_goal():
    cfg = config(
        "custom_envs.FrozenLakeNoSlip.env_config.size=10",
        "generate.sampling.response_length=6000",
        "actor_rollout_ref.rollout.max_model_len=8000",
        "generate.search.examples=60",
        method="search_dealt",
    )
    sft_examples, _, dropped, _ = make_examples(cfg, puzzles_of(cfg), Simulator())
    assert len(sft_examples) > 60 and dropped["no_goal_when_dealt"] > 0


def test_arms_have_the_same_puzzles_prompts_and_counts():
    arms = {
        name: examples(name) for name in ("search_simulator", "search_dealt", "search_other_puzzle")
    }
    bare = examples("actions_only")
    right = arms["search_simulator"]
    for sft_examples in arms.values():
        assert [example.prompt for example in sft_examples] == [example.prompt for example in right]
    assert [example.executed for example in arms["search_other_puzzle"]] == [
        example.executed for example in right
    ]
    assert [example.executed for example in bare] == [example.executed for example in right]
    assert all(
        example.response == f"<answer>{' || '.join(example.executed)}</answer>" for example in bare
    )
    assert all(
        "Reply only with <answer>[actions]</answer>" in example.prompt[1]["content"]
        for example in bare
    )
    paths = examples("path_only")
    assert [example.executed for example in paths] == [example.executed for example in right]
    assert [think_text(example.response)[0] for example in paths] == [
        think_text(example.response)[0].split("\n")[-1] for example in right
    ]
    lines = [
        np.array([example.response.count("\n") for example in sft_examples])
        for sft_examples in arms.values()
    ]
    texts = [think_text(example.response)[0] for example in right]
    # All searches of this length are the same.
    alone = [
        len({other for other in texts if other.count("\n") == text.count("\n")}) == 1
        for text in texts
    ]
    assert ((lines[0] == lines[2]) | alone).all()  # the search of another puzzle has as many lines
    assert abs(lines[0] - lines[2]).max() <= 2
    for example, text in zip(arms["search_other_puzzle"], texts, strict=True):
        assert think_text(example.response)[0] != text
    cfg = config()
    scores = [
        score_search(
            think_text(example.response)[0],
            true_of(example, cfg),
            actions=("Left", "Down", "Right", "Up"),
        )
        for example in arms["search_dealt"]
    ]
    moves = sum(score.moves for score in scores if score)
    assert 0 < sum(score.moves_right for score in scores if score) < 0.8 * moves


def test_the_search_of_another_puzzle_is_never_the_own_one():
    short, long = "a: Up1 goal\nUp", "a: Up1 ; 1\n1 Up: Up2 goal\nUp Up"
    assert of_other_puzzles([short, short, long]) == [long, long, short]
    with pytest.raises(DataError, match="the same search"):
        of_other_puzzles([short, short])


def test_a_dealt_search_fits_into_the_length_of_a_response():
    limit = 200
    cfg = config(f"generate.sampling.response_length={limit}", method="search_dealt")
    template = load_template(cfg, cfg.model_path)
    sft_examples, _, dropped, _ = make_examples(cfg, puzzles_of(cfg), Simulator())
    assert dropped["too_long"] and dropped["too_long_when_dealt"]
    assert (
        max(len(template.response_ids(example.response, "<think>")) for example in sft_examples)
        <= limit
    )


def test_the_path_of_a_dealt_search_is_what_the_answer_takes():
    for example in examples("search_dealt"):
        path = think_text(example.response)[0].split("\n")[-1].split()
        assert example.executed == tuple(path[: len(example.executed)])


def test_all_stages(tmp_path: Path):
    cfg = config(f"trainer.run_dir={tmp_path}")
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    assert len(read_examples(data / "wm_train.parquet")) == 24
    assert len(read_examples(data / "wm_val.parquet")) == 1
    summary = json.loads((data / "summary.json").read_text())
    assert summary["examples_train"] == 24 and summary["search"]["dynamics"] == "simulator"
    tuned = pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    measured = json.loads((tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "val/search/exact" in measured
    ppo_run.run_ppo(cfg, model_path=str(tuned), directory=tmp_path / "ppo")
    last = json.loads((tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()[-1])
    # every turn is scored in the conversation that it was sampled in
    assert last["rollout/logprob_gap_max"] < 1e-3
    assert {"train/FrozenLakeNoSlip/search/move", "val-env/FrozenLakeNoSlip/search/exact"} <= {
        *last
    }


@cache
def played(groups: int):
    """Episodes whose turns answer Left without a search."""
    cfg = config(f"es_manager.val.env_groups={groups}")
    template = load_template(cfg, "builtin:tiny")
    player = setup.make_worker(cfg, template, mode="base")
    engine = ScriptedEngine(
        lambda prompt: "<think>31: Left30</think><answer>Left</answer>", template
    )
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
    return player.rollout(engine, specs, setup.val_sampling(cfg)), player, template


def test_an_episode_without_history_is_its_turns_one_after_the_other():
    episodes, player, template = played(16)
    longest = max(episodes, key=lambda episode: len(episode.turns))
    assert len(longest.turns) == 3 and not longest.history
    prompter = player.prompters[longest.tag]
    assert [message["role"] for message in longest.messages] == ["system", "user", "assistant"] * 3
    assert longest.messages[4]["content"].endswith("Actions left: 5.")
    assert "Reward" not in longest.messages[4]["content"]
    ids: list[int] = []
    for turn in range(3):
        said = longest.messages[3 * turn + 2]["content"]
        ids += template.start(longest.messages[3 * turn : 3 * turn + 2], prompter.prefill)
        ids += template.response_ids(said, prompter.prefill)
    assert longest.token_ids is not None and longest.token_ids.tolist() == ids
    restored = type(longest).from_json(longest.to_json())
    assert not restored.history and restored.messages == longest.messages


def test_a_batch_is_split_into_one_row_per_turn():
    episodes, _, template = played(16)
    whole = make_batch(config(), episodes)
    assert whole is not None
    rows = split_turns(whole)
    assert len(rows) == sum(len(episode.turns) for episode in episodes)
    number = 0
    for place, episode in enumerate(episodes):
        for turn in range(len(episode.turns)):
            messages = episode.messages[3 * turn : 3 * turn + 2]
            said = template.response_ids(episode.messages[3 * turn + 2]["content"], "<think>")
            ids = [*template.start(messages, "<think>"), *said]
            assert rows.input_ids[number, : int(rows.lengths[number])].tolist() == ids
            assert int(rows.mask[number].sum()) == len(said)
            assert rows.mask[number, len(ids) - 1 - len(said) : len(ids) - 1].all()
            assert rows.turn_ends[number].nonzero().tolist() == [[len(ids) - 2]]
            torch.testing.assert_close(rows.rewards[number].sum(), whole.rewards[place].sum())
            assert rows.rewards[number].nonzero().tolist() in ([], [[len(ids) - 2]])
            number += 1
    assert rows.truncated is not None and whole.truncated is not None
    assert int(rows.truncated.sum()) == int(whole.truncated.sum())


def test_scores_come_from_the_puzzle_played_again():
    episodes, player, _ = played(16)
    for episode in episodes:
        scores = episode_scores(episode, player.make_env)
        assert len(scores) == len(episode.turns)
        for score, turn in zip(scores, episode.turns, strict=True):
            assert score.lines == score.moves == 1
            assert score.next_right == ("player (P) is at (3,1)" in turn.state)


def test_only_what_the_length_limit_ends_is_over_it():
    episodes, player, _ = played(4)
    found = []
    for episode in episodes:
        env = player.make_env(episode.tag)
        env.reset(seed=episode.puzzle_seed)
        true, _ = explore(env)
        text = write_search(breadth_first(next(iter(true)), lambda key, true=true: true[key]))
        found.append((text.count("\n"), text, episode))
    _, text, episode = max(found, key=lambda one: one[0])
    begun = f"<think>{text.splitlines()[0]}\n"
    for reason, failure in (("length", "over_limit"), ("stop", "no_goal")):
        turn = replace(episode.turns[0], response_text=begun, finish_reason=reason)
        (score,) = episode_scores(replace(episode, turns=(turn,)), player.make_env)
        assert score.failure == failure


class NotCopied(FrozenLake):
    changes = None


class FailsInOneCell(FrozenLake):
    def step(self, action):
        result = super().step(action)
        if self.state_key() == "00":
            raise RuntimeError("no floor here")
        return result


@pytest.mark.parametrize("game", [NotCopied, FailsInOneCell])
def test_a_game_whose_states_cannot_be_explored_has_no_scores(game):
    episodes, player, _ = played(4)
    options = player.specs["FrozenLakeNoSlip"].env_config
    for episode in episodes:
        assert episode_scores(episode, player.make_env)
        assert episode_scores(episode, lambda tag: game(**options)) == []


def test_an_evaluation_has_the_scores(tmp_path: Path):
    cfg = config("trainer.logger=[]")
    result = evaluate.evaluate_target(
        cfg, Target(name="base", label="base", model="builtin:tiny"), output=tmp_path / "eval.json"
    )
    assert 0 <= result["tags"]["FrozenLakeNoSlip"]["search/exact"] <= 1


def test_states_of_later_turns_have_actions_left():
    # 10 actions are spent after two turns of 5.
    sft_examples = examples(
        "search_simulator",
        "agent_proxy.max_turn=5",
        "agent_proxy.max_actions_per_turn=5",
        "generate.search.start_share=0",
    )
    assert sft_examples and {example.turn for example in sft_examples} <= {0, 1}
    assert all(example.executed for example in sft_examples)


def test_a_game_that_names_no_states_is_refused():
    cfg = config(
        "es_manager.train.env_configs.tags=[Sudoku]",
        "es_manager.val.env_configs.tags=[Sudoku]",
    )
    with pytest.raises(ConfigError, match=r"does not implement TextEnv\.state_key"):
        make_examples(cfg, puzzles_of(cfg), Simulator())


def test_a_game_that_raises_is_named():
    game = f"custom_envs.FrozenLakeNoSlip.env_type={__name__}:FailsInOneCell"
    with pytest.raises(ConfigError, match=r"RuntimeError: no floor here.*spa env check FrozenL"):
        examples("search_simulator", game)
