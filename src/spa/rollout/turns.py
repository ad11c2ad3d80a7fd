"""One turn of an episode: parse a response, execute its actions, record the result. This module
does not handle tokens."""

from dataclasses import replace

from spa.envs.base import TextEnv
from spa.envs.limits import checked_step, checked_text
from spa.formats.registry import parse_response
from spa.prompts.render import Prompter
from spa.types import StopReason, Turn


def take_turn(
    env: TextEnv,
    prompter: Prompter,
    text: str,
    *,
    actions_left: int,
    format_penalty: float,
    finish_reason: str = "stop",
) -> tuple[Turn, bool]:
    """Execute the actions of a response. `text` is the response, including its prefill. Returns the
    turn, and whether the game has ended.

    Takes at most `actions_left` actions, and stops early once it is another player's turn. Raises
    EnvFault if the environment returns invalid values.
    """
    response = parse_response(
        text,
        mode=prompter.mode,
        enable_think=prompter.enable_think,
        action_sep=prompter.action_sep,
        max_actions=prompter.max_actions_per_turn,
        order=prompter.response_format,
    )
    state, known = _states(env, prompter)
    mapped = [env.to_action(action) for action in response.actions]
    legal = [
        (_label(env, name), action)
        for name, action in zip(response.actions, mapped, strict=True)
        if action is not None
    ]
    # Unknown actions are penalized as well. As in the original, actions beyond the limit are cut
    # off without a penalty.
    penalty = (
        0.0 if response.well_formed and len(legal) == len(response.actions) else format_penalty
    )
    executed = []
    infos = []
    reward = 0.0
    ended = False
    mover = env.current_player() if env.players > 1 else 0
    for name, action in legal[:actions_left]:
        value, ended, info = checked_step(env.step(action))
        executed.append(name)
        infos.append(info)
        reward += value
        if ended or (env.players > 1 and env.current_player() != mover):
            break
    next_state, next_known = _states(env, prompter)
    turn = Turn(
        state=state,
        actions_left=actions_left,
        response_text=text,
        response=response,
        executed=tuple(executed),
        reward=reward,
        penalty=penalty,
        next_state=next_state,
        infos=tuple(infos),
        finish_reason=finish_reason,
        world_state=known,
        next_world_state=next_known,
    )
    return turn, ended


def stop_after(
    turn: Turn, ended: bool, prompter: Prompter, *, turns: int, used_actions: int
) -> StopReason | None:
    """Return the reason why an episode stops after `turn`; None if it continues. `turns` and
    `used_actions` are the episode's totals so far."""
    if ended:
        return StopReason.SUCCESS if turn.infos[-1].get("success") else StopReason.FAILURE
    if used_actions >= prompter.max_actions_per_traj:
        return StopReason.MAX_ACTIONS
    return StopReason.MAX_TURNS if turns >= prompter.max_turn else None


def paid(turn: Turn, reward: float) -> Turn:
    """Return the turn with `reward` added to its reward. The added reward comes from a later move
    of another player."""
    return replace(turn, reward=turn.reward + reward)


def _states(env: TextEnv, prompter: Prompter) -> tuple[str, str | None]:
    """Return the state as prompts show it, and the world state that a world-model response should
    describe. The latter is None if both are equal."""
    shown = checked_text(env.state_text(prompter.state_text), "state_text")
    known = checked_text(env.world_state_text(prompter.state_text), "world_state_text")
    return shown, None if known == shown else known


def _label(env: TextEnv, text: str) -> str:
    """Return the environment's own spelling of an action. Free-text actions are unchanged."""
    # " up" is recorded as "Up", so that plans can be compared as texts.
    return next((name for name in env.action_names() if name.lower() == text.strip().lower()), text)
