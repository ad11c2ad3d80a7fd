"""Chat templates rendered within limits of time and size: they are other people's code.

Writes what transformers' `apply_chat_template` writes (the same sandbox, functions and filters), but every turn of a
loop and every call looks at the clock, and nothing that a template computes may grow beyond a size.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

SECONDS = 2.0  # of this thread's processor time; a template of thousands of characters takes a millisecond
LARGEST = 100_000  # the largest number that a function, filter or range may be given
_BITS = 4096  # of whole numbers
_FORMATS, _GROWING = {"format", "format_map"}, {"replace", "indent", "expandtabs"}
_WIDE = re.compile(r"\d{6,}|\*")  # a width in a format, or one that is an argument
_limits = threading.local()


class TemplateLimit(Exception):
    """A template works too long, or makes something too large."""


def render(template: str, values: Mapping[str, Any], *, limit: int) -> str:
    """The template's text with these values; at most `limit` characters, of intermediate texts too.

    Raises TemplateLimit, and whatever templates raise.
    """
    compiled = _compiled(template)
    _limits.end, _limits.size = time.thread_time() + SECONDS, limit
    return compiled.render(values)


class _Counted(NodeTransformer):
    """Puts a look at the clock into every turn of a loop, and joins texts by a function that knows the limit."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        if node.test is not None:
            node.test = nodes.And(_call("tick"), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("joined", node.nodes)


def _call(name: str, arguments: list[nodes.Expr] | None = None) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments or [], [], None, None)


class _Generation(Extension):
    """{% generation %}: marks what the model says, for those who ask; its text stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - as in its base class

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """Variables that outlive a loop; none of them may take the place of Python's own."""

    def __init__(*args: Any, **values: Any) -> None:
        Namespace.__init__(*args, **values)
        for name in dict(*args[1:], **values):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds nothing that begins with an underscore: {name!r}")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _tojson
        del self.filters["random"]  # a prompt is the same when a run goes on
        self.filters = {name: self._limited(function) for name, function in self.filters.items()}
        self.globals = {
            "range": range,
            "dict": lambda *args, **values: dict(*args, **values),
            "namespace": _Namespace,
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "raise_exception": _raise,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        tree = _Counted().visit(source)
        tree.set_environment(self)
        tree.set_lineno(1)
        return super()._generate(tree, *args, **kwargs)

    def tick(self) -> bool:
        """Look at the clock; always True."""
        if time.thread_time() > _limits.end:
            raise TemplateLimit(f"it works for more than {SECONDS:g} seconds")
        return True

    def concat(self, pieces: Iterable[str]) -> str:
        """The pieces as one text."""
        kept, size = [], 0
        for piece in pieces:
            size += len(piece)
            if size > _limits.size:
                raise TemplateLimit(f"it writes more than {_limits.size:,} characters")
            kept.append(piece)
        return "".join(kept)

    def joined(self, *parts: Any) -> str:
        """What `~` makes of its operands."""
        return self.concat(map(str, parts))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.tick()
        function = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(function, "__self__", None)
        _check_growth(getattr(function, "__name__", ""), [owner, *args, *kwargs.values()])
        return _sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        text, number = (left, right) if isinstance(right, int) else (right, left)
        if operator == "*" and hasattr(text, "__len__") and isinstance(number, int):
            _check_size(len(text) * number)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_growth("format", [left, right])
        return _sized(super().call_binop(context, operator, left, right))

    def _limited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.removeprefix("do_")

        @functools.wraps(function)  # which keeps what says that a filter is given the environment
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            _check_growth(name, [*args, *kwargs.values()])
            return _sized(function(*args, **kwargs))

        return limited


def _check_growth(name: str, values: list[Any]) -> None:
    """Refuse arguments that make much of little."""
    numbers = [abs(value) for value in values if isinstance(value, int)]
    texts = [value for value in values if isinstance(value, str)]
    if max(numbers, default=0) > LARGEST:
        raise TemplateLimit(f"it asks for {max(numbers):,} of something, more than {LARGEST:,}")
    if name in _FORMATS and any(_WIDE.search(text) for text in texts[:1]):
        raise TemplateLimit("it asks for a text of a great width")
    if name in _GROWING and texts:
        _check_size(len(texts[0]) * max([1, *numbers, *map(len, texts[2:])]) // 64)
    if name == "join":
        lists = [value for value in values if isinstance(value, list | tuple)]
        widest = max((len(text) for text in texts), default=0)
        _check_size(sum(len(str(item)) + widest for part in lists for item in part))


def _sized(value: Any) -> Any:
    if isinstance(value, int):
        _check_bits(value.bit_length())
    elif isinstance(value, str | bytes | list | tuple | dict | set):
        _check_size(len(value))
    return value


def _check_size(size: int) -> None:
    if size > max(_limits.size, LARGEST):
        raise TemplateLimit(f"it makes something of {size:,} parts, more than {_limits.size:,}")


def _check_bits(bits: int) -> None:
    if bits > _BITS:
        raise TemplateLimit(f"it computes with a number of {bits:,} binary digits")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> jinja2.Template:
    _limits.end, _limits.size = time.thread_time() + SECONDS, len(template)  # constants are computed here
    return _Environment().from_string(template)
