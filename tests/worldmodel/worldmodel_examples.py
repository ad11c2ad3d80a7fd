"""Episodes made by hand, for the tests of world-model data."""

from collections.abc import Sequence

from spa.formats.registry import parse_response
from spa.types import Episode, StopReason, Turn


def response_to(observation: str, prediction: str, answer: str, thoughts: str = "move") -> str:
    return (
        f"<think>\n<observation>\n{observation}\n</observation>\n{thoughts}\n"
        f"<prediction>\n{prediction}\n</prediction>\n</think>\n<answer>{answer}</answer>"
    )


def make_turn(
    text: str,
    *,
    state: str = "S0",
    next_state: str = "S1",
    executed: Sequence[str] = ("Left",),
    mode: str = "add_worldmodel",
) -> Turn:
    return Turn(
        state=state,
        actions_left=10,
        response_text=text,
        response=parse_response(text, mode=mode),
        executed=tuple(executed),
        reward=-0.1,
        penalty=0.0,
        next_state=next_state,
    )


def make_episode(
    turns: Sequence[Turn], *, name: str = "train/0", puzzle: str = "p0", **changes
) -> Episode:
    messages = [{"role": "system", "content": "You play."}]
    for turn in turns:
        messages.append({"role": "user", "content": f"State:\n{turn.state}"})
        messages.append({"role": "assistant", "content": turn.response_text})
    values = {
        "episode_id": name,
        "tag": "SimpleSokoban",
        "mode": "add_worldmodel",
        "state_text": "coords",
        "puzzle_seed": 7,
        "noise_seed": 8,
        "puzzle_hash": puzzle,
        "group": 0,
        "member": 0,
        "stop": StopReason.MAX_TURNS,
        "success": False,
        "turns": tuple(turns),
        "messages": tuple(messages),
        **changes,
    }
    return Episode(**values)
