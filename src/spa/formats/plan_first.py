"""`plan_first`: the thoughts end with the plan by name (`I do Down, then Right.`), which the predicted
state follows."""

from collections.abc import Callable, Sequence

from spa.formats.base import ResponseFormat
from spa.formats.plans import Option, end_with_plan, plan_sentence, with_plan
from spa.types import Turn


class PlanFirst(ResponseFormat):
    """A response can be begun with any plan, to ask what it leads to."""

    name = "plan_first"
    begins_with_plan = True

    def asked_thoughts(self, blank: Callable[[str], str], plans: int) -> str:
        """The plan by name."""
        return f" I do {blank('your actions')}. "

    def asked_plan(self, actions: Sequence[str]) -> str:
        """The plan by name."""
        return f" {plan_sentence(actions)} "

    def base_thoughts(self, thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
        """The thoughts with the plan at their end."""
        return end_with_plan(thoughts, actions, said) if actions else thoughts

    def _with_plans(self, text: str, turn: Turn, options: Sequence[Option]) -> str:
        return with_plan(text, turn.executed, turn.response.actions)


FORMAT = PlanFirst()
