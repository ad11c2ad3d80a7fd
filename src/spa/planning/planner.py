"""Model-based planning: policies that search the states to which possible responses would lead, and
then play one response.

`dynamics` selects the source of these states:

* `model`: the model's own prediction in each response.
* `simulator`: a copy of the game. With probability `noise_prob`, a state is replaced by the outcome
  of a random plan. This shows how the gain depends on prediction accuracy.
* `shuffled`: predictions exchanged between responses. The gain of this control cannot come from
  knowledge of the game.

With `depth` above 1, the search continues in every new state that does not end the game. It sends
the same prompt, but with that state instead of the real one (`elsewhere`). It ends at the goal or
at the episode's last turn. Each distinct state is expanded at most once. With `keep`, later turns
follow the rest of a path to the goal without another search, as long as each state is the
predicted one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import nn

from spa.envs.base import StateText, TextEnv
from spa.formats.registry import parse_response
from spa.models.allocator import release_memory
from spa.planning.node import GOAL, NO_STATE, Expansion, Node, Outcome, Tree, same_state, simulate
from spa.prompts.render import STATE
from spa.prompts.template import ChatTemplate
from spa.seeds import derange, stream, stream_seed
from spa.types import Completion, Engine, Message, ParsedResponse, Prompt, SamplingParams


def elsewhere(
    prompt: Prompt, shown: str, state: str, template: ChatTemplate | None
) -> Prompt | None:
    """Return `prompt` with `state` in place of `shown` in its last message; None if that message
    does not show `shown` as its state. The text keeps its turn number, reward and number of actions
    left.

    Everything before that message keeps its tokens. `template` is None for an engine without
    tokens.
    """
    last: Message = prompt.messages[-1]
    # Take the last occurrence, since the rules in the same message may quote a state.
    before, marker, after = last["content"].rpartition(f"{STATE}{shown}\n")
    if not shown or not marker:
        return None
    text = f"{before}{STATE}{state}\n{after}"
    messages = (*prompt.messages[:-1], Message(role=last["role"], content=text))
    ids = prompt.token_ids
    if template is not None and any(message["role"] == "assistant" for message in messages):
        end = template.end_ids
        # `response=end` makes `follow` leave out the end marker, so the marker stays with the kept
        # tokens.
        kept = len(ids) - len(template.follow(last["content"], prompt.prefill, response=end))
        ids = np.concatenate(
            [ids[:kept], np.asarray(template.follow(text, prompt.prefill, response=end), np.int32)]
        )
    elif template is not None:
        ids = np.asarray(template.start(messages, prompt.prefill), np.int32)
    return replace(prompt, messages=messages, token_ids=ids)


DynamicsName = Literal["model", "simulator", "shuffled"]


class Planner(ABC):
    """Wraps `engine` and chooses its response in every turn by a search of at most `depth` turns.

    Nothing is predicted beyond the turns and actions that an episode has left.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        n: int,  # responses sampled in each state
        dynamics: DynamicsName,
        noise_prob: float,  # probability of a corrupted state, with simulator dynamics
        state_text: StateText,
        max_actions: int,  # per response
        depth: int = 1,
        width: int = 8,  # states expanded per depth
        # Follow a path to the goal in later turns, with the responses (and log-probs) that were
        # sampled when the path was predicted.
        keep: bool = False,
        max_prompt: int | None = None,  # states with longer prompts, in tokens, are not expanded
        rows: int = 1024,  # prompts per call of the engine; caches are dropped between calls
        template: ChatTemplate | None = None,  # None for engines without tokens
        record: Callable[[dict[str, Any]], None] = lambda line: None,  # gets `Tree.line` per turn
    ) -> None:
        self.engine = engine
        self.n = n
        self.dynamics: DynamicsName = dynamics
        self.noise_prob = noise_prob
        self.state_text: StateText = state_text
        self.max_actions = max_actions
        self.depth = depth
        self.width = width
        self.keep = keep
        self.max_prompt = max_prompt
        self.rows = rows
        self.template = template
        self.record = record
        # episode id -> the remaining nodes of its path to the goal
        self.plans: dict[str, list[Node]] = {}

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return the response that the search chooses for each prompt."""

    @abstractmethod
    def proposals(self, expansion: Expansion) -> list[Prompt]:
        """Return the prompts that are sent to the engine to expand a state."""

    @abstractmethod
    def horizon(self, prompt: Prompt) -> int:
        """Return the largest useful depth of the search, given the turns left in the episode."""

    def search(self, trees: Sequence[Tree], sampling: SamplingParams) -> None:
        """Expand every tree level by level, until it contains a goal or reaches a limit: depth,
        width, prompt length, or the end of the episode."""
        for depth in range(1, self.depth + 1):
            pairs = [
                (tree, expansion) for tree in trees for expansion in self._expansions(tree, depth)
            ]
            asked = [self.proposals(expansion) for _, expansion in pairs]
            responses = iter(
                self.ask([question for questions in asked for question in questions], sampling)
            )
            for (tree, expansion), questions in zip(pairs, asked, strict=True):
                whole = [
                    with_prefill(question, expansion.prompt, next(responses))
                    for question in questions
                ]
                tree.nodes += self.expand(tree, expansion, whole)

    def expand(
        self, tree: Tree, expansion: Expansion, responses: Sequence[Completion]
    ) -> list[Node]:
        """Return a node for each response, with the state that it would lead to and the value of
        that state. If the game fails, the tree records the fault, and the list is empty."""
        with tree.guarded():
            return self._nodes(expansion, responses)
        return []

    def follow_plan(self, tree: Tree) -> list[Node]:
        """Return the rest of the episode's current plan. Returns an empty list if there is no plan,
        if the game has left the predicted path, or if the game fails. In the last case, the tree
        records the fault."""
        # The plan is removed here; the caller stores what remains after this turn.
        plan = self.plans.pop(tree.prompt.episode_id, [])
        with tree.guarded():
            here = tree.prompt.context.state_text(self.state_text)
            if plan and plan[0].parent is not None and same_state(plan[0].parent.state, here):
                return plan
        return []

    def ask(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return the engine's responses, sampled for `rows` prompts at a time. Drops the caches of
        the planner's own prompts."""
        responses: list[Completion] = []
        for start in range(0, len(prompts), self.rows):
            part = prompts[start : start + self.rows]
            responses += self.engine.generate(part, sampling)
            # Ids with # mark the planner's own prompts. Each is sent only once, so its cache is
            # dropped.
            self.engine.forget([prompt.episode_id for prompt in part if "#" in prompt.episode_id])
            release_memory()
        return responses

    def _expansions(self, tree: Tree, depth: int) -> list[Expansion]:
        """Return the states in which responses of this depth are sampled: the real state at depth
        1, otherwise the states of the nodes to expand."""
        prompt = tree.prompt
        if depth == 1:
            return [Expansion(prompt=prompt, env=prompt.context)]
        if tree.fault or depth > self.horizon(prompt) or tree.goals():
            return []
        shown = ""
        with tree.guarded():
            shown = prompt.context.state_text(self.state_text)
        if tree.fault:
            return []
        expansions = list[Expansion]()
        # The real state counts as expanded, so that no path leads back to it.
        tree.entered.add(shown.strip())
        for node in tree.nodes:
            # Nodes are expanded in the order in which they were found, at most `width` of them.
            if (
                node.depth != depth - 1
                or len(expansions) == self.width
                or not self._is_open(tree, node)
            ):
                continue
            state = (node.state or "").strip()
            tree.entered.add(state)
            moved = elsewhere(prompt, shown, state, self.template)
            if moved is not None and (
                self.max_prompt is None or len(moved.token_ids) <= self.max_prompt
            ):
                moved = replace(
                    moved,
                    episode_id=f"{prompt.episode_id}#{depth}.{len(expansions)}",
                    seed=stream_seed(prompt.seed, "imagine/place", depth, len(expansions)),
                    continued=False,
                    actions_left=node.actions_left,
                    context=node.env or prompt.context,
                )
                expansions.append(
                    Expansion(prompt=moved, env=node.env, root=node.root, depth=depth, parent=node)
                )
        return expansions

    def _is_open(self, tree: Tree, node: Node) -> bool:
        """Return whether a node can be expanded. Its state must be new, with a value of at least 0
        and below `GOAL`, and actions must be left. With simulator dynamics, the node also needs a
        copy of the game."""
        state = (node.state or "").strip()
        known = node.env is not None or self.dynamics != "simulator"
        new = bool(state) and state not in tree.entered
        return known and new and 0 <= node.value < GOAL and node.actions_left != 0

    def _nodes(self, expansion: Expansion, responses: Sequence[Completion]) -> list[Node]:
        prompt = expansion.prompt
        env = expansion.env
        parsed = [self._parse(prompt, response) for response in responses]
        rng = stream(prompt.seed, "imagine")
        # The true outcome is simulated with any `dynamics`, because the records include whether
        # predictions are correct.
        truths = [simulate(env, each.actions, self.state_text, rng) for each in parsed]
        outcomes = truths
        states = [each.prediction for each in parsed]
        if self.dynamics == "simulator":
            outcomes = [
                self._with_noise(env, each, truth, rng)
                for each, truth in zip(parsed, truths, strict=True)
            ]
            states = [outcome.state for outcome in outcomes]
        # Where possible, `derange` gives each response a prediction that differs from its own.
        if self.dynamics == "shuffled":
            states = [states[number] for number in derange(states, rng)]
        nodes = list[Node]()
        for number, (each, state, outcome, truth) in enumerate(
            zip(parsed, states, outcomes, truths, strict=True)
        ):
            correct = same_state(state, truth.state)
            nodes.append(
                Node(
                    response=responses[number],
                    parsed=each,
                    state=state,
                    value=_value(prompt.context, each, state),
                    correct=correct,
                    # After a wrong prediction, the copy of the game is not in the predicted state.
                    env=outcome.env if self.dynamics == "simulator" or correct else None,
                    root=number if expansion.depth == 1 else expansion.root,
                    depth=expansion.depth,
                    actions_left=None
                    if prompt.actions_left is None
                    else prompt.actions_left - len(each.actions),
                    parent=expansion.parent,
                )
            )
        return nodes

    def _parse(self, prompt: Prompt, response: Completion) -> ParsedResponse:
        """Parse a response, keeping only the actions that would be executed."""
        parsed = parse_response(
            prompt.prefill + response.text,
            mode=prompt.mode,
            enable_think=prompt.prefill == "<think>",
            action_sep=prompt.action_sep,
            max_actions=self.max_actions,
            order=prompt.response_format,
        )
        # Unknown actions use none of the actions that are left, as in `take_turn`.
        known = [name for name in parsed.actions if prompt.context.to_action(name) is not None]
        # `actions_left` is None without a limit: then the slice keeps the whole plan.
        return replace(parsed, actions=tuple(known[: prompt.actions_left]))

    def _with_noise(
        self, env: TextEnv | None, parsed: ParsedResponse, truth: Outcome, rng: np.random.Generator
    ) -> Outcome:
        """Return the true outcome or, with probability `noise_prob`, the outcome of the same number
        of random actions."""
        if env is None:
            return truth
        # The random plan and the random number are sampled even if `noise_prob` is 0. A higher
        # value therefore corrupts the same states as a lower one, and additional ones.
        other = simulate(env, env.random_plan(rng, len(parsed.actions)), self.state_text, rng)
        return other if rng.random() < self.noise_prob else truth

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Load new weights into the engine."""
        self.engine.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop plans and caches of finished episodes."""
        for episode in episode_ids:
            self.plans.pop(episode, None)
        self.engine.forget(episode_ids)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def with_prefill(question: Prompt, prompt: Prompt, response: Completion) -> Completion:
    """Return the response to `question` as a response to `prompt`. It begins with the text that
    `question` adds to `prompt`, whose tokens count as forced and have log-prob 0."""
    if response.finish_reason == "error":
        return response
    whole = replace(response, text=question.prefill.removeprefix(prompt.prefill) + response.text)
    # The question's additional tokens come first, followed by the sampled ones.
    begun = question.token_ids[len(prompt.token_ids) :]
    if response.token_ids is None or not len(begun):
        return whole
    scores = response.logprobs
    zeros = np.zeros(len(begun), dtype=np.float32)
    return replace(
        whole,
        token_ids=np.concatenate([begun, response.token_ids]),
        logprobs=None if scores is None else np.concatenate([zeros, scores]),
        forced=len(begun),
    )


def _value(env: TextEnv, parsed: ParsedResponse, state: str | None) -> float:
    if not parsed.well_formed or state is None:
        return NO_STATE
    value = env.state_value(state)
    return NO_STATE if value is None else value
