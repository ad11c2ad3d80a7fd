"""Answers of a model before a library sees them: some scorers run text as Python, and must only get
plain formulas."""

import ast
import inspect
import re
import sys
from functools import lru_cache

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
"""Names that a formula may hold besides single letters."""


@lru_cache
def evaluates(data: type) -> bool:
    """Whether the module of a data set runs text as Python (`eval`, SymPy's `parse_expr`)."""
    source = inspect.getsource(sys.modules[data.__module__])
    return re.search(r"\beval\(", source) is not None or (
        "parse_expr" in source and "sympy" in source
    )


def is_harmless(answer: str) -> bool:
    """Whether an answer is a Python literal, or a formula of numbers, single letters and known
    functions."""
    try:
        ast.literal_eval(answer)
        return True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        words = re.findall(r"[^\W\d]\w*", answer)
        plain = re.fullmatch(r"[\w\s+\-*/^().,=]*", answer) and not re.search(
            r"\.\s*[^\W\d]|_", answer
        )
        return (
            bool(plain)
            and answer.count("**") <= 12
            and all(len(w) == 1 or w in FUNCTIONS for w in words)
        )
