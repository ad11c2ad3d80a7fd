"""Single moves: rows of play, questions in tokens, and the texts of states that they are asked about."""

import pytest
from helpers.play import groups, play

from spa.config.load import load_config
from spa.envs.registry import make_env
from spa.formats.search import explore
from spa.models.build import load_template
from spa.planning.moves import move_examples, move_question
from spa.policies.scripted import random_engine
from spa.worldmodel.examples import episode_examples

ROOM = "######\n##___#\n#_P__#\n#_X__#\n#__O_#\n######"
NO_SLIP = {"size": 4, "p": 0.7, "is_slippery": False}
TWO_BOXES = {
    "num_boxes": 2,
    "search_depth": 30,
    "grid_lookup": {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"},
}


@pytest.mark.parametrize(
    ("game", "options", "mode"),
    [
        ("frozen_lake", NO_SLIP, "coords"),
        ("sokoban", {}, "grid"),
        ("sokoban", TWO_BOXES, "grid_and_coords"),
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_states_are_named_and_written_from_texts_as_the_game_does(game, options, mode, seed: int):
    env = make_env(game, options)
    env.reset(seed=seed)
    text = env.state_text(mode)
    _, copies = explore(env)
    some = list(copies.values())[:100]
    ends = [(copy, name) for copy in some for name in copy.action_names()]
    for copy, name in ends:
        twin = copy.clone()
        action = twin.to_action(name)
        assert action is not None
        twin.step(action)
        key, shown = twin.state_key(), twin.state_text(mode)
        assert key is not None
        assert env.key_of_text(shown) == key
        assert env.text_of_key(text, key) == shown
        assert env.outcome_of_text(shown) == twin.state_outcome()


@pytest.mark.parametrize("key", ["", "3", "44", "04", "333", "x1", "²1", "-1", "3 1"])
def test_a_name_of_no_cell_has_no_text(key: str):
    env = make_env("frozen_lake", NO_SLIP)
    env.reset(seed=0)
    assert env.text_of_key(env.state_text("coords"), key) is None


@pytest.mark.parametrize(
    "text", ["", "player (P) is at (0,0).", "____\n_P__", "no holes (O); goal (G) is at (0,0)"]
)
def test_other_texts_show_no_state(text: str):
    env = make_env("frozen_lake", NO_SLIP)
    env.reset(seed=0)
    assert env.key_of_text(text) is None
    assert env.text_of_key(text, "00") is None
    assert env.outcome_of_text(text) == ""


@pytest.mark.parametrize("key", ["", "22", "223", "2222", "1211", "2266", "22²2", "16.2", "223243"])
def test_a_name_of_no_state_of_a_room_has_no_text(key: str):
    env = make_env("sokoban", {})
    env.reset(options={"board": ROOM})
    # A wall at (1,1); column 6 would be a line break, and column 8 the next row.
    assert env.text_of_key(ROOM, key) is None
    assert env.text_of_key(ROOM, "2228") is None
    assert env.text_of_key(ROOM, "2242") == "######\n##___#\n#_P__#\n#____#\n#_XO_#\n######"


@pytest.mark.parametrize("text", ["", "Player (P) is at (1,2).", ROOM.replace("P", "_"), "##\n##"])
def test_other_texts_show_no_room(text: str):
    env = make_env("sokoban", {})
    env.reset(options={"board": ROOM})
    assert env.key_of_text(text) is None
    assert env.text_of_key(text, "2232") is None
    assert env.outcome_of_text(text) == ""


def test_examples_of_play_become_moves():
    episodes = play(
        groups(6, 1), random_engine(max_actions=1), mode="add_worldmodel", state_text="coords"
    )
    env = make_env("frozen_lake", NO_SLIP)
    env.reset(seed=0)
    moves = [
        example
        for episode in episodes
        for example in move_examples(episode_examples(episode, action_sep="||")[0], env)
    ]
    assert moves
    for example in moves:
        action, key = (
            example.executed[0],
            example.response.removeprefix(f"<think>{example.executed[0]}"),
        )
        assert example.response == f"<think>{action}{key}"
        assert env.text_of_key(example.state, key) == example.next_state
        assert example.prompt[1]["content"].endswith(f"\n\nState:\n{example.state}")


def test_a_question_is_how_the_row_of_a_move_begins():
    tokens = load_template(load_config("tiny"), "builtin:tiny")
    env = make_env("frozen_lake", NO_SLIP)
    env.reset(seed=3)
    state = env.state_text("coords")
    question = move_question(env, state, "Left", tokens, number=7)
    row = tokens.start(question.messages, "<think>") + tokens.response_ids(
        "<think>Left30", "<think>"
    )
    assert row[: len(question.token_ids)] == question.token_ids.tolist()
    assert tokens.decode_response(row[len(question.token_ids) :]) == "30"
