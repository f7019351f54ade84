"""The one place where Jinja is run: Hugging Face's dialect, in a sandbox, with limits on its work.

Jinja's sandbox keeps a template from the machine, not from filling its memory or running for ever:
``'a'.center(10**9)`` is allowed there. So a `Meter` counts work in ticks: one per turn of a loop,
call and filter, and more for long texts and lists. Nothing may grow beyond the meter's size, and
what multiplies is asked for its size before it is done. A clock catches what no count does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from types import GeneratorType

from jinja2 import TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from blazr.core.errors import CheckpointError, RequestError, TemplateLimitError

MAX_TICKS = 200_000
MAX_SECONDS = 5.0
CHARACTERS_PER_TICK = 2000
ITEMS_PER_TICK = 20
MIN_SIZE = 1_000_000
_LARGEST_INTEGER_BITS = 4096
_WIDE = re.compile(r"[0-9]{4,}|[*{]")
_PERCENT = re.compile(r"%[^a-zA-Z%]*")

# Filters of no use in a chat that can make much of little, or differ from run to run.
_BANNED_FILTERS = (
    "batch",
    "center",
    "filesizeformat",
    "format",
    "pprint",
    "random",
    "slice",
    "urlize",
    "wordwrap",
    "xmlattr",
)
# Filters that look at a container's outside, that go through it item by item as they are asked,
# and that go through it at once. The others write it out as text.
_OUTSIDE_FILTERS = {"attr", "count", "d", "default", "first", "items", "last", "length"}
_LAZY_FILTERS = {"map", "reject", "rejectattr", "select", "selectattr", "unique"}
_WHOLE_FILTERS = {"dictsort", "groupby", "list", "max", "min", "reverse", "sort", "sum"}
_WIDE_TIME = re.compile(r"%[^a-zA-Z%]*[0-9]{3,}")


class TooMuchError(Exception):
    """A template does more than a chat can need."""


class Meter:
    """What one rendering has left.

    Args:
        size: The most characters or items of anything it makes.
    """

    def __init__(self, size: int = MIN_SIZE) -> None:
        self.size = size
        self.ticks = MAX_TICKS
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, ticks: int) -> None:
        """Count work.

        Raises:
            TooMuchError: There is none left.
        """
        self.ticks -= ticks
        if self.ticks < 0 or time.monotonic() > self._deadline:
            raise TooMuchError("it loops too long")

    def check(self, size: int) -> None:
        """Refuse what is larger than anything may be.

        Raises:
            TooMuchError: It is.
        """
        if size > self.size:
            raise TooMuchError("it makes a text too long")

    def charge(self, value: object) -> None:
        """Check and count a value that was made or is about to be read."""
        if isinstance(value, str):
            self.check(len(value))
            self.spend(1 + len(value) // CHARACTERS_PER_TICK)
        elif isinstance(value, list | tuple | dict):
            self.check(len(value))
            self.spend(1 + len(value) // ITEMS_PER_TICK)
        else:
            self.spend(1)

    def check_deep(self, value: object) -> None:
        """Check and count a value with everything in it, before it is written out."""
        total = 0
        num_items = 0
        stack = [value]
        while stack:
            item = stack.pop()
            num_items += 1
            total += len(item) if isinstance(item, str) else 1
            self.check(total)
            if isinstance(item, Mapping):
                stack += item.keys()
                stack += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                stack += item
        self.spend(num_items // ITEMS_PER_TICK)


_METER: ContextVar[Meter] = ContextVar("meter")


def use_meter(meter: Meter) -> None:
    """Make a meter the one of this thread's rendering."""
    _METER.set(meter)


def meter() -> Meter:
    """The meter of the rendering in progress. A template is compiled without one: a small one."""
    return _METER.get(Meter())


def join(parts: Iterable[str]) -> str:
    """Join parts of text that were made one by one."""
    here = meter()
    kept: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        here.check(total)
        kept.append(part)
    here.spend(1 + total // CHARACTERS_PER_TICK)
    return "".join(kept)


def loop_over(items: object) -> object:
    """Count the turns of a loop: at once where there is a length, else one by one."""
    if isinstance(items, Sized):
        meter().spend(len(items))
        return items
    if not isinstance(items, Iterable):
        return items

    def counted() -> Iterable[object]:
        here = meter()
        for item in items:
            here.spend(1)
            yield item

    return counted()


def collect(items: Iterable[object]) -> list[object]:
    """The items of a generator, counted, and checked while they are made."""
    here = meter()
    kept: list[object] = []
    total = 0
    for item in items:
        total += len(item) if isinstance(item, str) else 1
        here.check(total)
        here.spend(1)
        kept.append(item)
    return kept


def check_operator(operator: str, left: object, right: object) -> None:
    """Guard ``+ * ** %`` before they are done."""
    here = meter()
    if operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            here.check(len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        values = right if isinstance(right, tuple) else (right,)
        _check_format(left, _PERCENT.findall(left), left.count("%"), values)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        grown = bits * max(right, 0) if operator == "**" else bits + right.bit_length()
        if operator != "%" and grown > _LARGEST_INTEGER_BITS:
            raise TooMuchError("it makes a number too long")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                here.check(len(many) * times)


def _check_format(
    text: str, fields: Iterable[str], most_fields: int, values: Iterable[object]
) -> None:
    """Guard formatting a text, as ``%`` and ``format`` do."""
    if any(_WIDE.search(field) for field in fields):
        raise TooMuchError("it formats a text too wide")
    here = meter()
    longest = 0
    for value in values:
        here.check_deep(value)
        longest = max(longest, len(str(value)))
    here.check(len(text) + most_fields * longest)


def check_method(text: str, method: str, arguments: Sequence[object]) -> None:
    """Guard the methods of a text that can make a much longer one, before they are called."""
    first = arguments[0] if arguments else None
    if method in {"center", "ljust", "rjust", "zfill"}:
        if isinstance(first, int):
            meter().check(max(len(text), first))
    elif method == "expandtabs":
        width = first if isinstance(first, int) else 8
        meter().check(len(text) + text.count("\t") * width)
    elif method == "replace":
        check_replace(text, arguments)
    elif method == "join" and arguments:
        check_join(text, first)
    elif method == "format":
        fields = re.findall(r"[{]([^{}]*[{]?)", text.replace("{{", ""))
        _check_format(text, fields, text.count("{"), arguments)
    elif method in {"format_map", "translate"}:
        raise TooMuchError("it uses a method that can make any length of text")


def check_replace(text: str, arguments: Sequence[object]) -> None:
    """Guard replacing ``arguments[0]`` in a text by ``arguments[1]``."""
    if len(arguments) >= 2 and isinstance(arguments[0], str):
        new = arguments[1] if isinstance(arguments[1], str) else ""
        meter().check(len(text) + text.count(arguments[0]) * len(new))


def check_join(separator: str, items: object) -> None:
    """Guard joining items by a separator."""
    if not isinstance(items, Sized):
        raise TooMuchError("it joins what has no length")
    meter().check_deep(items)
    meter().check(len(separator) * len(items))


class RaisedError(TemplateError):
    """The template called ``raise_exception``: it does not take these messages."""


class ChatTemplateProgram:
    """A compiled template. Immutable; threads may render it at once.

    Args:
        source: The template.
        name: What to call it in messages.

    Raises:
        CheckpointError: It is not Jinja, or uses what a chat template may not.
    """

    def __init__(self, source: str, *, name: str) -> None:
        self.name = name
        use_meter(Meter())
        try:
            meter().check(len(source))
            tree = _Transformer().visit(_SANDBOX.parse(source))
            # without the name, which Jinja would put in quotes that it has itself; Python refuses
            # what is too deep with a SyntaxError
            code = _SANDBOX.compile(tree.set_environment(_SANDBOX))
        except (TemplateError, TooMuchError, RecursionError, SyntaxError) as error:
            line = error.lineno if isinstance(error, TemplateSyntaxError) else None
            raise CheckpointError(
                f"the chat template {name} cannot be used.",
                found=f"{getattr(error, 'msg', error)}{f' (line {line})' if line else ''}"[:100],
                hint="name another one with --chat-template",
            ) from error
        self._template = _SANDBOX.template_class.from_code(
            _SANDBOX, code, _SANDBOX.make_globals(None)
        )

    def render(self, variables: Mapping[str, object], *, size: int) -> str:
        """Render the template.

        Args:
            variables: What it sees. It may change the lists in them.
            size: The most characters it may make.

        Raises:
            TemplateLimitError: It does too much, or reaches for what the sandbox forbids.
            RequestError: It refuses the messages or fails on them; ``param`` is ``"messages"``.
        """
        use_meter(Meter(size))
        try:
            return self._template.render(variables)
        except TooMuchError as error:
            raise TemplateLimitError(
                "the model's chat template does more than a chat can need.",
                param="messages",
                found=str(error),
                hint="a shorter chat, or another template (blazr serve --chat-template)",
            ) from None
        except RaisedError as error:
            raise RequestError(
                "the model's chat template does not take these messages.",
                param="messages",
                found=str(error)[:100],
            ) from None
        except SecurityError as error:
            raise TemplateLimitError(
                "the model's chat template does what none may.",
                param="messages",
                found=str(error)[:100],
                hint="another template (blazr serve --chat-template)",
            ) from error
        except Exception as error:
            raise RequestError(
                "the model's chat template cannot render these messages.",
                param="messages",
                found=f"{type(error).__name__}: {error}"[:100],
            ) from error

    @staticmethod
    def takes(name: str) -> bool:
        """Whether a variable of this name hides nothing that templates rely on."""
        return name not in _SANDBOX.globals


class _GenerationTag(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training. Here it does nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Transformer(NodeTransformer):
    """Puts what Jinja itself does not let one intercept behind filters of ours."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_loop_over")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise TooMuchError(f"it reads other files ({type(node).__name__.lower()})")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's template environment, with a meter on all that runs or grows."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(join)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=_write,
        )
        for name in _BANNED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["from_json"] = json.loads
        self.tests["json"] = _is_json
        for name, function in self.filters.items():
            self.filters[name] = _metered(name, function)
        self.filters["_loop_over"] = loop_over
        self.filters["_concatenate"] = _concatenate
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether a template may see an attribute."""
        if isinstance(obj, int | float | bytes):
            return False  # (1).to_bytes(10**9) and its like; templates need none of them
        if isinstance(obj, list) and attr in {"append", "pop"}:
            return True  # some templates keep queues; every rendering has lists of its own
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: object, argument: object) -> object:
        """``obj[argument]``."""
        if isinstance(argument, slice):
            meter().charge(obj)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """An intercepted operator."""
        check_operator(operator, left, right)
        value: object = super().call_binop(context, operator, left, right)
        meter().charge(value)
        return value

    def call(
        self, context: Context, function: object, /, *args: object, **kwargs: object
    ) -> object:
        """Any call in a template."""
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            given = [*args, *kwargs.values()]
            meter().charge(owner)
            check_method(owner, getattr(method, "__name__", ""), given)
        elif isinstance(function, LoopContext) and args:
            args = (loop_over(args[0]), *args[1:])
        value: object = super().call(context, function, *args, **kwargs)
        meter().charge(value)
        return value


def _write(value: object) -> object:
    """What ``{{ value }}`` writes."""
    if not isinstance(value, str | int | float | Undefined | None):
        meter().check_deep(value)
    return value


def _metered(name: str, function: Callable[..., object]) -> Callable[..., object]:
    # jinja2 passes some filters the context, environment or evaluation context first
    position = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @wraps(function)
    def filtered(*args: object, **kwargs: object) -> object:
        value = _prepared(name, args[position])
        _check_filter(name, value, [*args[position + 1 :], *kwargs.values()])
        result = function(*args[:position], value, *args[position + 1 :], **kwargs)
        meter().charge(result)
        return result

    return filtered


def _prepared(name: str, value: object) -> object:
    """What a filter is applied to, counted for the work that the filter has with it."""
    if name in _OUTSIDE_FILTERS:
        meter().spend(1)
        return value
    if name in _LAZY_FILTERS:
        return loop_over(value)
    if isinstance(value, GeneratorType):
        value = collect(value)
    elif isinstance(value, range):
        value = list(value)
    meter().charge(value)
    if name not in _WHOLE_FILTERS and not isinstance(value, str):
        meter().check_deep(value)
    return value


def _check_filter(name: str, value: object, arguments: list[object]) -> None:
    if name == "replace":
        check_replace(str(value), arguments)
    elif name == "join" and not isinstance(value, Undefined):
        check_join(str(arguments[0]) if arguments else "", value)
    elif name in {"indent", "tojson", "truncate"}:
        text = value if isinstance(value, str) else ""
        widths = [each if isinstance(each, int) else len(str(each)) for each in arguments]
        meter().check((text.count("\n") + 1) * sum(widths))


def _concatenate(items: list[object]) -> str:
    for item in items:
        meter().check_deep(item)
    return join(map(str, items))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _to_json(  # noqa: PLR0917  (Hugging Face's signature)
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as Hugging Face writes it: not escaped for HTML."""

    def list_generator(value: object) -> list[object]:
        if isinstance(value, GeneratorType):
            return collect(value)
        raise TypeError(f"{type(value).__name__} is no JSON")

    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list_generator,
    )


def _raise_exception(message: object) -> None:
    raise RaisedError(str(message))


def _strftime_now(text: str) -> str:
    if len(text) > 1000 or _WIDE_TIME.search(text):
        raise TooMuchError("it formats a time too wide")
    return datetime.now().strftime(text)


_SANDBOX = _Sandbox()
