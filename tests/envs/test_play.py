import re

from hypothesis import given
from hypothesis import strategies as st

from spa.envs.frozen_lake import FrozenLake
from spa.prompts.render import Prompter
from spa_author.terminal import best, play, read_actions
from spa_games.sokoban import Sokoban
from spa_games.sudoku import Sudoku


def session(env, lines: list[str], *, hint: bool = False, **limits):
    """Plays the lines; returns the score and everything that was written."""
    pending, out = list(lines), []
    score = play(
        env,
        Prompter(state_text="grid", **limits),
        seed=0,
        hint=hint,
        read=lambda prompt: pending.pop(0) if pending else None,
        write=out.append,
    )
    return score, "\n".join(out)


def test_the_first_prompt_is_what_a_model_sees():
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    prompt = Prompter(state_text="grid").first_messages(env)[1]["content"]
    _, out = session(env, [])
    assert prompt in out and "0 of 1 solved" in out


def test_solving_by_hints():
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    plan = env.expert_actions(10)
    score, out = session(env, [" ".join(plan), ":quit"], hint=True)
    assert (score.solved, score.puzzles, score.actions, score.reward) == (1, 2, len(plan), 1.0)
    assert f"hint: {plan[0]}" in out and "Solved." in out and "puzzle 1" in out


def test_commands_and_mistakes():
    score, out = session(
        FrozenLake(is_slippery=False), ["jump", ":hint", ":nonsense", ":prompt", ":new", ":quit"]
    )
    assert "'jump' is not an action. Actions: Left, Down, Right, Up." in out
    assert out.count("Turn 1:") == 3 and score.puzzles == 2 and score.actions == 0


def test_the_cap_ends_a_puzzle():
    _, out = session(Sokoban(), ["Up Up Up", "Up"], max_actions_per_traj=2)
    assert "No actions left." in out and "puzzle 1" in out
    _, out = session(
        Sokoban(), ["Up", "Up Up"], max_actions_per_traj=9, max_turn=2, max_actions_per_turn=1
    )
    assert "No actions left." in out and "puzzle 1" in out


def test_the_first_prompt_stays_the_first():
    _, out = session(Sokoban(), ["Up", "Down", "Left", "Right", ":prompt", ":quit"])
    first = out.split("puzzle 0\n")[1].split(":hint")[0].strip()
    assert out.count(first) == 2


def test_shortened_words_and_keys():
    env = Sokoban()
    assert read_actions(env, "u || dow || w", "||") == ["Up", "Down", "Up"]
    assert read_actions(env, "a s", "||") == ["Left", "Down"]
    renamed = Sokoban(action_lookup={1: "Upwards", 2: "Upset", 3: "Left", 4: "Right"})
    assert read_actions(renamed, "up", "||") == ["up"]
    assert read_actions(Sudoku(), "1,2,3 || 2 2 1", "||") == ["1,2,3", "2 2 1"]


def test_no_hint_without_a_way():
    env = Sokoban()
    env.reset(options={"board": "######\n#X___#\n#_P__#\n#____#\n#__O_#\n######"})
    assert best(env, 10).startswith("none")


def test_a_game_of_pictures_shows_a_person_the_text_too():
    env = Sokoban(render_mode="rgb_array")
    env.reset(seed=0)
    _, out = session(env, ["Up"])
    assert "<image>" in out and env.puzzle_text() in out


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_input_is_survived(lines):
    for env in (FrozenLake(), Sudoku()):
        score, out = session(env, lines)
        # An action that is not understood is shown again, so `puzzle` may also be part of a line.
        assert out.endswith(" points")
        assert len(re.findall(r"^puzzle \d+$", out, re.M)) == score.puzzles
        assert 0 <= score.solved <= score.puzzles <= len(lines) + 1 and score.actions <= 15 * len(
            lines
        )
