"""Counterfactual examples: in every state of a played episode, try other plans in copies of the
game.

The examples of a state share its prompt, including the conversation. There is one example per plan,
with the true next state. No model or solver is involved. If every legal action is tried, each state
has one example per action.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from spa.envs.base import Action, TextEnv
from spa.envs.branch import Past, branch
from spa.envs.limits import checked_step
from spa.errors import ConfigError, DataError
from spa.formats.plans import Option
from spa.formats.registry import parse_response, relabel_turn
from spa.prompts.render import Prompter
from spa.seeds import stream, stream_seed
from spa.types import Episode, SFTExample, StopReason, Turn
from spa.worldmodel.examples import assistant_positions, corrected_messages, make_example

Plan = tuple[str, ...]


def require_tries(env: TextEnv, tag: str, plans: int | None) -> None:
    """Raise ConfigError if other plans cannot be tried in `env`, which must have been reset.

    This is the case if the game has several players, or if `plans` is None, which means every
    action, but the game lists no actions.
    """
    if env.players > 1:
        raise ConfigError(
            f"{tag} has {env.players} players, but generate.policy=counterfactual and "
            "agent_proxy.response_format=choose_plan support only single-player games; "
            "choose another policy and format"
        )
    if plans is None and not env.legal_actions():
        raise no_actions(tag)


def no_actions(tag: str) -> ConfigError:
    """Return the error for an environment that does not list its legal actions, which makes it
    impossible to try them all."""
    return ConfigError(
        f"{tag} does not list its legal actions, so spa cannot try all of them; set "
        "generate.branches to a number"
    )


def counterfactual_examples(
    episode: Episode, *, make: Callable[[], TextEnv], prompter: Prompter, plans: int | None
) -> list[SFTExample]:
    """Make examples of plans that the episode did not execute.

    `extra["branch"]` is the number of the example among the examples of a state, from 1.
    `extra["tried"]` is the number of actions executed in copies since the previous example,
    including copies that yield no example.

    `plans` is the number of plans to sample per state, each with one to `max_actions_per_turn`
    random actions. None tries every legal action, one action per plan. Every copy has its own
    random stream if the environment supports it.

    Raises ConfigError if every action is to be tried and a state lists none. Raises DataError if
    replaying the episode leads to other states.
    """
    if episode.stop is StopReason.ERROR:
        return []
    messages = corrected_messages(episode, action_sep=prompter.action_sep)
    places = assistant_positions(episode)
    examples: list[SFTExample] = []
    actions = 0  # number of actions executed in copies since the last example
    for index, others in enumerate(_tried(episode, make, prompter, plans)):
        turn = episode.turns[index]
        different = list(others)
        if plans is not None:
            # If the game ends early, plans are cut short. They may then equal the executed plan or
            # each other.
            led = {(tried.executed, tried.next_target): tried for tried in others}
            led.pop((turn.executed, turn.next_target), None)
            different = list(led.values())
        actions += sum(len(tried.executed) for tried in others)
        for number, tried in enumerate(different, start=1):
            text = relabel_turn(
                tried, action_sep=prompter.action_sep, order=prompter.response_format
            ).text
            if text is not None:
                example = make_example(episode, index, tried, messages[: places[index]], text)
                extra = {**example.extra, "branch": number, "tried": actions}
                actions = 0
                examples.append(replace(example, predicted=None, observed=None, extra=extra))
    if examples:
        examples[-1].extra["tried"] += actions
    return examples


def turn_options(
    episode: Episode, *, make: Callable[[], TextEnv], prompter: Prompter, plans: int | None
) -> list[tuple[tuple[Option, ...], int]]:
    """Return, for each turn, the options of `choose_plan` and the number of actions executed in
    copies to make them.

    The options are at most `imagined_plans` plans with their true outcomes, in random order. One of
    them is the executed plan. The others are sampled as in `counterfactual_examples`, so no solver
    reveals which plans are good.

    Raises the errors of `counterfactual_examples`.
    """
    if episode.stop is StopReason.ERROR:
        return [((), 0) for _ in episode.turns]
    options_of: list[tuple[tuple[Option, ...], int]] = []
    for index, others in enumerate(_tried(episode, make, prompter, plans)):
        turn = episode.turns[index]
        rng = stream(episode.noise_seed, "options", index)
        # If the game ends early, plans are cut short. Plans that executed the same actions count
        # once.
        led = {tried.executed: tried.next_target for tried in others}
        known = [(plan, state) for plan, state in led.items() if plan != turn.executed]
        # One of the `imagined_plans` options is the executed plan.
        picked = [
            known[number] for number in rng.permutation(len(known))[: prompter.imagined_plans - 1]
        ]
        own = (turn.executed, turn.next_target)
        # Shuffle, because a fixed position would reveal which plan was executed.
        ordered = tuple([*picked, own][number] for number in rng.permutation(len(picked) + 1))
        options_of.append((ordered, sum(len(tried.executed) for tried in others)))
    return options_of


def _tried(
    episode: Episode, make: Callable[[], TextEnv], prompter: Prompter, plans: int | None
) -> Iterator[list[Turn]]:
    """Replay an episode, and yield for each turn the outcomes of other plans in copies."""
    options = {"noise_seed": episode.noise_seed, "validation": False}
    env = make()
    done = list[Action]()
    env.reset(seed=episode.puzzle_seed, options=options)
    for index, turn in enumerate(episode.turns):
        # If the replay reached other states, the examples would not match the prompts.
        if env.state_text(prompter.state_text) != turn.state:
            raise DataError(
                f"Episode {episode.episode_id}, turn {index}: replaying the actions leads to "
                "another state, because the seeds do not determine the environment "
                f"{episode.tag}. Run `spa env check` to find the cause"
            )
        rng = stream(episode.noise_seed, "branches", index)
        turns = list[Turn]()
        for number, plan in enumerate(
            _plans(env, episode.tag, prompter, turn, plans, rng), start=1
        ):
            # If the game cannot be cloned, `branch` replays it up to this turn.
            past = Past(make=make, seed=episode.puzzle_seed, options=options, actions=done)
            twin = branch(env, past, stream_seed(episode.noise_seed, "branches", index, number))
            turns.append(_try(twin, plan, prompter, turn))
        yield turns
        # Continue the game itself only after all copies of this state have been made.
        for name in turn.executed:
            action = env.to_action(name)
            if action is not None:
                env.step(action)
                done.append(action)


def _plans(
    env: TextEnv,
    tag: str,
    prompter: Prompter,
    turn: Turn,
    plans: int | None,
    rng: np.random.Generator,
) -> Iterator[Plan]:
    """Yield distinct plans to try, without the plan that the turn executed. For `plans`, see
    `counterfactual_examples`."""
    if plans is None:
        names = env.legal_actions()
        if not names:
            raise no_actions(tag)
        tried: list[Plan] = [(name,) for name in names]
    else:
        most = max(1, min(prompter.max_actions_per_turn, turn.actions_left))
        lengths = rng.integers(1, most + 1, size=plans)
        tried = [env.random_plan(rng, int(length)) for length in lengths]
    # Random plans may repeat. Each plan is tried once.
    yield from dict.fromkeys(plan for plan in tried if plan != turn.executed)


def _try(env: TextEnv, plan: Plan, prompter: Prompter, turn: Turn) -> Turn:
    """Execute the plan in `env`, and return it as a turn whose response has placeholders for
    states."""
    executed = []
    reward = 0.0
    for name in plan:
        action = env.to_action(name)
        if action is None:
            break
        value, ended, _ = checked_step(env.step(action))
        executed.append(name)
        reward += value
        if ended:
            break
    answer = f" {prompter.action_sep} ".join(executed)
    # Relabelling replaces these placeholders. `turn_options` needs only the resulting state.
    thoughts = prompter.form.scripted_thoughts(answer, "unknown", action_sep=prompter.action_sep)
    text = prompter.form.write("unknown", thoughts, "unknown", answer)
    return Turn(
        state=turn.state,
        actions_left=turn.actions_left,
        response_text=text,
        response=parse_response(
            text,
            mode="add_worldmodel",
            action_sep=prompter.action_sep,
            max_actions=len(plan),
            order=prompter.response_format,
        ),
        executed=tuple(executed),
        reward=reward,
        penalty=0.0,
        next_state=env.state_text(prompter.state_text),
        world_state=turn.target,
        next_world_state=env.world_state_text(prompter.state_text),
    )
