"""`choose_plan`: the thoughts list several plans with their predicted states, and the answer is one
of these plans (`spa.formats.plans`)."""

from collections.abc import Callable, Sequence

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.formats.base import ResponseFormat
from spa.formats.blocks import Span, split_actions
from spa.formats.plans import (
    Option,
    chosen_plan,
    end_with_plan,
    imagined_plans,
    read_options,
    with_options,
    without_options,
)
from spa.types import ParsedResponse, Turn


class ChoosePlan(ResponseFormat):
    """Format whose thoughts list several plans with their predicted states; the prediction repeats
    the state of the chosen plan."""

    name = "choose_plan"

    def check(self, cfg: Config, problems: Problems) -> None:
        """Also add a problem unless `generate.states` is `ground_truth`, so that examples list
        plans with true states."""
        super().check(cfg, problems)
        if cfg.generate.states != "ground_truth":
            problems.add(
                "generate.states",
                "must be ground_truth with agent_proxy.response_format=choose_plan",
            )

    def plans(self, asked: int) -> int:
        """Return `asked`, because a response lists the number of plans that the prompt asks for."""
        return asked

    def asked_thoughts(self, blank: Callable[[str], str], plans: int) -> str:
        """Describe thoughts that list `plans` plans and choose one."""
        option = ((blank("some actions"),), blank("the state after them"))
        return f"{imagined_plans([option] * plans)}I do {blank('the best of these')}. "

    def scripted_thoughts(self, answer: str, prediction: str, *, action_sep: str) -> str:
        """Return thoughts that list one plan and choose it."""
        # `len(answer)` is no real limit, because an answer never has more actions than characters.
        actions = split_actions(answer, action_sep=action_sep, max_actions=len(answer))
        return chosen_plan(actions, prediction)

    def sample_thoughts(self, actions: Sequence[str], after: str) -> str:
        """Return thoughts that list one plan and choose it."""
        return chosen_plan(actions, after)

    def asked_plan(self, actions: Sequence[str]) -> str | None:
        """Return None, because the prediction only repeats the state that the thoughts give for the
        chosen plan."""
        return None

    def correction_obstacle(self) -> str:
        """Return the reason why a turn is not enough to correct its response: it records the
        outcome of only one of the listed plans."""
        return (
            "with agent_proxy.response_format=choose_plan, the outcomes of the plans that the "
            "model did not choose are unknown"
        )

    def base_thoughts(self, thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
        """Return the thoughts before the listed plans, followed by the executed plan in words."""
        thoughts = without_options(thoughts)
        return end_with_plan(thoughts, actions, said) if actions else thoughts

    def _options(
        self, text: str, observation: Span | None, prediction: Span | None
    ) -> tuple[Option, ...]:
        if not observation or not prediction:
            return ()
        start = observation[1] + len("</observation>")
        return read_options(text[start : prediction[0] - len("<prediction>")])

    def _chosen(self, options: Sequence[Option], actions: Sequence[str]) -> bool:
        # A plan that is listed without a predicted state is not in `options`, so it cannot be the
        # answer.
        return any(plan == actions for plan, _ in options)

    def _with_plans(self, text: str, turn: Turn, options: Sequence[Option]) -> str:
        return with_options(text, options, turn.executed)

    def _says_options(self, response: ParsedResponse, options: Sequence[Option]) -> bool:
        return response.options == tuple(
            (tuple(plan), state.strip("\n")) for plan, state in options
        )


FORMAT = ChoosePlan()
