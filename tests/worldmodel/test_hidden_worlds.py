"""What is shown, what is allowed, and what should be known are three things; by default the first is the last."""

import json

import pytest
from helpers.play import groups, play

from spa.config.load import load_config
from spa.envs.base import StateText
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import make_env
from spa.formats.registry import parse_response, world_model_response
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.prompts.render import Prompter
from spa.recipes import selfplay
from spa.types import Episode, Prompt
from spa.worldmodel.accuracy import with_world_model_reward, world_model_metrics
from spa.worldmodel.branches import counterfactual_examples
from spa.worldmodel.examples import episode_examples
from spa_author.checker import check


class Fog(FrozenLake):
    """The player sees its own cell only; the holes and the goal should be known all the same."""

    def __init__(self) -> None:
        super().__init__(size=4, is_slippery=False)

    def state_text(self, mode: StateText) -> str:
        return f"You stand on cell {self.player}."

    def world_state_text(self, mode: StateText) -> str:
        return super().state_text("coords")

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(
            name for name, turn in zip(self._labels, self._turns, strict=True) if self._leads(turn)
        )

    def _leads(self, turn: int) -> bool:
        return self._tables[turn][self.player] != self.player


def fog(tag: str = "") -> Fog:
    return Fog()


def knows(prompt: Prompt) -> str:
    """A player that knows the hidden world and foresees one step to the right."""
    env = prompt.context
    twin = env.clone()
    twin.step(twin.to_action("Right"))
    return world_model_response(
        env.world_state_text("coords"), "", twin.world_state_text("coords"), "Right"
    )


def test_rows_accuracy_and_reward_follow_what_should_be_known():
    episodes = play(
        groups(6, 1), ScriptedEngine(knows), make=fog, mode="add_worldmodel", max_turn=2
    )
    found = world_model_metrics(episodes)
    assert (found["wm/obs_exact"], found["wm/prediction_em"]) == (1.0, 1.0)
    paid = with_world_model_reward(episodes, observation=1.0, prediction=1.0)
    for before, after in zip(episodes, paid, strict=True):
        for turn, rewarded in zip(before.turns, after.turns, strict=True):
            moved = turn.target != turn.next_target
            assert rewarded.reward - turn.reward == pytest.approx(1.0 + moved)
            assert turn.state.startswith("You stand") and turn.target.startswith(
                ("hole", "no holes")
            )


def test_beliefs_are_corrected_to_the_hidden_truth_and_the_prompt_shows_what_is_seen():
    (episode, *_) = play(
        groups(1, 1),
        random_engine(max_actions=1),
        make=fog,
        mode="add_worldmodel",
        state_text="coords",
    )
    prompter = Prompter(mode="add_worldmodel", state_text="coords")
    examples = episode_examples(episode, action_sep="||")[0] + counterfactual_examples(
        episode, make=fog, prompter=prompter, plans=None
    )
    for example in examples:
        response = parse_response(example.response, mode="add_worldmodel")
        assert (response.observation, response.prediction) == (example.state, example.next_state)
        assert str(response.observation).startswith(("hole", "no holes"))
        assert (
            "You stand on cell" in example.prompt[-1]["content"]
            and example.state not in example.prompt[-1]["content"]
        )
    assert len(examples) > len(episode.turns)


def test_self_play_warns_of_states_that_no_message_shows(tmp_path):
    shares = []
    for env in ("test_hidden_worlds:Fog", "frozen_lake"):
        size = "{}" if "Fog" in env else "{size: 4, is_slippery: false}"
        cfg = load_config(
            "tiny",
            [
                f"+custom_envs.Hidden={{env_type: '{env}', max_actions_per_traj: 10, env_config: {size}}}",
                "es_manager.train.env_configs={tags: [Hidden], n_groups: null}",
                "es_manager.val.env_configs={tags: [Hidden], n_groups: null}",
                "es_manager.train.env_groups=6",
                "es_manager.train.group_size=1",
                "es_manager.val.env_groups=2",
                "generate.policy=random",
                "generate.num_batches=1",
                "generate.val_fraction=0.4",
                "trainer.logger=[]",
                f"trainer.run_dir={tmp_path}",
            ],
            stages=("selfplay",),
        )
        folder = selfplay.run_self_play(cfg, directory=tmp_path / str(len(shares)))
        shares.append(json.loads((folder / "summary.json").read_text()).get("hidden_share", 0.0))
        warned = (folder / "log.txt").read_text().count("in no message")
        assert warned == (env != "frozen_lake")
    assert 0.2 < shares[0] < 1 and shares[1] == 0


def test_episodes_keep_it_and_those_without_have_no_new_fields():
    (hidden,) = play(groups(1, 1), random_engine(max_actions=1), make=fog, mode="add_worldmodel")
    assert Episode.from_json(json.loads(json.dumps(hidden.to_json()))) == hidden
    (plain,) = play(groups(1, 1), random_engine(max_actions=1), mode="add_worldmodel")
    assert all(
        "world_state" not in turn and "next_world_state" not in turn
        for turn in plain.to_json()["turns"]
    )
    assert all(
        (turn.target, turn.next_target) == (turn.state, turn.next_state) for turn in plain.turns
    )


def test_legal_actions_are_shown_where_they_are_asked_for():
    env = fog()
    env.reset(seed=1, options={"board": "P___\n____\n____\n___G"})
    shown = Prompter(show_legal_actions=True).first_messages(env)[1]["content"]
    assert "State:\nYou stand on cell 0.\nLegal actions: Down, Right\nActions left" in shown
    assert "Legal actions" not in Prompter().first_messages(env)[1]["content"]
    shop = make_env("webshop")
    shop.reset(seed=0)
    shop.step("search[usb cable]")
    assert "click[back to search]" in shop.legal_actions()


class Blank(Fog):
    def world_state_text(self, mode: StateText) -> str:
        return ""


class Lying(Fog):
    def legal_actions(self) -> tuple[str, ...]:
        return ("Fly",)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Fog, None),
        (Blank, "state_text returns a string in every state"),
        (Lying, "step accepts every action in legal_actions"),
    ],
)
def test_the_checker_looks_at_all_three(kind, broken):
    failed = {finding.check for finding in check(kind, seeds=3, steps=20) if not finding.ok}
    assert (broken in failed) if broken else not failed
