"""Check a model's answers before a library scores them. Some scorers execute text as Python, so
they must get only plain formulas."""

import ast
import inspect
import re
import sys
from functools import lru_cache

# All other names in a formula must be single letters, so that it cannot call any Python builtin.
FUNCTIONS = {
    "sqrt",
    "exp",
    "log",
    "ln",
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "asin",
    "acos",
    "atan",
    "pi",
}
FUNCTIONS |= {"sinh", "cosh", "tanh", "erf", "Abs", "Si", "Ci", "Ei", "li"}
"""Names that are allowed in a formula besides single letters."""


@lru_cache
def evaluates(data: type) -> bool:
    """Return whether the module of a dataset's class executes text as Python (with `eval` or
    SymPy's `parse_expr`)."""
    # The source code of the scorer's module is searched, because a dataset that only compares
    # strings can safely get any answer.
    source = inspect.getsource(sys.modules[data.__module__])
    return re.search(r"\beval\(", source) is not None or (
        "parse_expr" in source and "sympy" in source
    )


def is_harmless(answer: str) -> bool:
    """Return whether an answer is a Python literal or a formula of numbers, single letters and
    known functions."""
    try:
        # A literal executes nothing. Any other text must pass the checks for formulas below.
        ast.literal_eval(answer)
        return True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Names of two or more characters must be in FUNCTIONS. In `2x`, only the letter x is a
        # name.
        words = re.findall(r"[^\W\d]\w*", answer)
        # A formula needs neither `.` before a letter (attribute access) nor `_` (dunder names).
        plain = re.fullmatch(r"[\w\s+\-*/^().,=]*", answer) and not re.search(
            r"\.\s*[^\W\d]|_", answer
        )
        return (
            bool(plain)
            and answer.count("**") <= 12
            and all(len(w) == 1 or w in FUNCTIONS for w in words)
        )
