"""Response formats (`agent_proxy.response_format`): what a response contains, and where.

Prompt, parser, relabelling, examples and checks of the configuration read these records, so a new
format is a record here and a name in `spa.types.ResponseFormat`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spa.types import ResponseFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec:
    """The parts of a world-model response after its observation; `writes_search` is about base
    responses."""

    # Where the predicted state stands: last in the think block, or after the answer.
    prediction: Literal["in_think", "after_answer", "none"] = "in_think"
    # The thoughts end with the plan by name: `I do Down, then Right.`
    names_plan: bool = False
    # The thoughts list several plans, each with its predicted state; the answer is one of them.
    lists_plans: bool = False
    # The thoughts are a breadth-first search (`spa.planning.written_search`).
    writes_search: bool = False

    @property
    def predicts(self) -> bool:
        """Whether a response contains a predicted state."""
        return self.prediction != "none"


FORMATS: Mapping[ResponseFormat, FormatSpec] = {
    "prediction_first": FormatSpec(),
    "plan_first": FormatSpec(names_plan=True),
    "answer_first": FormatSpec(prediction="after_answer"),
    "no_prediction": FormatSpec(prediction="none"),
    "choose_plan": FormatSpec(lists_plans=True),
    "search": FormatSpec(writes_search=True),
}
