"""Games of several players: whose turn it is, what each seat is told and paid, tokens and masks per seat."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from spa.envs.base import StateText
from spa.envs.pool import group_specs
from spa.envs.workers import EnvWorkers
from spa.models.load import load_tokenizer
from spa.planning.node import simulate
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.prompts.render import Prompter, play_sample
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import collect
from spa.training.batch import batch_episodes
from spa.types import Episode, SamplingParams, StopReason
from spa.worldmodel.base_format import in_base_format
from spa.worldmodel.examples import episode_examples
from spa_author.cards import random_episode
from spa_author.checker import check
from spa_measurements.situations import random_situation, replay

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from nim import Nim  # pyright: ignore[reportMissingImports]

PROMPTER = Prompter(max_turn=12, max_actions_per_turn=2, max_actions_per_traj=12)


def play(
    *,
    self_play=True,
    groups=2,
    size=3,
    engine=None,
    template=None,
    prompter=PROMPTER,
    make=Nim,
    room=4000,
):
    specs = group_specs(
        "train",
        base_seed=0,
        step=0,
        tags=["Nim"],
        n_groups=[groups],
        group_size=size,
        self_play=["Nim"] if self_play else [],
    )
    return specs, collect(
        specs,
        make_env=lambda tag: make(),
        prompters={"Nim": prompter},
        template=template,
        engine=engine or random_engine(template, max_actions=1),
        sampling=SamplingParams(max_tokens=40),
        format_penalty=-0.1,
        max_model_len=room,
    )


def moves(*episodes):
    """The moves of a game's seats in the order in which they were made."""
    turns = [[turn.executed for turn in episode.turns] for episode in episodes]
    return [
        move
        for number in range(max(map(len, turns)))
        for seat in turns
        for move in (seat[number] if number < len(seat) else ())
    ]


class Told(Nim):
    """Nim whose rules and states name the player that they speak to."""

    seat = 0

    def look_as(self, player: int) -> None:
        self.seat = player

    def instruction(self, mode: StateText) -> str:
        return f"You are player {self.seat}. {super().instruction(mode)}"


def test_situations_of_two_players_are_turns_of_one_of_them():
    prompter = Prompter(mode="add_worldmodel", max_turn=4, max_actions_per_turn=2)
    env = Told()
    seats = set()
    for index in range(20):
        found = random_situation(
            env, prompter, tag="Nim", index=index, base_seed=5, from_start=False
        )
        assert found is not None and len(found.actions) == 1
        replay(env, found)
        assert env.seat == env.current_player()
        seats.add(env.seat)
    assert seats == {0, 1}


def test_base_examples_tell_each_seat_its_own_rules():
    settings = {"max_turn": 12, "max_actions_per_turn": 1, "max_actions_per_traj": 12}
    _, episodes = play(prompter=Prompter(mode="add_worldmodel", **settings), make=Told, size=1)
    for episode in episodes:
        examples, _ = episode_examples(episode, action_sep="||")
        env = Told()
        env.reset(seed=episode.puzzle_seed)
        found = in_base_format(examples, episode, Prompter(mode="base", **settings), env)
        assert found[0].prompt[1]["content"].startswith(f"You are player {episode.seat}.")


def test_two_seats_play_one_game_in_turn_and_one_of_them_wins():
    specs, episodes = play()
    assert [episode.episode_id for episode in episodes] == [spec.episode_id for spec in specs]
    for first, second in zip(episodes[:3], episodes[3:], strict=True):
        assert (first.seat, second.seat) == (0, 1) and first.puzzle_hash == second.puzzle_hash
        env = Nim()
        env.reset(seed=first.puzzle_seed)
        results = [env.step(move) for move in moves(first, second)]
        assert all(result[4]["action_is_valid"] for result in results) and results[-1][2]
        assert [first.score, second.score] == results[-1][4]["rewards"]
        assert {first.stop, second.stop} == {StopReason.SUCCESS, StopReason.FAILURE}


def test_each_seat_has_its_own_conversation_and_mask():
    template = ChatTemplate(load_tokenizer("builtin:tiny"))
    _, episodes = play(template=template, size=1)
    for episode in episodes:
        ids, sampled = episode.token_ids, episode.sampled
        edges = np.flatnonzero(np.diff(np.concatenate([[0], sampled, [0]]))).reshape(-1, 2)
        responses = [PROMPTER.prefill + template.decode_response(ids[a:b]) for a, b in edges]
        assert responses == [turn.response_text for turn in episode.turns]
        assert [m["content"] for m in episode.messages if m["role"] == "assistant"] == responses
    first, second = episodes
    assert second.turns[0].state == first.turns[0].next_state != first.turns[0].state
    assert second.turns[0].state in second.messages[1]["content"]


def test_a_group_holds_one_seat_and_goes_into_a_batch_like_any_other():
    template = ChatTemplate(load_tokenizer("builtin:tiny"))
    _, episodes = play(template=template)
    batch = batch_episodes(episodes, tags=["Nim"], pad_id=0)
    assert batch.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert (batch.scores[:3] + batch.scores[3:]).tolist() == [0.0, 0.0, 0.0]
    assert Episode.from_json(episodes[3].to_json()).seat == 1


def test_without_self_play_the_other_seat_moves_at_random_and_the_same_again():
    _, episodes = play(self_play=False)
    assert [episode.seat for episode in episodes] == [0, 0, 0, 1, 1, 1]
    assert all(episode.stop in (StopReason.SUCCESS, StopReason.FAILURE) for episode in episodes)
    _, again = play(self_play=False)
    assert [e.to_json() for e in again] == [e.to_json() for e in episodes]
    shown = {e.turns[0].state for e in episodes[3:]}
    # the opponent's noise is the episode's own
    assert len(shown) > 1 or len({len(e.turns) for e in episodes[3:]}) > 1


def test_a_response_makes_one_move_whatever_else_it_says():
    engine = ScriptedEngine(
        lambda prompt: "<think></think><answer>take 1 from 1 || take 1 from 2</answer>"
    )
    _, episodes = play(engine=engine, size=1)
    assert episodes[0].turns[0].executed == ("take 1 from 1",)


def test_a_move_that_is_not_allowed_is_asked_for_again_from_the_same_seat():
    engine = ScriptedEngine(lambda prompt: "<think></think><answer>take 9 from 1</answer>")
    _, episodes = play(engine=engine, size=1)
    assert len(episodes[0].turns) == 12 and episodes[0].stop in (
        StopReason.MAX_TURNS,
        StopReason.MAX_ACTIONS,
    )
    assert episodes[1].stop is StopReason.MAX_TURNS and episodes[1].turns == ()


def test_a_game_that_breaks_costs_both_seats():
    class Broken(Nim):
        def step(self, action):
            raise RuntimeError("torn board")

    _, episodes = play(make=Broken, size=1)
    assert [episode.stop for episode in episodes] == [StopReason.ERROR, StopReason.ERROR]
    assert all("torn board" in episode.error for episode in episodes)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much", 10**400])
def test_a_reward_of_another_player_has_to_be_a_finite_number(reward):
    class Odd(Nim):
        def step(self, action):
            text, own, terminated, truncated, info = super().step(action)
            return text, own, terminated, truncated, {**info, "rewards": [reward, reward]}

    _, episodes = play(make=Odd, size=1)
    assert {episode.stop for episode in episodes} == {StopReason.ERROR}
    assert all(re.search("step returned .* reward", episode.error) for episode in episodes)


def test_an_opponent_that_keeps_the_turn_costs_the_episode_and_not_the_run():
    class Greedy(Nim):
        def current_player(self):
            return 1

        def step(self, action):
            text, reward, _, _, info = super().step(action)
            self.reset(seed=0)
            return text, reward, False, False, {**info, "rewards": [0, 0]}

    _, episodes = play(make=Greedy, self_play=False, size=1, groups=1)
    assert [episode.stop for episode in episodes] == [StopReason.ERROR]
    assert "has moved 1,000 times in a row" in episodes[0].error


class Blind(Nim):
    """Each player sees only whose move it is, from his side."""

    looking = 0

    def look_as(self, player):
        self.looking = player

    def state_text(self, mode):
        return f"You are player {self.looking}. {super().state_text(mode)}"


@pytest.mark.parametrize("self_play", [True, False])
def test_states_are_those_that_the_seat_sees(self_play):
    _, episodes = play(make=Blind, self_play=self_play)
    for episode in episodes:
        for turn in episode.turns:
            assert turn.state.startswith(f"You are player {episode.seat}.")
            assert turn.next_state.startswith(f"You are player {episode.seat}.")


def test_games_in_processes_of_their_own_are_played_alike():
    workers = EnvWorkers(1, timeout_s=60.0)
    try:
        _, there = play(make=lambda: workers.make("nim:Nim", {}), size=1)
    finally:
        workers.close()
    _, here = play(size=1)
    assert [episode.to_json() for episode in there] == [episode.to_json() for episode in here]


def test_a_first_prompt_that_is_too_long_ends_the_game_of_both_seats():
    template = ChatTemplate(load_tokenizer("builtin:tiny"))
    _, episodes = play(size=1, template=template, room=60)
    assert [episode.stop for episode in episodes] == [StopReason.CONTEXT, StopReason.MAX_TURNS]


def test_a_planner_sees_the_end_of_its_own_turn():
    env = Nim()
    env.reset(seed=0)
    plan = [f"take 1 from {heap}" for heap, stones in enumerate(env.heaps, 1) if stones][:2]
    one, two = (
        simulate(env, actions, "grid", np.random.default_rng(0)).state
        for actions in (plan[:1], plan)
    )
    assert len(plan) == 2 and one == two is not None


class Private(Nim):
    """Only who looks as the player to move sees which moves there are."""

    looks = 0

    def look_as(self, player: int) -> None:
        self.looks = player

    def legal_actions(self) -> tuple[str, ...]:
        return super().legal_actions() if self.looks == self.mover else ()


def test_tools_of_authors_look_as_the_player_who_is_to_move():
    assert [finding for finding in check(Private) if not finding.ok] == []
    for seed in range(20):
        games = [Nim(), Private()]
        for game in games:
            game.reset(seed=seed)
        assert random_episode(games[0], seed, 20) == random_episode(games[1], seed, 20)


def test_a_sample_has_the_moves_of_one_player():
    class Suggesting(Nim):
        def example_actions(self) -> tuple[str, ...]:
            return ("take 1 from 1", "take 1 from 2", "take 1 from 3")

    game = Suggesting(most=4)
    game.reset(seed=0)
    played = play_sample(game, PROMPTER, 3)
    assert played is not None and played.actions == ("take 1 from 1",)
