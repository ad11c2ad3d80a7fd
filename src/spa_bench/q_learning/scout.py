"""Tabular Q-learning (Watkins 1989), without a language model.

A Q-table has no values for unseen boards, so there are two variants. `Scout` first takes `STEPS`
actions in copies of the puzzle that it is going to play. `table_engine` plays with a table that was
learned on other puzzles, and acts at random in unseen states.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from spa.envs.base import TextEnv
from spa.envs.limits import checked_step
from spa.errors import ConfigError
from spa.policies.named import Policy
from spa.policies.scripted import ScriptedEngine, formatted
from spa.prompts.template import ChatTemplate
from spa.seeds import stream, stream_seed
from spa.types import Prompt

STEPS = 2_000
"""Number of actions to try in copies of a puzzle before playing it."""
# The discount is below 1, so that the shorter of two paths to the goal has the higher value.
GAMMA = 0.97
LEAST_EPSILON = 0.05
LEAST_RATE = 0.1
Values = dict[str, dict[str, tuple[float, int]]]
"""Maps state texts and actions to (expected discounted reward, number of times the action was
tried)."""


def require_copies(env: TextEnv, tag: str) -> None:
    """Raise ConfigError if the environment, after `reset`, does not support tabular Q-learning. It
    must list its actions, be copyable, and have one player."""
    if env.players > 1:
        raise ConfigError(
            f"generate.policy=q_learning needs a game of one player, and {tag} has {env.players}; "
            "choose another policy"
        )
    try:
        env.clone()
    except NotImplementedError:
        raise ConfigError(
            f"generate.policy=q_learning needs an environment that can be copied, and {tag} cannot be. Set "
            "es_manager.env_workers=0, define `changes` in the environment (docs/add-an-environment.md), or choose "
            "another policy."
        ) from None
    if not env.legal_actions():
        raise ConfigError(
            f"generate.policy=q_learning needs an environment that lists its actions, and {tag} does not. Define "
            "`legal_actions` in the environment, or choose another policy."
        )


def learn(
    values: Values, starts: Iterator[TextEnv], *, steps: int, most: int, rng: np.random.Generator
) -> None:
    """Update `values` by Q-learning.

    Plays games from the states in `starts`, each with at most `most` actions, until `steps` actions
    are taken or `starts` is exhausted. The share of random actions falls linearly from 1 to
    `LEAST_EPSILON` in the first half. The learning rate is 1 / visits, but at least `LEAST_RATE`.
    """
    done = 0
    for env in starts:
        for _ in range(most):
            # A state keeps the actions that were listed at its first visit.
            known = values.setdefault(
                env.state_text("grid"), dict.fromkeys(env.legal_actions(), (0.0, 0))
            )
            if not known or done >= steps:
                break
            explores = rng.random() < max(LEAST_EPSILON, 1 - 2 * done / steps)
            name = list(known)[int(rng.integers(len(known)))] if explores else best(known, rng)
            action = env.to_action(name)
            assert action is not None
            result = env.step(action)
            reward, over, _ = checked_step(result)
            done += 1
            after = values.get(env.state_text("grid"), {})
            # A terminated game has no future reward. A truncated game may have one, because only
            # the step limit ended it.
            future = 0.0 if result[2] else max((value for value, _ in after.values()), default=0.0)
            value, visits = known[name]
            # The rate 1 / visits gives the running mean of the targets. The lower bound lets the
            # value follow targets that still change.
            rate = max(LEAST_RATE, 1 / (visits + 1))
            # Q(s, a) += rate * (r + gamma * max_a' Q(s', a') - Q(s, a))
            known[name] = (value + rate * (reward + GAMMA * future - value), visits + 1)
            if over:
                break
        if done >= steps:
            return


def best(known: dict[str, tuple[float, int]], rng: np.random.Generator) -> str:
    """The action with the highest value. Ties are broken at random."""
    highest = max(value for value, _ in known.values())
    names = [name for name, (value, _) in known.items() if value == highest]
    return names[int(rng.integers(len(names)))]


def table_engine(values: Values, *, max_actions: int) -> ScriptedEngine:
    """Create an engine that plays greedily with a finished Q-table. In a state that the table
    lacks, it takes a uniformly random action."""
    return ScriptedEngine(lambda prompt: _response_by(values, prompt, max_actions))


class Scout(ScriptedEngine):
    """Engine that explores a puzzle by Q-learning before it plays.

    Exploration starts from the first state in which an episode requests an action. It starts again
    when an episode reaches a state outside its Q-table. A table depends only on the puzzle and on
    the state where its exploration started, so the episodes of a group share it.
    """

    def __init__(
        self, *, max_actions: int, most: int, template: ChatTemplate | None = None
    ) -> None:
        super().__init__(self._response, template)
        self.max_actions = max_actions
        self.most = most
        self._tables: dict[tuple[str, str], Values] = {}
        # The current table of each episode. An episode that leaves the states of its table gets the
        # table for its current state.
        self._table_of: dict[str, Values] = {}

    def _response(self, prompt: Prompt) -> str:
        env = prompt.context
        state = env.state_text("grid")
        table = self._table_of.get(prompt.episode_id)
        if table is None or state not in table:
            table = self._table_of[prompt.episode_id] = self._explored(env, state)
        return _response_by(table, prompt, self.max_actions)

    def _explored(self, env: TextEnv, state: str) -> Values:
        key = (env.puzzle_text(), state)
        if key not in self._tables:
            # The seed depends only on puzzle and state, so the table does not depend on which
            # episode needs it first.
            seed = stream_seed(0, "scout/" + "/".join(key))
            # Every game starts in the given state, but has its own random outcomes.
            starts = (env.clone(stream_seed(seed, "noise", number)) for number in range(STEPS))
            self._tables[key] = {}
            learn(
                self._tables[key], starts, steps=STEPS, most=self.most, rng=stream(seed, "actions")
            )
        return self._tables[key]

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop the tables of finished episodes."""
        for name in episode_ids:
            self._table_of.pop(name, None)


def _response_by(values: Values, prompt: Prompt, most: int) -> str:
    """Return a response with at most `most` actions chosen by a Q-table. The prompt's seed
    determines random choices."""
    rng = np.random.Generator(np.random.PCG64(prompt.seed))
    return formatted(
        prompt, f" {prompt.action_sep} ".join(_plan(values, prompt.context, rng, most))
    )


def _plan(values: Values, env: TextEnv, rng: np.random.Generator, most: int) -> list[str]:
    """Choose up to `most` greedy actions. Each is played in a copy of the environment to obtain the
    next state.

    The plan ends when the game ends or the table lacks a state. If the table lacks the current
    state, the plan is one random action.
    """
    plan: list[str] = []
    twin = env
    while len(plan) < most and (known := values.get(twin.state_text("grid"))):
        # Plan in a copy with another noise seed, because the plan must not use the random outcomes
        # of the episode.
        if not plan:
            twin = env.clone(int(rng.integers(2**31)))
        plan.append(best(known, rng))
        action = twin.to_action(plan[-1])
        assert action is not None
        if checked_step(twin.step(action))[1]:
            break
    return plan or [env.random_action(rng)]


scout = Policy(
    make=lambda template, turn, most: Scout(max_actions=turn, most=most, template=template),
    require=require_copies,
    tried=STEPS,
)
"""The policy of `generate.policy=q_learning` and `spa eval q_learning`."""
