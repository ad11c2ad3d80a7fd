"""Replay the actions of a rollout in its game, to obtain the true states and compare them with the
record."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.envs.limits import EnvFault, boundary, checked_step, checked_text
from spa.formats.blocks import split_actions
from spa_bench.diagnose.predictions import inside, words
from spa_bench.diagnose.rollouts import Rollout

CLOSE = 1e-6  # Rewards are equal if they differ by at most this value.


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The game in which rollouts are replayed: a single-player environment, its state rendering,
    and its limits."""

    env: TextEnv
    state_text: StateText
    action_sep: str
    max_actions_per_turn: int
    max_actions_per_traj: int
    others: frozenset[str] = frozenset()  # tags of other games


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replayed rollout.

    `rollout` has the states and actions of the replay, up to its first difference from the record.
    `by` names the basis of the comparison: the recorded "states" or "rewards", or the "text" of
    messages. It is "" if the rollout has none of these. For a rollout that was not replayed, `by`
    is the reason: "seed" (it has no seed) or "tag" (it is from another game).

    `differs` is the first turn (from 1) whose initial state differs from the record, or whose
    previous turn has a different reward. It is None if there is no difference. `fault` is the error
    that the game raised, or "".
    """

    rollout: Rollout
    by: str
    differs: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Step:
    shown: str  # state as the agent is shown it before the turn
    known: str  # true state, which may contain more than is shown
    actions: tuple[str, ...] = ()
    reward: float = 0.0


def replayed(rollout: Rollout, game: Game) -> Replay:
    """Replay a rollout's puzzle with the recorded actions. If none are recorded, the actions come
    from the answer blocks of the responses. A response without an answer block is itself the
    action."""
    if rollout.tag in game.others:
        return Replay(rollout=rollout, by="tag")
    if rollout.seed is None:
        return Replay(rollout=rollout, by="seed")
    try:
        with boundary("the replay"):
            steps = _play(rollout, game)
    except EnvFault as error:
        return Replay(rollout=rollout, by="", differs=1, fault=str(error))
    by, differs = _compare(rollout, steps)
    # From turn `differs` (counted from 1) on, the states belong to a different course of the game,
    # so drop them.
    sure = steps if differs is None else steps[: differs - 1]
    states = rollout.states[: len(sure)] if by == "states" else tuple(step.known for step in sure)
    actions = rollout.actions or tuple(step.actions for step in sure[:-1])
    known = replace(rollout, states=states, actions=actions, cut=differs is not None)
    return Replay(rollout=known, by=by, differs=differs)


def _play(rollout: Rollout, game: Game) -> list[_Step]:
    """Play the rollout. Returns one step per turn, with the state before it, and a last step with
    only the final state. If the game ends early, there are fewer steps than recorded turns."""
    env = game.env
    steps = list[_Step]()
    left = game.max_actions_per_traj
    # The same seed may give another puzzle in validation than in training.
    options: dict[str, Any] = {"validation": rollout.split == "val"}
    if rollout.noise_seed is not None:
        options["noise_seed"] = rollout.noise_seed
    env.reset(seed=rollout.seed, options=options)
    over = False
    for turn, response in enumerate(rollout.responses):
        if over:
            break
        before = _see(env, game)
        reward = 0.0
        taken = list[str]()
        # Parse all actions of a turn before playing the first one, as in rollouts.
        mapped = [(name, env.to_action(name)) for name in _plan(rollout, turn, response, game)]
        for name, action in [(name, action) for name, action in mapped if action is not None][
            :left
        ]:
            value, over, _ = checked_step(env.step(action))
            reward += value
            taken.append(name)
            if over:
                break
        left -= len(taken)
        steps.append(_Step(*before, tuple(taken), reward))
    return [*steps, _Step(*_see(env, game))]


def _plan(rollout: Rollout, turn: int, response: str, game: Game) -> tuple[str, ...]:
    if turn < len(rollout.actions):
        return rollout.actions[turn]
    text = inside(response, "answer")
    # Other stacks have formats in which a response without an answer block is itself the action.
    if not text and "<answer>" not in response:
        return (response.strip(),)
    return split_actions(text, action_sep=game.action_sep, max_actions=game.max_actions_per_turn)


def _see(env: TextEnv, game: Game) -> tuple[str, str]:
    shown = checked_text(env.state_text(game.state_text), "state_text")
    return shown, checked_text(env.world_state_text(game.state_text), "world_state_text")


def _compare(rollout: Rollout, steps: Sequence[_Step]) -> tuple[str, int | None]:
    """Return the basis of the comparison, and the first turn (from 1) at which the record differs
    from the replay. The text after the last response is not compared, because it need not be a
    state."""
    if rollout.states:
        # Not strict here and below, because the replay may end before the record. `_first_other`
        # counts that as a difference.
        same = [
            words(step.known) == words(state)
            for step, state in zip(steps, rollout.states, strict=False)
        ]
        return "states", _first_other(same, len(rollout.states))
    told = _messages(rollout)
    held = [words(step.shown) in words(text) for step, text in zip(steps, told, strict=False)]
    # If no message contains its state, the messages do not show states and cannot be compared.
    if any(held):
        return "text", _first_other(held, len(told))
    if rollout.turn_rewards:
        pairs = zip(steps, rollout.turn_rewards, strict=False)
        # A wrong reward in turn t means that turn t ended in another state, so turn t + 1 is the
        # first with another initial state. The leading True shifts the rewards by one turn.
        same = [True, *(abs(step.reward - reward) <= CLOSE for step, reward in pairs)]
        return "rewards", _first_other(same, 1 + len(rollout.turn_rewards))
    return "", None


def _messages(rollout: Rollout) -> list[str]:
    """Return, for each response, the text of all messages since the previous response."""
    texts = list[str]()
    since = ""
    for role, text in rollout.chat:
        if role == "assistant":
            texts.append(since)
            since = ""
        else:
            since = f"{since}\n{text}"
    return texts


def _first_other(same: Sequence[bool], wanted: int) -> int | None:
    """The first position (from 1) that differs or that the replay does not reach. None if all
    agree."""
    other = next((turn for turn, good in enumerate(same, 1) if not good), None)
    return len(same) + 1 if other is None and len(same) < wanted else other


def replay_report(replays: Sequence[Replay]) -> dict[str, Any]:
    """Count replays: `played`, `without_seed`, `other_tag`, by basis of the comparison (`by`), and
    `unchecked` (nothing to compare).

    `differ` lists the replays that deviate, each with `where`, `turn` and the game's `fault` ("" if
    none).
    """
    played = [replay for replay in replays if replay.by not in ("seed", "tag")]
    return {
        "played": len(played),
        "without_seed": sum(replay.by == "seed" for replay in replays),
        "other_tag": sum(replay.by == "tag" for replay in replays),
        "by": dict(Counter(replay.by for replay in played if replay.by)),
        "unchecked": sum(not replay.by and replay.differs is None for replay in played),
        "differ": [
            {"where": replay.rollout.where, "turn": replay.differs, "fault": replay.fault}
            for replay in played
            if replay.differs is not None
        ],
    }
