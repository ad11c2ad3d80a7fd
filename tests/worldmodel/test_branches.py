"""Branched play: at every visited state the other actions are tried in copies."""

from collections import Counter
from dataclasses import replace

import pytest
from helpers.play import counted_tries, groups, play

from spa.envs.registry import make_env
from spa.errors import ConfigError, DataError
from spa.formats.registry import parse_response
from spa.policies.scripted import random_engine
from spa.prompts.render import Prompter
from spa.types import Episode, SFTExample
from spa.worldmodel.branches import _try, counterfactual_examples, require_tries
from spa.worldmodel.examples import (
    coverage_sample,
    episode_examples,
    is_counterfactual,
    shuffle_next_states,
)

OPTIONS = {
    "frozen_lake": {"is_slippery": False},
    "sokoban": {"dim_x": 6, "dim_y": 6},
    "sudoku": {},
    "bandit": {},
}


def walked(game: str, count: int = 3, **options) -> list[Episode]:
    chosen = options or OPTIONS[game]
    return play(
        groups(count, 1),
        random_engine(max_actions=2),
        make=lambda tag: make_env(game, chosen),
        mode="add_worldmodel",
    )


def branches(episode: Episode, game: str, plans: int | None = None, **options) -> list[SFTExample]:
    prompter = Prompter(mode="add_worldmodel", state_text="coords")
    chosen = options or OPTIONS[game]
    return counterfactual_examples(
        episode, make=lambda: make_env(game, chosen), prompter=prompter, plans=plans
    )


@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_every_action_of_every_visited_state_is_a_example_with_its_true_next_state(game):
    for episode in walked(game):
        main, _ = episode_examples(episode, action_sep="||")
        tried = branches(episode, game)
        for index, turn in enumerate(episode.turns):
            here = [example for example in tried if example.turn == index]
            taken = {turn.executed} if len(turn.executed) == 1 else set()
            assert {example.executed for example in here} | taken == {
                ("Left",),
                ("Down",),
                ("Right",),
                ("Up",),
            }
            for example in here:
                assert (
                    is_counterfactual(example)
                    and example.prompt == main[index].prompt
                    and example.state == turn.state
                )
                env = make_env(game, OPTIONS[game])
                env.reset(seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed})
                for name in (
                    *(name for past in episode.turns[:index] for name in past.executed),
                    *example.executed,
                ):
                    env.step(env.to_action(name))  # type: ignore[arg-type]
                assert example.next_state == env.state_text("coords")
                response = parse_response(example.response, mode="add_worldmodel")
                assert (response.observation, response.prediction) == (
                    example.state,
                    example.next_state,
                )


def test_free_text_actions_are_drawn_as_plans():
    (episode, *_) = walked("sudoku")
    tried = branches(episode, "sudoku", plans=6)
    assert {1, 2, 3} <= {len(example.executed) for example in tried}
    assert Counter(example.turn for example in tried)[0] == 6
    countdown = make_env("countdown")
    countdown.reset(seed=0)
    with pytest.raises(ConfigError, match=r"generate\.branches"):
        require_tries(countdown, "Countdown", None)


def test_copies_of_a_slippery_game_slip_each_by_chance_of_its_own():
    """With one stream for all, every action of a state would go astray by the same quarter turn."""
    options = {"size": 8, "p": 1.0}
    ways = {(0, -1): 0, (1, 0): 1, (0, 1): 2, (-1, 0): 3}
    astray: dict[tuple[str, int], set[int]] = {}
    for episode in walked("frozen_lake", 10, **options):
        tried = branches(episode, "frozen_lake", **options)
        assert tried == branches(episode, "frozen_lake", **options)
        for example in tried:
            (r0, c0), (r1, c1) = (_player(text) for text in (example.state, example.next_state))
            if (r0, c0) != (r1, c1):
                turned = ways[(r1 - r0, c1 - c0)] - ["Left", "Down", "Right", "Up"].index(
                    example.executed[0]
                )
                astray.setdefault((example.episode_id, example.turn), set()).add(turned % 4)
    assert sum(len(turns) > 1 for turns in astray.values()) > len(astray) / 2


def _player(sentence: str) -> tuple[int, int]:
    row, col = sentence.rpartition("player (P) is at (")[2].partition(")")[0].split(",")
    return int(row), int(col)


def test_an_environment_that_its_seeds_do_not_fix_is_named():
    (episode, *_) = walked("frozen_lake")
    with pytest.raises(DataError, match="the seeds do not determine"):
        branches(replace(episode, puzzle_seed=episode.puzzle_seed + 1), "frozen_lake")


def test_shuffling_leaves_the_history_of_the_line_that_was_played():
    (episode, *_) = walked("sokoban")
    examples = episode_examples(episode, action_sep="||")[0] + branches(episode, "sokoban")
    shuffled = shuffle_next_states(examples, 1)
    spoken = {
        example.turn: example.response for example in shuffled if not is_counterfactual(example)
    }
    for example in shuffled:
        said = [message["content"] for message in example.prompt if message["role"] == "assistant"]
        assert said == [spoken[turn] for turn in range(example.turn)]


def test_coverage_makes_rare_outcomes_as_likely_as_common_ones():
    (episode, *_) = walked("frozen_lake")
    (example, *_) = branches(episode, "frozen_lake")
    common = [replace(example, executed=("Left",), next_state="moved", turn=i) for i in range(900)]
    rare = [
        replace(example, executed=("Left",), next_state=example.state, turn=900 + i)
        for i in range(100)
    ]
    sampled = coverage_sample(common + rare, seed=0)
    share = sum(example.next_state == example.state for example in sampled) / len(sampled)
    assert len(sampled) == 1000 and abs(share - 0.5) < 0.06  # almost four deviations of a fair coin
    assert coverage_sample([], seed=0) == []


@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_plans_that_the_end_of_the_game_makes_equal_are_one_example(game, monkeypatch):
    played = counted_tries(monkeypatch)
    for episode in walked(game, count=8):
        examples = branches(episode, game, plans=8)
        for index, turn in enumerate(episode.turns):
            here = [
                (example.executed, example.next_state)
                for example in examples
                if example.turn == index
            ]
            assert len(set(here)) == len(here)
            assert (turn.executed, turn.next_target) not in here
            numbers = [example.extra["branch"] for example in examples if example.turn == index]
            assert numbers == list(range(1, len(numbers) + 1))
        # Plans that were cut to equal ones were played, too.
        assert sum(example.extra["tried"] for example in examples) == sum(played)
        played.clear()


def test_branches_hold_the_thoughts_that_their_format_asks_for():
    form = {"mode": "add_worldmodel", "response_format": "choose_plan", "imagined_plans": 1}
    lake = {"make": lambda tag="": make_env("frozen_lake", OPTIONS["frozen_lake"])}
    (episode,) = play(groups(1, 1), random_engine(max_actions=1), **lake, **form)
    prompter = Prompter(state_text="coords", **form)
    env = lake["make"]()
    turn = next(turn for turn in episode.turns if turn.executed)
    env.reset(seed=episode.puzzle_seed)
    tried = _try(env, ("Left",), prompter, turn)
    assert tried.response.well_formed and tried.response.actions == ("Left",)
