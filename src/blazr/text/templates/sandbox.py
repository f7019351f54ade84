"""The one place where Jinja compiles: Hugging Face's dialect, in a sandbox and with limits.

Jinja's sandbox keeps a template from the machine, not from filling its memory or running for ever:
``'a'.center(10**9)`` is allowed there. So what a template does is counted (`program`), and what
could take long is asked for its size before it is done (`guards`). What is not known to these
guards (an attribute, a method, a filter) is not there.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import cast

from jinja2 import (
    TemplateSyntaxError,
    nodes,
    pass_environment,
)
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from blazr.core.errors import CheckpointError
from blazr.text.templates import guards
from blazr.text.templates.program import (
    ChatTemplateProgram,
    Meter,
    RaisedError,
    TooMuchError,
    check_deep,
    join,
    meter,
    spend,
    use_meter,
    write,
)

# Characters, which take seconds to compile; templates of released models have 30,000 at most.
MAX_SOURCE = 100_000
# Of the template, in the body of a loop or macro.
_NODES_PER_TICK = 50
# A mapping that is written out in the template.
_MAX_PAIRS = 1000

# Filters of no use in a chat that can make much of little, or differ from run to run.
_BANNED_FILTERS = (
    "batch",
    "center",
    "filesizeformat",
    "format",
    "pprint",
    "random",
    "slice",
    "striptags",
    "urlize",
    "wordwrap",
    "xmlattr",
)
_WIDE_TIME = re.compile(r"%[^a-zA-Z%]*[0-9]{3,}")

# What a template may see of values, by their types. Objects of Jinja's own show all that is public.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: guards.TEXT_METHODS,
    list: frozenset({"append", "copy", "count", "index", "pop"}),
    tuple: frozenset({"count", "grouper", "index", "list"}),  # those of groupby have names
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
}
_OPEN = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


def compile_template(source: str, *, name: str) -> ChatTemplateProgram:
    """Compile a chat template.

    Args:
        source: The template.
        name: What to call it in messages.

    Raises:
        CheckpointError: It is not Jinja, or uses what a chat template may not.
    """
    use_meter(Meter())
    try:
        tree = _parse(source)
        # without the name, which Jinja would put in quotes that it has itself; Python refuses
        # what is too deep with a SyntaxError
        code = _SANDBOX.compile(tree)
    except Exception as error:  # Jinja computes what is constant, which may raise anything
        line = error.lineno if isinstance(error, TemplateSyntaxError) else None
        raise CheckpointError(
            f"the chat template {name} cannot be used.",
            found=f"{getattr(error, 'msg', error)}{f' (line {line})' if line else ''}"[:100],
            hint="name another one with --chat-template",
        ) from error
    template = _SANDBOX.template_class.from_code(_SANDBOX, code, _SANDBOX.make_globals(None))
    return ChatTemplateProgram(template, name=name)


def _parse(source: str) -> nodes.Template:
    if len(source) > MAX_SOURCE:
        raise TooMuchError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
    tree: nodes.Template = _Transformer().visit(_SANDBOX.parse(source))
    tree.set_environment(_SANDBOX)
    return tree


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
        if node.test is not None:
            test = nodes.And(_spending([node.test]), node.test, lineno=node.lineno)
            node.test = test
        return self._with_counted_body(node)

    def _with_counted_body(
        self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block
    ) -> nodes.Node:
        count = nodes.ExprStmt(_spending(node.body), lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, count)
        return node

    visit_Macro = visit_CallBlock = visit_Block = _with_counted_body  # noqa: N815

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        sides = [node.expr, *(each.expr for each in node.ops)]
        names: list[str | None] = [None] * len(sides)
        for place, each in enumerate(node.ops):
            left, right = sides[place : place + 2]
            if each.op.endswith("in"):  # or "not in", which Jinja writes as one word
                if not _is_constant(right):
                    names[place] = names[place] or "_compared"
                    names[place + 1] = "_searched"
            elif not (_is_constant(left) or _is_constant(right)):
                names[place] = names[place] or "_compared"
                names[place + 1] = "_compared"
        guarded = [
            side if name is None else _filtered(side, name)
            for side, name in zip(sides, names, strict=True)
        ]
        node.expr = guarded[0]
        for each, side in zip(node.ops, guarded[1:], strict=True):
            each.expr = side
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802  (jinja2's name)
        if len(node.items) > _MAX_PAIRS:
            raise TooMuchError("it writes out a mapping too large")
        return self.generic_visit(node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, "_key")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  (jinja2's name)
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [
            each or nodes.Const(None, lineno=node.lineno)
            for each in (node.arg.start, node.arg.stop, node.arg.step)
        ]
        return _filtered(node.node, "_slice", *bounds)

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise TooMuchError(f"it reads other files ({type(node).__name__.lower()})")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815

    def _refuse_escapes(self, _: nodes.Node) -> nodes.Node:
        raise TooMuchError("it escapes for HTML (autoescape)")

    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refuse_escapes  # noqa: N815


def _filtered(node: nodes.Expr, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _spending(body: list[nodes.Node]) -> nodes.Filter:
    """An expression that counts one turn of a body, which has no other body's nodes in it."""
    count = 0
    stack = list(body)
    while stack:
        node = stack.pop()
        count += 1
        children = node.iter_child_nodes(exclude={"body"} if _has_body(node) else None)
        stack.extend(children)
    return _filtered(nodes.Const(1 + count // _NODES_PER_TICK, lineno=1), "_spend")


def _has_body(node: nodes.Node) -> bool:
    return isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block)


def _is_constant(node: nodes.Node) -> bool:
    """Whether a node is written out in the template, so that it is small."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(each, nodes.Const) for each in node.items)
    return isinstance(node, nodes.Const)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's template environment, with a meter on all that runs or grows."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})
    concat = staticmethod(join)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=write,
        )
        for name in _BANNED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["from_json"] = _from_json
        self.filters["sum"] = _sum
        self.tests["json"] = _is_json
        for name, function in self.filters.items():
            self.filters[name] = _metered_filter(name, function)
        for name, function in self.tests.items():
            self.tests[name] = _metered_test(name, cast("Callable[..., object]", function))
        self.filters["_compared"] = guards.check_compared
        self.filters["_concatenate"] = _concatenate
        self.filters["_key"] = guards.check_key
        self.filters["_searched"] = guards.check_searched
        self.filters["_slice"] = _slice
        self.filters["_spend"] = spend
        del self.globals["lipsum"]
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _make_namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether a template may see an attribute."""
        for kind, names in _ATTRIBUTES.items():
            if isinstance(obj, kind):
                return attr in names
        # of others too, (1).to_bytes(10**9) and its like, templates need none
        return isinstance(obj, _OPEN) and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: object, argument: object) -> object:
        """``obj[argument]``."""
        meter().count_subscript()
        if not isinstance(argument, str | int):
            check_deep(argument)  # hashed, or written into an error's message
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """A binary operator."""
        guards.check_operator(operator, left, right)
        value: object = super().call_binop(context, operator, left, right)
        meter().charge(value)
        return value

    def call(
        self, context: Context, function: object, /, *args: object, **kwargs: object
    ) -> object:
        """Any call in a template."""
        guards.check_call(function, args, kwargs)
        value: object = super().call(context, function, *args, **kwargs)
        meter().charge(value)
        return value


def _metered_filter(name: str, function: Callable[..., object]) -> Callable[..., object]:
    # jinja2 passes some filters the context, environment or evaluation context first
    position = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @wraps(function)
    def filtered(*args: object, **kwargs: object) -> object:
        rest = args[position + 1 :]
        value = guards.prepare_filter(name, args[position], [*rest, *kwargs.values()])
        result = function(*args[:position], value, *rest, **kwargs)
        if isinstance(result, Markup):
            result = str.__str__(result)  # whose operators would escape what they meet
        meter().charge(result)
        return result

    return filtered


def _metered_test(name: str, function: Callable[..., object]) -> Callable[..., object]:
    position = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @wraps(function)
    def tested(*args: object) -> object:
        value, rest = guards.check_test(name, args[position], list(args[position + 1 :]))
        return function(*args[:position], value, *rest)

    return tested


def _slice(value: object, start: object, stop: object, step: object) -> object:
    meter().charge(value)
    return value[start:stop:step]  # type: ignore[index]  # as Jinja does


def _concatenate(items: list[object]) -> str:
    for item in items:
        check_deep(item)
    return join(map(str, items))


@pass_environment
def _sum(
    environment: _Sandbox, items: Iterable[object], attribute: str | None = None, start: object = 0
) -> object:
    """The sum of items, each addition as ``+``, for there may be lists among them."""
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    total = start
    for item in items:
        guards.check_operator("+", total, item)
        total = operator.add(total, item)
        meter().charge(total)
    return total


def _make_dict(*args: object, **kwargs: object) -> dict[str, object]:
    return dict(*map(guards.check_pairs, args), **kwargs)


def _make_namespace(*args: object, **kwargs: object) -> Namespace:
    return Namespace(*map(guards.check_pairs, args), **kwargs)


def _from_json(text: str) -> object:
    value = json.loads(text)
    check_deep(value)
    return value


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

    def list_items(value: object) -> list[object]:
        if not isinstance(value, Iterator):
            raise TypeError(f"{type(value).__name__} is no JSON")
        items = guards.collect(value)
        check_deep(items)
        return items

    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list_items,
    )


def _raise_exception(message: object) -> None:
    check_deep(message)
    raise RaisedError(str(message))


def _strftime_now(text: str) -> str:
    if len(text) > 1000 or _WIDE_TIME.search(text):
        raise TooMuchError("it formats a time too wide")
    return datetime.now().strftime(text)


_SANDBOX = _Sandbox()
