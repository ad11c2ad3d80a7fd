"""`plan_first`: the thoughts end with the plan in words (`I do Down, then Right.`), and the
predicted state follows it."""

from collections.abc import Callable, Sequence

from spa.formats.base import ResponseFormat
from spa.formats.plans import Option, end_with_plan, plan_sentence, with_plan
from spa.types import Turn


class PlanFirst(ResponseFormat):
    """Format whose responses state the plan before the prediction, so that planners can start a
    response with any plan and let the model predict its outcome."""

    name = "plan_first"
    begins_with_plan = True

    def asked_thoughts(self, blank: Callable[[str], str], plans: int) -> str:
        """Describe thoughts that state the plan."""
        return f" I do {blank('your actions')}. "

    def asked_plan(self, actions: Sequence[str]) -> str:
        """Return the plan in words."""
        return f" {plan_sentence(actions)} "

    def base_thoughts(self, thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
        """Return the thoughts, ending with the plan."""
        return end_with_plan(thoughts, actions, said) if actions else thoughts

    def _with_plans(self, text: str, turn: Turn, options: Sequence[Option]) -> str:
        return with_plan(text, turn.executed, turn.response.actions)


FORMAT = PlanFirst()
