"""The sample response of world-model prompts: a few good moves of a real game, the plan in words,
and where they led.

A sample is copied, so it has to show what is wanted: moves that do something, a next state that
differs, no slip, and a request that its own puzzle makes.
"""

from dataclasses import dataclass

from spa.envs.base import TextEnv
from spa.prompts.render import Prompter

SEEDS = range(10)
"""Puzzles that samples are looked for in: below the seeds of the shipped configurations and below
the default of `spa.play`."""
ONE_SHOT = 3
"""Puzzles after which a game that was won by fewer moves is taken for one that needs no more."""
NOISES = range(4)
MOVES = 3
"""Actions of a sample, if the turn and the game allow as many."""


@dataclass(frozen=True, slots=True)
class Played:
    """The state before, what was done, the state after, and whether the game was over then."""

    before: str
    actions: tuple[str, ...]
    after: str
    over: bool


def sample_response(env: TextEnv, prompter: Prompter) -> str:
    """A sample response for `prompter`, played on `env`, a fresh instance of its own; ""
    if none can be had.

    The actions are the environment's `example_actions`; `reset` is given the option `sample`, at
    which an environment may leave out chance that makes actions fail. Of the puzzles and draws of
    chance that are tried, the first one counts in which all of them do what they are meant to; else
    the one that shows the most.
    """
    wanted = min(MOVES, prompter.max_actions_per_turn)
    best: Played | None = None
    for seed in SEEDS:
        for noise in NOISES:
            env.reset(seed=seed, options={"noise_seed": noise, "sample": True})
            played = play_sample(env, prompter, wanted)
            if played is not None and (best is None or len(played.actions) > len(best.actions)):
                best = played
        if best is not None and (len(best.actions) == wanted or env.finite_puzzles):
            break
        if best is not None and best.over and seed >= ONE_SHOT:
            break
    if best is None:
        return ""
    answer = f" {prompter.action_sep} ".join(best.actions)
    plan = prompter.form.sample_thoughts(best.actions, best.after)
    return prompter.form.write(best.before, plan, best.after, answer)


def play_sample(env: TextEnv, prompter: Prompter, wanted: int) -> Played | None:
    """The environment's example actions from its current state, up to the first that changes
    nothing. None if none is left, or if one leads away from the goal (a slip) or loses the
    game."""
    before = env.world_state_text(prompter.state_text)
    done: list[str] = []
    over = False
    mover = env.current_player()
    for text in env.example_actions()[:wanted]:
        action = env.to_action(text)
        state = env.state_text(prompter.state_text)
        left = env.optimal_steps()
        if action is None:
            return None
        _, _, terminated, truncated, info = env.step(action)
        # An action without effect ends the sample; the actions before it are kept.
        if env.state_text(prompter.state_text) == state:
            break
        done.append(text)
        over = terminated or truncated
        # A losing sample is refused, except in games of few puzzles, where samples that always win
        # would give the answers away.
        if over and not info["success"] and not env.finite_puzzles:
            return None
        # The action slipped if it did not bring the goal one step nearer.
        if not over and left is not None and env.optimal_steps() != left - 1:
            return None
        # A response holds the moves of one player.
        if over or env.current_player() != mover:
            break
    after = env.world_state_text(prompter.state_text)
    return Played(before, tuple(done), after, over) if done and after != before else None
