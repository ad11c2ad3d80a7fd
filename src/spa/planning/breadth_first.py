"""Breadth-first search with the learned model: the model predicts the result of each action.

Best of n scores the responses that the model happens to sample. This planner tries each action of
the game once, in the real state and in up to `width` new predicted states of each depth. It writes
the beginning of the response, up to the prediction (the state as observation, then `I do Down.
<prediction>`), and the model completes it. The search ends at a predicted state that shows the
goal. The played response begins with the first actions of the path to this state, as many as one
turn allows. With `keep`, later turns follow the rest of the path while its predictions are right;
otherwise each turn searches again. The model responds without a plan if no path is found, or if the
planner's beginning leaves too little room for the rest.

The planner's part of a response is not sampled and has log-prob 0. The search decodes predictions
greedily.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spa.formats.registry import format_of
from spa.planning.node import Expansion, Node, Tree, path_to
from spa.planning.planner import Planner, with_prefill
from spa.types import Completion, Prompt, SamplingParams

_PREDICTION = "<prediction>\n"


class BreadthFirstPlanner(Planner):
    """Planner that queries `engine` for the result of every action. `depth` counts actions. `n` has
    no effect. `template` is required, because the planner writes the beginning of a response as
    tokens."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return the response to each prompt. It begins with the actions of the path that the
        search found; without a path, the engine responds freely."""
        trees = [Tree(prompt) for prompt in prompts]
        plans = [self.follow_plan(tree) for tree in trees]
        searched = [
            tree for tree, plan in zip(trees, plans, strict=True) if not plan and not tree.fault
        ]
        self.search(searched, replace(sampling, temperature=0.0))
        plans = [plan or _shortest_path(tree) for tree, plan in zip(trees, plans, strict=True)]
        questions = [self._question(tree, plan) for tree, plan in zip(trees, plans, strict=True)]
        # Responses are taken from an iterator, because there may be fewer responses than trees: a
        # failed game has no prompt.
        responses = iter(
            self.ask([question for question in questions if question is not None], sampling)
        )
        return [
            tree.failed() if question is None else self._play(tree, plan, question, next(responses))
            for tree, plan, question in zip(trees, plans, questions, strict=True)
        ]

    def proposals(self, expansion: Expansion) -> list[Prompt]:
        """Return a prompt for every action of the game, ending where the model has to predict the
        action's result. Returns an empty list if one of the prompts is too long."""
        prompt = expansion.prompt
        state = self._state(expansion)
        asked = [
            replace(
                self._begun(prompt, state, (action,)),
                episode_id=f"{prompt.episode_id}#{action}",
                continued=False,
            )
            for action in prompt.context.action_names()
        ]
        # If one prompt is too long, none is sent: without one of the actions, the search would miss
        # paths.
        return asked if all(map(self._fits, asked)) else []

    def horizon(self, prompt: Prompt) -> int:
        """Return the number of actions that the remaining turns allow, since each level of the
        search is one action."""
        return (prompt.turns_left or 1) * self.max_actions

    def _state(self, expansion: Expansion) -> str:
        if expansion.parent is not None:
            return (expansion.parent.state or "").strip()
        return expansion.prompt.context.state_text(self.state_text)

    def _begun(self, prompt: Prompt, state: str, actions: Sequence[str]) -> Prompt:
        """Return the prompt followed by the beginning of a response that takes these actions. It
        ends where the model has to predict the resulting state."""
        form = format_of(prompt.response_format)
        text = form.write(state, form.asked_plan(actions) or "", "", "")
        begun = text[: text.index(_PREDICTION) + len(_PREDICTION)]
        assert self.template is not None
        # The prompt's tokens stay unchanged, so their cache stays valid.
        ids = np.asarray(self.template.response_tokens(begun, prompt.prefill)[0], dtype=np.int32)
        return replace(prompt, prefill=begun, token_ids=np.concatenate([prompt.token_ids, ids]))

    def _question(self, tree: Tree, plan: Sequence[Node]) -> Prompt | None:
        """Build the prompt for the response that is played; None if the game has failed."""
        if tree.fault:
            return None
        if not plan:
            return tree.prompt
        state = self._state(Expansion(prompt=tree.prompt, env=None))
        actions = [action for node in self._turn(plan) for action in node.parsed.actions]
        begun = self._begun(tree.prompt, state, actions)
        return begun if self._fits(begun) else tree.prompt

    def _fits(self, question: Prompt) -> bool:
        """Return whether the prompt, including the beginning of the response, has at most
        `max_prompt` tokens."""
        return self.max_prompt is None or len(question.token_ids) <= self.max_prompt

    def _turn(self, plan: Sequence[Node]) -> list[Node]:
        """Return the first nodes of a plan whose actions fit into one turn."""
        part = [plan[0]]
        for node in plan[1:]:
            if sum(len(taken.parsed.actions) for taken in [*part, node]) > self.max_actions:
                break
            part.append(node)
        return part

    def _play(
        self, tree: Tree, plan: list[Node], question: Prompt, response: Completion
    ) -> Completion:
        """Record the search, and return the whole response, including the beginning that the
        planner wrote."""
        prompt = tree.prompt
        # `_question` has returned the plain prompt if the beginning of the response was too long.
        # The plan is then dropped.
        plan = [] if question is prompt else plan
        whole = with_prefill(question, prompt, response)
        played = self.expand(tree, Expansion(prompt=prompt, env=prompt.context), [whole])
        if tree.fault:
            return tree.failed()
        if self.keep and (rest := plan[len(self._turn(plan)) :] if plan else []):
            self.plans[prompt.episode_id] = rest
        # Without searched nodes, the plan is the rest of an earlier search.
        kept = bool(plan) and not tree.nodes
        # In the record, the played response is root 0, so the roots of the search are shifted by
        # one.
        tree.nodes = [*played, *(replace(node, root=node.root + 1) for node in tree.nodes)]
        self.record({**tree.line(0), "named": bool(plan), **({"kept": True} if kept else {})})
        return whole


def _shortest_path(tree: Tree) -> list[Node]:
    """Return the shortest path to a predicted goal; empty if none was found."""
    goals = tree.goals()
    return path_to(goals[0]) if goals else []


PLANNER = ("exhaustive", BreadthFirstPlanner)
