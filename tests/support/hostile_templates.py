"""Templates of one line that try to take much time or memory; a program that renders some.

``python -m tests.support.hostile_templates SEED COUNT`` renders so many, drawn with the seed, each
with a limit on its processor time that ends the program, and prints each before it is rendered.
"""

from __future__ import annotations

import random
import resource
import signal
import sys

from blazr.core.errors import BlazrError
from blazr.text.templates import program as metered
from blazr.text.templates.sandbox import compile_template

MAX_CPU_S = 5.0  # of one template; a tenth of a second is usual
MAX_MEMORY_BYTES = 1 << 30
FEW_TICKS = 20_000
_MESSAGES = [{"role": "user", "content": "Hello " * 20}, {"role": "assistant", "content": None}]

SETUP = (
    "{% set ns = namespace(a=[1], b=[1], t=(1,), u=(1,), d={'x': 1}, l=[], n=(), g='ab') %}"
    "{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% set ns.n = (ns.n,) %}"
    "{% set ns.t = (ns.t, ns.t) %}{% set ns.u = (ns.u, ns.u) %}"
    "{% set ns.d = {'x': ns.d, 'y': ns.d} %}"
    "{% endfor %}"
    "{% set s = 'a' * 300000 %}{% set k = 'ab' + 'a' * 100000 %}{% set ints = range(50000)|list %}"
    "{% set texts = ('ab ' * 30000).split(' ') %}"
    "{% set cyclic = [1] %}{% set _ = cyclic.append(cyclic) %}"
)  # fmt: skip
_VALUES = (
    "ns.a", "ns.b", "ns.t", "ns.u", "ns.d", "ns.n", "ns.g", "ns", "s", "k", "ints", "texts",
    "cyclic", "messages", "messages[0]", "nothing", "none", "true", "1", "-1", "0", "2.5", "10**9",
    "2**4000", "-(10**9)", "'%999d%s'", "'%99999d'", "'{:>999}'", "'{0.x}{0[0]}'",
    "'a\\rb\\n' * 9999", "''", "' '", "'a'", "'x'", "'x.x.x'", "'x,x,x'", "'upper'", "'eq'",
    "'punycode'", "[]", "{}", "range(99999)", "ints|map('string')", "ns.d.keys()", "ns.d.values()",
    "ns.d.items()", "cycler(ns.a, ns.t)", "joiner(s)", "s.join", "ints.append", "self", "dict",
    "range", "loop", "[ns.a, ns.b]", "[ns.t, ns.u]", "[ns, ns]", "('<a' * 90000)", "('[' * 90000)",
    "'f' * 90000", "'9' * 90000", "'\\U0001f600' * 90000",
)  # fmt: skip
_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "forceescape", "from_json", "groupby", "indent", "int", "items", "join", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
    "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim",
    "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
_TESTS = (
    "boolean", "callable", "defined", "divisibleby", "eq", "equalto", "escaped", "even", "false",
    "float", "ge", "gt", "in", "integer", "iterable", "json", "le", "lower", "lt", "mapping", "ne",
    "none", "number", "odd", "sameas", "sequence", "string", "true", "undefined", "upper",
)  # fmt: skip
_NAMED_ARGUMENTS = (
    "attribute", "by", "case_sensitive", "default", "first", "indent", "method", "precision",
    "reverse", "separators", "sort_keys", "start", "width",
)  # fmt: skip
_METHODS = tuple(
    sorted({each for kind in (str, list, tuple, dict) for each in dir(kind) if each[0] != "_"})
)
_BINARY = (
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", " in ", " not in ",
    " and ", " or ",
)  # fmt: skip
_FUNCTIONS = ("dict", "namespace", "cycler", "range")
_STATEMENTS = (
    "{{ E }}", "{{ E }}{{ E }}", "{% if E %}{{ E }}{% endif %}", "{% set x = E %}{{ x|length }}",
    "{% for x in E %}{{ E }}{% endfor %}",
    "{% for x in E if E %}{{ loop.changed(x, E) }}{% endfor %}",
    "{% for x in E recursive %}{{ loop(E) }}{{ loop.previtem }}{% endfor %}",
    "{% for i in range(99999) %}{% set ns.g = E %}{% endfor %}{{ ns.g }}",
    "{% for i in range(99999) %}{% set ns.l = [ns.l, E] %}{% endfor %}",
    "{% for i in range(99999) %}{% set _ = ns.l.append(E) %}{% endfor %}{{ ns.l == ns.l[:] }}",
    "{% set x %}{% for i in range(99999) %}{{ E }}{% endfor %}{% endset %}",
    "{% macro m(x) %}{{ E }}{{ m(E) }}{% endmacro %}{{ m(E) }}",
    "{% filter replace('a', E) %}{{ E }}{% endfilter %}", "{% with x = E %}{{ x.y }}{% endwith %}",
    "{% set x, y = E %}", "{{ raise_exception(E) }}", "{{ strftime_now(E) }}", "{{ {E: E} }}",
    "{% call(x) caller_of(E) %}{{ E }}{% endcall %}",
    "{% block b %}{{ E }}{{ self.b() }}{% endblock %}",
)  # fmt: skip


def hostile_template(draw: random.Random) -> str:
    """A template that combines what is large with what could be slow."""
    statement = draw.choice(_STATEMENTS)
    parts = statement.split("E")
    body = "".join(part + _expression(draw, 2) for part in parts[:-1]) + parts[-1]
    return SETUP + body


def _expression(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(_VALUES)
    left, right, third = (_expression(draw, draw.randrange(depth)) for _ in range(3))
    named = f"{draw.choice(_NAMED_ARGUMENTS)}={right}"
    arguments = draw.choice(["", f"({right})", f"({right}, {third})", f"({named})"])
    forms = [
        f"({left}{draw.choice(_BINARY)}{right})",
        f"({left}{draw.choice(_BINARY)}{right})",
        f"({left}|{draw.choice(_FILTERS)}{arguments})",
        f"({left}|{draw.choice(_FILTERS)}{arguments})",
        f"({left} is {draw.choice(_TESTS)}{arguments})",
        f"({left}|map('{draw.choice(_FILTERS)}', {right})|list)",
        f"({left}|select('{draw.choice(_TESTS)}', {right})|list)",
        f"({left}).{draw.choice(_METHODS)}{arguments or '()'}",
        f"({left})[{right}]",
        f"({left})[{right}:{third}:{draw.choice(['', '-1', '2'])}]",
        f"{{{left}: {right}}}",
        f"[{left}, {right}]",
        f"({left}, {right})",
        f"({left} < {right} < {third})",
        f"{draw.choice(_FUNCTIONS)}({draw.choice(['', '*', '**'])}{left})",
        f"({left} if {right} else {third})",
    ]
    return draw.choice(forms)


def main(seed: int, count: int) -> None:
    """Render so many hostile templates, and stop at the first that cannot be."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    metered.MAX_TICKS = FEW_TICKS
    draw = random.Random(seed)
    for _ in range(count):
        source = hostile_template(draw)
        sys.stdout.write(source.removeprefix(SETUP) + "\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # unhandled, its signal ends the program
        try:
            program = compile_template(source, name="hostile")
            program.render({"messages": [dict(each) for each in _MESSAGES]}, size=metered.MIN_SIZE)
        except BlazrError as error:
            if "MemoryError" in error.render():
                raise
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
