"""Best of n: sample several responses, and play the one whose predicted state has the highest
value."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spa.planning.node import GOAL, NO_STATE, Expansion, Node, Tree, path_to, same_state, simulate
from spa.planning.planner import Planner
from spa.seeds import stream, stream_seed
from spa.types import Completion, Prompt, SamplingParams


class BestOfNPlanner(Planner):
    """Planner that plays the best of `n` responses in every turn. Ties go to the response that was
    sampled first, so if all values are equal, the policy plays as it would without planning."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return, for each prompt, the best of `n` completions, or the next completion of the path
        that the episode follows. The first of the `n` completions is the one that the engine would
        return without planning."""
        trees = [Tree(prompt) for prompt in prompts]
        planned = [self._next_of_plan(tree) for tree in trees]
        searched = [
            tree for tree, completion in zip(trees, planned, strict=True) if completion is None
        ]
        self.search([tree for tree in searched if not tree.fault], sampling)
        return [
            completion or self._choose(tree)
            for tree, completion in zip(trees, planned, strict=True)
        ]

    def proposals(self, expansion: Expansion) -> list[Prompt]:
        """Return `n` copies of the prompt, each with its own sampling seed."""
        prompt = expansion.prompt
        # Ids with # mark the planner's own prompts. `ask` drops their caches right after the call.
        others = [
            replace(
                prompt,
                episode_id=f"{prompt.episode_id}#{number}",
                seed=stream_seed(prompt.seed, "imagine/draw", number),
                continued=False,
            )
            for number in range(1, self.n)
        ]
        return [prompt, *others]

    def horizon(self, prompt: Prompt) -> int:
        """Return the number of turns that the episode has left, since each level of the search is
        one turn."""
        return prompt.turns_left or 1

    def _next_of_plan(self, tree: Tree) -> Completion | None:
        """Return the next response of the path that the episode follows; None if it follows no
        path."""
        plan = self.follow_plan(tree)
        if not plan:
            return None
        node = plan[0]
        prompt = tree.prompt
        truth = None
        with tree.guarded():
            rng = stream(prompt.seed, "imagine")
            truth = simulate(prompt.context, node.parsed.actions, self.state_text, rng)
        if truth is None:
            return None
        self.plans[prompt.episode_id] = plan[1:]
        tree.nodes = [replace(node, correct=same_state(node.state, truth.state), root=0, depth=1)]
        self.record({**tree.line(0), "tokens": [0], "kept": True})
        return node.response

    def _choose(self, tree: Tree) -> Completion:
        if tree.fault:
            return tree.failed()
        values = [node.value for node in tree.nodes[: self.n]]
        # The value of a response is the value of its predicted state, or `GOAL` if the search below
        # this state found the goal.
        for node in tree.nodes:
            values[node.root] = max(
                values[node.root], node.value if node.value >= GOAL else NO_STATE
            )
        # `argmax` returns the first of equal values, so a tie goes to the response that the engine
        # would give without planning.
        chosen = int(np.argmax(values))
        goals: list[Node] = [node for node in tree.goals() if node.root == chosen]
        if self.keep and goals:
            self.plans[tree.prompt.episode_id] = path_to(goals[0])[1:]
        self.record(tree.line(chosen))
        return tree.nodes[chosen].response


PLANNER = ("sampled", BestOfNPlanner)
