"""Chat templates rendered within limits of time and size: they are other people's code.

Writes what transformers' `apply_chat_template` writes (the same sandbox, functions and filters), but every turn of a
loop and every call looks at the clock, and nothing that a template computes may grow beyond a size, counted with all
that is inside it: what is small in memory because it names the same list again and again is large as text.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from string import Formatter
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

SECONDS = 2.0  # of this thread's processor time; a template of thousands of characters takes a millisecond
LARGEST = 100_000  # the largest number that a function, filter or range may be given
MADE = 2**28  # parts of all that a rendering makes on its way, together
_BITS = 4096  # of whole numbers
_FORMATS = {"format", "format_map", "%"}
_GROWING = {"replace", "indent", "expandtabs", "wordwrap", "urlize", "translate"}
_WIDE = re.compile(r"\d{6,}")  # a width in a format
_STARRED = re.compile(r"%[-+ #\d.]*\*")  # a width that is an argument
_limits = threading.local()


class TemplateLimit(Exception):
    """A template works too long, or makes something too large."""


def render(template: str, values: Mapping[str, Any], *, limit: int) -> str:
    """The template's text with these values; at most `limit` characters, of intermediate texts too.

    Raises TemplateLimit, and whatever templates raise.
    """
    compiled = _compiled(template)
    _begin(limit)
    return compiled.render(values)


def _begin(limit: int) -> None:
    _limits.end, _limits.size, _limits.made = time.thread_time() + SECONDS, limit, 0


class _Counted(NodeTransformer):
    """Puts a look at the clock into every turn of a loop, and joins texts and makes lists by functions that know the
    limit."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        if node.test is not None:
            node.test = nodes.And(_call("tick"), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("joined", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in node.items) else _call("held", [node])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else _call("held", [node])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _call("held", [node])


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

    def __repr__(self) -> str:
        _check_size(_size(self))  # what it holds may have grown since it was named
        return super().__repr__()


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds nothing that begins with an underscore: {name!r}")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters["tojson"] = self._tojson
        del self.filters["random"]  # a prompt is the same when a run goes on
        self.filters = {name: self._limited(name, function) for name, function in self.filters.items()}
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
            self.tick()
            size += len(piece)
            if size > _limits.size:
                raise TemplateLimit(f"it writes more than {_limits.size:,} characters")
            kept.append(piece)
        return "".join(kept)

    def joined(self, *parts: Any) -> str:
        """What `~` makes of its operands."""
        return self.concat(map(str, parts))

    def held(self, value: Any) -> Any:
        """A list, tuple or dict that the template writes; `call` measures it."""
        return value

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.tick()
        function = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        _check_growth(name, [owner, *args, *kwargs.values()])
        if name == "join" and isinstance(owner, str) and args:
            args = (__self._joinable(args[0], [owner]), *args[1:])
        return _sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        text, number = (left, right) if isinstance(right, int) else (right, left)
        if operator == "*" and hasattr(text, "__len__") and isinstance(number, int):
            _check_size(len(text) * number)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_growth("%", [left, right])
        return _sized(super().call_binop(context, operator, left, right))

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # which keeps what says that a filter is given the environment
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            _check_growth("%" if name == "format" else name, [*args, *kwargs.values()])
            if name == "join":  # whose first argument is Jinja's own
                args = (args[0], self._joinable(args[1], [*args[2:], *kwargs.values()]), *args[2:])
            return _sized(function(*args, **kwargs))

        return limited

    def _joinable(self, items: Iterable[Any], separators: list[Any]) -> Iterator[Any]:
        """The items, as long as the text that they are joined to may grow."""
        total, between = 0, sum(map(_size, separators))
        for item in items:
            self.tick()
            total += _size(item) + between
            _check_size(total)
            yield item

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self.concat(encoder.iterencode(value))


def _check_growth(name: str, values: list[Any]) -> None:
    """Refuse arguments that make much of little."""
    numbers = [abs(value) for value in values if isinstance(value, int)]
    if max(numbers, default=0) > LARGEST:
        raise TemplateLimit(f"it asks for {max(numbers):,} of something, more than {LARGEST:,}")
    place = next((place for place, value in enumerate(values) if isinstance(value, str)), None)
    if place is None or name not in _GROWING | _FORMATS:
        return
    first = place + 2 if name == "replace" else place + 1  # what is replaced may be as long as it likes
    text, others = values[place], [_size(value) for value in values[first:]]
    if name in _GROWING:
        return _check_size(len(text) * max([1, *numbers, *others]) // 64)
    if _WIDE.search(text) or (_STARRED.search(text) if name == "%" else _is_nested(text)):
        raise TemplateLimit("it asks for a text of a great width")
    widths, fields = sum(map(int, re.findall(r"\d+", text))), text.count("%" if name == "%" else "{")
    _check_size(len(text) + widths + fields * sum(others))


def _is_nested(text: str) -> bool:
    """Whether a field of a format takes its width from another one."""
    return any("{" in (spec or "") for _, _, spec, _ in Formatter().parse(text))


def _sized(value: Any) -> Any:
    if isinstance(value, bytes):
        raise TemplateLimit("it makes bytes of text, which no prompt needs")
    if isinstance(value, int):
        _check_bits(value.bit_length())
    elif isinstance(value, str | list | tuple | dict | set):
        _check_size(_size(value))
        _limits.made += len(value)
        if _limits.made > MADE:
            raise TemplateLimit(f"it makes more than {MADE:,} parts of texts and lists")
    return value


def _size(value: Any) -> int:
    """Characters and items of a value, with those of all that is inside it, each time that it is; beyond the limit it
    is not counted on."""
    total, left = 0, [value]
    while left and total <= max(_limits.size, LARGEST):
        part = left.pop()
        if isinstance(part, Namespace):
            part = part._Namespace__attrs  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(part, dict):
            left += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | KeysView | ValuesView | ItemsView):
            left += part
        elif not isinstance(part, str):
            total += part.bit_length() // 3 + 1 if isinstance(part, int) else 1
            continue
        total += len(part)
    return total


def _check_size(size: int) -> None:
    if size > max(_limits.size, LARGEST):
        raise TemplateLimit(f"it makes something of {size:,} parts, more than {_limits.size:,}")


def _check_bits(bits: int) -> None:
    if bits > _BITS:
        raise TemplateLimit(f"it computes with a number of {bits:,} binary digits")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> jinja2.Template:
    _begin(len(template))  # constants are computed here
    return _Environment().from_string(template)
