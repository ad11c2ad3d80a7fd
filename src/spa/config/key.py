"""What the schema says about a key beside its type: a line of help, what it affects, and the range of its value."""

from dataclasses import dataclass
from typing import Literal

Affects = Literal["result", "rounding", "place", "display"]
"""`result`: the numbers or the precision of a stage. `rounding`: memory and speed, and so at most the last digits.
`place`: where things are, which copies are kept, who starts what. `display`: what is measured, logged and shown."""

Content = Literal["value", "model", "file", "data", "checkpoint"]
"""What of a key's value counts: the value itself, or the content of the model, file, data set or checkpoint that it
names."""

MOST_INT, MOST_FLOAT = 2**53, 1e9
"""Numbers beyond these are slips of the keyboard: tensors, timers and JSON would fail on them, each in its own way."""


@dataclass(frozen=True, slots=True)
class Key:
    """Annotation of a schema field. Bounds are inclusive (`ge`, `le`) or exclusive (`gt`); they skip null."""

    help: str
    affects: Affects
    content: Content = "value"
    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def range(self) -> str:
        """The range as ` >= 1`, for the reference page; "" without bounds."""
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le))
        return "".join(f" {sign} {bound:g}" for sign, bound in bounds if bound is not None)

    def problem(self, value: object) -> str:
        """What is wrong with a number outside the range; "" for everything else."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if self.ge is not None and not value >= self.ge:
            return f"must be at least {self.ge:g}, got {_short(value)}"
        if self.gt is not None and not value > self.gt:
            return f"must be greater than {self.gt:g}, got {_short(value)}"
        if self.le is not None and not value <= self.le:
            return f"must be at most {self.le:g}, got {_short(value)}"
        most = MOST_INT if isinstance(value, int) else MOST_FLOAT
        return "" if abs(value) <= most else f"must be at most {most:g}, got {_short(value)}"


def _short(value: float) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"a number of {len(text)} digits"
