"""What every environment of this folder must hold to; called by each environment's own tests."""

import json
import math
import warnings
from collections.abc import Callable

import numpy as np
from gymnasium.utils.env_checker import check_env

from spa.envs.base import TextEnv

HOSTILE = [
    "",
    " ",
    "\x00",
    "||",
    "Up" * 50_000,
    "a" * 1_000_000,
    "‮Up",
    "9**9**9**9",
    "<answer>",
    "[[[[",
    "]",
    "\ud800",
    "٣",
]


def check_contract(make: Callable[[], TextEnv], *, steps: int = 12) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(make(), skip_render_check=True)
    assert [play(make(), seed, steps) for seed in range(5)] == [
        play(make(), seed, steps) for seed in range(5)
    ]
    one = make()
    assert [play(one, seed, steps) for seed in (3, 1, 3)] == [
        play(make(), seed, steps) for seed in (3, 1, 3)
    ]
    check_hostile(make())
    check_end(make())


def play(env: TextEnv, seed: int, steps: int) -> list[object]:
    """A random episode as a list of everything it showed; checks shapes on the way."""
    rng = np.random.default_rng(seed)
    state, _ = env.reset(seed=seed, options={"noise_seed": seed + 1})
    assert env.puzzle_text()
    story: list[object] = [
        state,
        env.puzzle_text(),
        env.instruction("grid"),
        env.instruction("coords"),
    ]
    for _ in range(steps):
        text = env.random_action(rng)
        action = env.to_action(text)
        assert action is not None, text
        state, reward, terminated, truncated, info = env.step(action)
        assert (
            isinstance(terminated, bool) and isinstance(truncated, bool) and math.isfinite(reward)
        )
        assert all(
            isinstance(info[key], bool)
            for key in ("action_is_valid", "action_is_effective", "success")
        )
        assert json.loads(json.dumps(info)) == info
        assert state == env.state_text(env.default_state_text) and state == state.strip() and state
        story += [text, state, reward, terminated, json.dumps(info)]
        if terminated or truncated:
            break
    for mode in ("grid", "coords", "grid_and_coords"):
        story.append(env.state_text(mode))
    return story


def check_hostile(env: TextEnv) -> None:
    """Texts and actions that stand for nothing: no exception, no reward, no change."""
    env.reset(seed=0)
    for text in HOSTILE:
        env.to_action(text)
    for action in (-1, 10**30, 99, "", "a" * 1_000_000, None, 1.5, [1], True):
        env.reset(seed=0)
        _, reward, _, _, info = env.step(action)  # type: ignore[arg-type]
        assert (
            info["action_is_valid"] is False
            and info["action_is_effective"] is False
            and info["success"] is False
        )
        assert reward <= 0.0


def check_end(env: TextEnv) -> None:
    """After the end, an action changes nothing and is paid nothing."""
    env.reset(seed=3)
    best = env.expert_actions(300)
    ended = False
    for text in best:
        ended = env.step(env.to_action(text))[2]
    if not ended:  # no expert, or chance decides
        return
    end = env.state_text("grid")
    for text in env.action_names() or best:
        _, reward, terminated, truncated, _ = env.step(env.to_action(text))
        assert (reward, terminated, truncated) == (0.0, True, False), text
        assert env.state_text("grid") == end
