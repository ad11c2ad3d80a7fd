"""The turn loop: what is executed, what is counted, why episodes end, and what one broken environment costs."""

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.families import small_model, template, tokenizer
from helpers.play import answer, groups, lake, one_group, play, says

from spa.engines.local import LocalEngine
from spa.envs.base import TextEnv
from spa.envs.frozen_lake import FrozenLake
from spa.envs.pool import EpisodeSpec, group_specs
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import check_room
from spa.run.files import dump_line
from spa.types import Completion, Episode, Prompt, StopReason

GAMES: dict[str, dict[str, Any]] = {
    "frozen_lake": {"is_slippery": False},
    "sokoban": {"dim_x": 6, "dim_y": 6, "num_boxes": 1},
    "sudoku": {"clues": 12},
}
BOARD = "P___\n____\n____\n___G"


class OpenLake(FrozenLake):
    """The same lake without holes for every seed: player (0,0), goal (3,3)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(is_slippery=False, **options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed, options={**(options or {}), "board": BOARD})


def open_lake(tag: str = "Lake") -> TextEnv:
    return OpenLake()


def solver(prompt: Prompt) -> str:
    """The best next actions, as many as one answer may hold."""
    return answer(" || ".join(prompt.context.expert_actions(5)))


def actions(text: str, **settings: Any) -> Episode:
    """One episode on the open lake in which every response holds the same actions."""
    (episode,) = play(one_group(), says(answer(text)), make=open_lake, **settings)
    return episode


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("mode", ["base", "add_worldmodel"])
def test_a_solver_reaches_the_goal_and_the_story_is_whole(game, mode):
    def response(prompt: Prompt) -> str:
        from spa.policies.scripted import formatted

        return formatted(prompt, " || ".join(prompt.context.expert_actions(5)))

    def make(tag: str) -> TextEnv:
        return make_env(game, GAMES[game])

    (episode,) = play(
        one_group(),
        ScriptedEngine(response),
        make=make,
        mode=mode,
        max_actions_per_traj=50,
        max_turn=10,
    )
    assert (episode.stop, episode.success, episode.mode) == (StopReason.SUCCESS, True, mode)
    assert episode.turns[-1].infos[-1]["success"]
    for before, after in zip(episode.turns, episode.turns[1:], strict=False):
        assert before.next_state == after.state
        assert after.actions_left == before.actions_left - len(before.executed)
    shown = [message["content"] for message in episode.messages if message["role"] == "user"]
    assert len(shown) == len(episode.turns)
    for turn, text in zip(episode.turns, shown, strict=True):
        assert f"State:\n{turn.state}\nActions left: {turn.actions_left}." in text
        assert len(turn.infos) == len(turn.executed)
        assert turn.penalty == 0
    roles = [message["role"] for message in episode.messages]
    assert roles == ["system", *["user", "assistant"] * len(episode.turns)]


def test_the_reward_of_a_turn_is_what_the_next_prompt_says():
    (episode,) = play(
        one_group(),
        says(answer("Up"), answer("Up")),
        make=lambda tag: make_env("sokoban", GAMES["sokoban"]),
        max_turn=3,
    )
    shown = [message["content"] for message in episode.messages if message["role"] == "user"]
    for turn, text in zip(episode.turns, shown[1:], strict=False):
        assert text.startswith(f"Reward: {turn.reward:g}\n")


def test_the_penalty_is_part_of_the_score_and_not_of_the_reward_that_is_shown():
    (episode,) = play(one_group(), says("<think>no answer"), make=open_lake, max_turn=2)
    assert [turn.penalty for turn in episode.turns] == [-0.1, -0.1]
    assert episode.score == pytest.approx(-0.2)
    assert all("-0.1" not in message["content"] for message in episode.messages)


@pytest.mark.parametrize(
    ("text", "executed", "penalty"),
    [
        (answer("right || DOWN"), ("Right", "Down"), 0.0),  # labels in the environment's spelling
        (answer("Jump"), (), -0.1),
        (answer("Right || Jump || Down"), ("Right", "Down"), -0.1),
        (answer(""), (), -0.1),
        ("<think><answer>Right</answer>", (), -0.1),  # broken format, readable answer
        ("<think></think><answer>Right</answer><answer>Down</answer>", ("Right",), 0.0),
        ("nothing at all", (), -0.1),
        # over the limit: cut, unpunished
        (answer("Right || Down || Right || Down"), ("Right", "Down", "Right"), 0.0),
    ],
)
def test_what_is_executed_and_what_is_punished(text, executed, penalty):
    (episode,) = play(one_group(), says(text), make=open_lake, max_turn=1, max_actions_per_turn=3)
    (turn,) = episode.turns
    assert (turn.executed, turn.penalty) == (executed, penalty)
    assert episode.stop is StopReason.MAX_TURNS


@pytest.mark.parametrize("limit", [1, 3, 4, 5])
def test_the_action_budget_holds_inside_a_turn_and_over_turns(limit):
    episode = actions(
        "Right || Left || Right", max_turn=10, max_actions_per_turn=3, max_actions_per_traj=limit
    )
    assert episode.stop is StopReason.MAX_ACTIONS
    assert sum(len(turn.executed) for turn in episode.turns) == limit
    assert [turn.actions_left for turn in episode.turns] == list(range(limit, 0, -3))


def test_only_executed_actions_use_up_the_budget():
    episode = actions("Jump || Right", max_turn=10, max_actions_per_traj=3)
    assert [turn.executed for turn in episode.turns] == [("Right",)] * 3


def test_actions_after_the_end_of_the_game_are_not_executed():
    episode = actions(
        "Right || Right || Right || Down || Down || Down || Up", max_actions_per_turn=7
    )
    assert episode.stop is StopReason.SUCCESS
    assert len(episode.turns[0].executed) == 6


def test_a_hole_is_a_failure():
    class Pit(OpenLake):
        def reset(self, *, seed=None, options=None):
            return FrozenLake.reset(
                self, seed=seed, options={"board": BOARD.replace("P_", "PO", 1)}
            )

    (episode,) = play(one_group(), says(answer("Right || Down")), make=lambda tag: Pit())
    assert (episode.stop, episode.success, episode.turns[0].executed) == (
        StopReason.FAILURE,
        False,
        ("Right",),
    )


def test_a_turn_that_would_not_fit_is_not_begun():
    made = template("qwen2")
    whole = play(
        one_group(),
        says(answer("Jump"), template=made),
        made,
        make=open_lake,
        max_turn=4,
        max_tokens=20,
    )[0]
    starts = [
        int(np.flatnonzero(whole.sampled & (whole.turn_index == turn))[0]) for turn in range(4)
    ]
    for room, turns in ((starts[3], 4), (starts[3] - 1, 3), (starts[1], 2), (starts[1] - 1, 1)):
        engine = says(answer("Jump"), template=made)
        (episode,) = play(
            one_group(),
            engine,
            made,
            make=open_lake,
            max_turn=4,
            max_tokens=20,
            max_model_len=room + 20,
        )
        assert len(episode.turns) == turns
        assert episode.stop is (StopReason.CONTEXT if turns < 4 else StopReason.MAX_TURNS)
        assert len(episode.token_ids) <= room + 20
        assert episode.sampled[-1]  # nothing is written after the last response
        assert episode.messages[-1]["role"] == "assistant"


class Verbose(OpenLake):
    """A lake that has much to say about every second puzzle."""

    def reset(self, *, seed=None, options=None):
        self.talk = "word " * 2000 * ((seed or 0) % 2)
        return super().reset(seed=seed, options=options)

    def instruction(self, mode):
        return self.talk + super().instruction(mode)


def test_a_first_prompt_that_does_not_fit_costs_its_own_episode():
    made = template("qwen2")
    engine = says(answer("Jump"), template=made)
    episodes = play(
        groups(2, 2), engine, made, make=lambda tag: Verbose(), max_turn=2, max_model_len=2000
    )
    assert [(episode.stop, len(episode.turns)) for episode in episodes] == [
        *[(StopReason.CONTEXT, 0)] * 2,
        *[(StopReason.MAX_TURNS, 2)] * 2,
    ]
    assert episodes[0].token_ids is None
    check_room(episodes, 64, 2000)
    check_room(episodes[2:], 64, 2000)
    with pytest.raises(ConfigError, match=r"No first prompt fits.*max_model_len"):
        check_room(episodes[:2], 64, 2000)
    check_room([episodes[0], replace(episodes[1], stop=StopReason.ERROR, error="gone")], 64, 2000)


class Fragile(OpenLake):
    """Raises in `step` of odd puzzles."""

    def reset(self, *, seed=None, options=None):
        self.odd = bool((seed or 0) % 2)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.odd:
            raise RuntimeError("the ice broke")
        return super().step(action)


def test_an_environment_that_raises_costs_only_its_episode(caplog):
    made = template("qwen2")
    engine = says(answer("Right"), template=made)
    episodes = play(groups(4, 1), engine, made, make=lambda tag: Fragile(), max_turn=2)
    assert [episode.stop for episode in episodes] == [StopReason.ERROR, StopReason.MAX_TURNS] * 2
    assert episodes[0].error == "RuntimeError: the ice broke"
    assert "the ice broke" in caplog.text
    assert len(episodes[1].turns) == 2


@pytest.mark.parametrize("where", ["make", "reset", "first prompt", "reading the state"])
def test_it_may_raise_anywhere(where):
    class Broken(OpenLake):
        def __init__(self):
            super().__init__()
            self.calls = 0
            if where == "make":
                raise ValueError("no")

        def reset(self, *, seed=None, options=None):
            if where == "reset":
                raise ValueError("no")
            return super().reset(seed=seed, options=options)

        def instruction(self, mode):
            if where == "first prompt":
                raise ValueError("no")
            return super().instruction(mode)

        def state_text(self, mode):
            self.calls += 1
            if where == "reading the state" and self.calls > 3:
                raise ValueError("no")
            return super().state_text(mode)

    (episode,) = play(one_group(), says(answer("Right")), make=lambda tag: Broken(), max_turn=3)
    assert (episode.stop, episode.success, episode.error) == (
        StopReason.ERROR,
        False,
        "ValueError: no",
    )


def test_an_option_that_does_not_exist_stops_everything():
    with pytest.raises(ConfigError, match="sizes"):
        play(
            one_group(),
            says(answer("Right")),
            make=lambda tag: make_env("frozen_lake", {"sizes": 5}),
        )


def test_an_engine_that_fails_on_a_row_costs_only_that_episode():
    class Flaky(ScriptedEngine):
        def generate(self, prompts, sampling):
            found = super().generate(prompts, sampling)
            first = Completion(
                text="no connection", token_ids=None, logprobs=None, finish_reason="error"
            )
            return [first, *found[1:]] if prompts[0].episode_id.endswith("/0") else found

    failed, other = play(one_group(2), Flaky(solver), make=open_lake)
    assert (failed.stop, failed.error, len(failed.turns)) == (StopReason.ERROR, "no connection", 0)
    assert other.stop is not StopReason.ERROR


# Without history, each turn begins a conversation.
@pytest.mark.parametrize(("turn", "history"), [("Turn 1", True), ("Turn 2", False)])
def test_a_chat_template_that_fails_at_a_puzzle_costs_only_its_episodes(turn, history):
    known = copy.deepcopy(tokenizer("qwen2"))  # which is shared by tests
    known.chat_template = (
        f"{{% if '{turn}' in messages[-1]['content'] and 'is at (0,' in messages[-1]['content'] %}}"
        "{{ raise_exception('no') }}{% endif %}" + known.chat_template
    )
    made = ChatTemplate(known)
    engine = says(answer("Right"), template=made)
    episodes = play(groups(12, 1), engine, made, max_turn=2, history=history)
    lost = [episode for episode in episodes if episode.stop is StopReason.ERROR]
    assert 0 < len(lost) < 12
    for episode in lost:
        assert (episode.error or "").startswith("The chat template cannot be rendered: no")
    assert all(len(episode.turns) for episode in episodes if episode not in lost)


def test_members_of_a_group_share_the_puzzle_and_not_the_noise():
    def slippery(tag: str) -> TextEnv:
        return make_env("frozen_lake", {"is_slippery": True})

    specs = groups(3, 6)
    episodes = play(specs, says(answer("Left || Down || Up || Right")), make=slippery, max_turn=2)
    for group in range(3):
        members = [episode for episode in episodes if episode.group == group]
        assert len({episode.puzzle_hash for episode in members}) == 1
        assert len({episode.turns[0].state for episode in members}) == 1
        assert len({episode.noise_seed for episode in members}) == 6
        assert len({episode.turns[0].next_state for episode in members}) > 1
    assert len({episode.puzzle_hash for episode in episodes}) == 3
    again = play(specs, says(answer("Left || Down || Up || Right")), make=slippery, max_turn=2)
    assert [episode.to_json() for episode in again] == [episode.to_json() for episode in episodes]


def test_an_episode_does_not_depend_on_its_company():
    made, model = template("qwen2"), small_model("qwen2")
    specs = groups(2, 2)
    together = play(specs, LocalEngine(model, made), made, max_turn=2, max_tokens=6)
    for spec, episode in zip(specs, together, strict=True):
        (alone,) = play([spec], LocalEngine(model, made), made, max_turn=2, max_tokens=6)
        np.testing.assert_array_equal(alone.token_ids, episode.token_ids)


def test_every_turn_has_draws_of_its_own():
    seeds = []

    def response(prompt: Prompt) -> str:
        seeds.append(prompt.seed)
        return answer("Right")

    play(groups(2, 2), ScriptedEngine(response), make=open_lake, max_turn=3)
    assert len(set(seeds)) == len(seeds) == 12


def test_the_seeds_of_a_step_follow_from_its_number_alone():
    def of(step: int, size: int = 2) -> list[EpisodeSpec]:
        return group_specs(
            "train", base_seed=5, step=step, tags=["A", "B"], n_groups=[2, 1], group_size=size
        )

    assert [spec.puzzle_seed for spec in of(0)] == [5, 5, 6, 6, 7, 7]
    assert [spec.puzzle_seed for spec in of(4)] == [17, 17, 18, 18, 19, 19]
    assert [spec.tag for spec in of(0)] == ["A"] * 4 + ["B"] * 2
    every = [spec for step in range(5) for spec in of(step)]
    for name in ("noise_seed", "sample_seed", "episode_id"):
        assert len({getattr(spec, name) for spec in every}) == len(every)
    # A larger group begins with the same members.
    assert [spec for spec in of(3, size=4) if spec.member < 2] == of(3)


def test_a_played_episode_survives_json():
    made = template("qwen2")
    engine = random_engine(made, max_actions=3)
    episodes = play(groups(2, 2), engine, made, mode="add_worldmodel")
    for episode in episodes:
        back = Episode.from_json(json.loads(dump_line(episode.to_json())))
        assert back.to_json() == episode.to_json()
        assert back.turns == episode.turns
        for name in ("token_ids", "sampled", "logprobs", "turn_index"):
            np.testing.assert_array_equal(getattr(back, name), getattr(episode, name))
            assert getattr(back, name).dtype == getattr(episode, name).dtype
        empty = ("token_ids", "sampled", "logprobs", "turn_index")
        assert replace(back, **dict.fromkeys(empty)) == replace(episode, **dict.fromkeys(empty))


@pytest.mark.parametrize("game", GAMES)
def test_random_play_is_legal_and_well_formed(game):
    episodes = play(
        groups(3, 3),
        random_engine(max_actions=3),
        make=lambda tag: make_env(game, GAMES[game]),
        max_actions_per_turn=3,
    )
    for turn in (turn for episode in episodes for turn in episode.turns):
        assert turn.penalty == 0
        assert turn.response.well_formed
        assert turn.executed == turn.response.actions[: len(turn.executed)]
    assert {len(turn.response.actions) for episode in episodes for turn in episode.turns} == {
        1,
        2,
        3,
    }


def test_text_only_engines_play_without_tokens():
    (episode,) = play(one_group(), ScriptedEngine(solver), make=open_lake, max_actions_per_traj=20)
    assert episode.success
    assert episode.token_ids is episode.sampled is episode.logprobs is None


def test_the_puzzle_hash_knows_the_puzzle():
    first, again, other = (
        play(one_group(puzzle_seed=seed), says(answer("Left")), make=lake)[0] for seed in (1, 1, 2)
    )
    assert first.puzzle_hash == again.puzzle_hash != other.puzzle_hash
