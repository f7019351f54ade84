"""The one place where Jinja is run: Hugging Face's dialect, in a sandbox, on a meter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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

from blazr.core.errors import CheckpointError, RequestError
from blazr.text.templates import limits

# Filters of no use in a chat that can make much of little, or differ from run to run.
_BANNED_FILTERS = (
    *("center", "filesizeformat", "format", "pprint", "random", "slice", "batch"),
    *("urlize", "wordwrap", "xmlattr"),
)
# Filters that look at a container's outside, that go through it item by item as they are asked,
# and that go through it at once. The others write it out as text.
_OUTSIDE_FILTERS = {"attr", "count", "d", "default", "first", "items", "last", "length"}
_LAZY_FILTERS = {"map", "reject", "rejectattr", "select", "selectattr", "unique"}
_WHOLE_FILTERS = {"dictsort", "groupby", "list", "max", "min", "reverse", "sort", "sum"}
_WIDE_TIME = re.compile(r"%[^a-zA-Z%]*[0-9]{3,}")


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
        limits.use_meter(limits.Meter())
        try:
            limits.meter().check(len(source))
            tree = _Transformer().visit(_SANDBOX.parse(source))
            # without the name, which Jinja would put in quotes that it has itself; Python refuses
            # what is too deep with a SyntaxError
            code = _SANDBOX.compile(tree.set_environment(_SANDBOX))
        except (TemplateError, limits.TooMuchError, RecursionError, SyntaxError) as error:
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
            RequestError: It refuses the messages, fails on them, or does too much; ``param`` is
                ``"messages"``.
            CheckpointError: It reaches for what the sandbox forbids.
        """
        limits.use_meter(limits.Meter(size))
        try:
            return self._template.render(variables)
        except RaisedError as error:
            raise RequestError(
                "the model's chat template does not take these messages.",
                param="messages",
                found=str(error)[:100],
            ) from None
        except SecurityError as error:
            raise CheckpointError(
                f"the chat template {self.name} does what none may.", found=str(error)[:100]
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
        raise limits.TooMuchError(f"it reads other files ({type(node).__name__.lower()})")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's template environment, with a meter on all that runs or grows."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(limits.join)

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
        self.filters["_loop_over"] = limits.loop_over
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
            limits.meter().charge(obj)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """An intercepted operator."""
        limits.check_operator(operator, left, right)
        value: object = super().call_binop(context, operator, left, right)
        limits.meter().charge(value)
        return value

    def call(
        self, context: Context, function: object, /, *args: object, **kwargs: object
    ) -> object:
        """Any call in a template."""
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            given = [*args, *kwargs.values()]
            limits.meter().charge(owner)
            limits.check_method(owner, getattr(method, "__name__", ""), given)
        elif isinstance(function, LoopContext) and args:
            args = (limits.loop_over(args[0]), *args[1:])
        value: object = super().call(context, function, *args, **kwargs)
        limits.meter().charge(value)
        return value


def _write(value: object) -> object:
    """What ``{{ value }}`` writes."""
    if not isinstance(value, str | int | float | Undefined | None):
        limits.meter().check_deep(value)
    return value


def _metered(name: str, function: Callable[..., object]) -> Callable[..., object]:
    # jinja2 passes some filters the context, environment or evaluation context first
    position = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @wraps(function)
    def filtered(*args: object, **kwargs: object) -> object:
        value = _prepared(name, args[position])
        _check_filter(name, value, [*args[position + 1 :], *kwargs.values()])
        result = function(*args[:position], value, *args[position + 1 :], **kwargs)
        limits.meter().charge(result)
        return result

    return filtered


def _prepared(name: str, value: object) -> object:
    """What a filter is applied to, counted for the work that the filter has with it."""
    if name in _OUTSIDE_FILTERS:
        limits.meter().spend(1)
        return value
    if name in _LAZY_FILTERS:
        return limits.loop_over(value)
    if isinstance(value, GeneratorType):
        value = limits.collect(value)
    elif isinstance(value, range):
        value = list(value)
    limits.meter().charge(value)
    if name not in _WHOLE_FILTERS and not isinstance(value, str):
        limits.meter().check_deep(value)
    return value


def _check_filter(name: str, value: object, arguments: list[object]) -> None:
    if name == "replace":
        limits.check_replace(str(value), arguments)
    elif name == "join" and not isinstance(value, Undefined):
        limits.check_join(str(arguments[0]) if arguments else "", value)
    elif name in {"indent", "tojson", "truncate"}:
        text = value if isinstance(value, str) else ""
        widths = [each if isinstance(each, int) else len(str(each)) for each in arguments]
        limits.meter().check((text.count("\n") + 1) * sum(widths))


def _concatenate(items: list[object]) -> str:
    for item in items:
        limits.meter().check_deep(item)
    return limits.join(map(str, items))


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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of,
    )


def _list_of(value: object) -> list[object]:
    if isinstance(value, GeneratorType):
        return limits.collect(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise_exception(message: object) -> None:
    raise RaisedError(str(message))


def _strftime_now(text: str) -> str:
    if len(text) > 1000 or _WIDE_TIME.search(text):
        raise limits.TooMuchError("it formats a time too wide")
    return datetime.now().strftime(text)


_SANDBOX = _Sandbox()
