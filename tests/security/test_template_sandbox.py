"""Jinja as Hugging Face speaks it, and what it may not do."""

import json
import re
import sys
import threading
import time
from datetime import datetime

import pytest

from blazr.core.errors import CheckpointError, RequestError, TemplateLimitError
from blazr.text.templates import program as metered
from blazr.text.templates.sandbox import compile_template

NAME = "the model's own"


def render(source: str, **variables: object) -> str:
    program = compile_template(source, name=NAME)
    return program.render(variables, size=metered.MIN_SIZE)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb\n", "  a\nb"),
        ("    {% if true %}a{% endif %}", "a"),
        ("{{ {'b': '<é>', 'a': [1, none]}|tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ 'é'|tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ [3, 4]|map('string')|tojson }}", '["3", "4"]'),
        ("{{ '{\"a\": 1}'|from_json|length }}", "1"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% endfor %}", "ac"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% break %}{% endif %}{{ x }}{% endfor %}", "a"),
        ("{% for x in [1, 2] %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        ("{% for x in [1, 2]|select('gt', 1) %}{{ x }}{{ loop.last }}{% endfor %}", "2True"),
        ("{% generation %}a{% set b = 1 %}{% endgeneration %}{{ b }}", "a"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ content }}|{{ none }}", "None|None"),
        ("{{ '<b>' }}{{ '<'|e }}", "<b>&lt;"),
        ("{{ '%s and %d' % ('a', 2) }} {{ '{}-{x}'.format(1, x=2) }}", "a and 2 1-2"),
        ("{{ 'a'.center(5) }}{{ '7'.zfill(3) }}{{ ', '.join(['a', 'b']) }}", "  a  007a, b"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a b'|replace(' ', '_') }}", "a+ba_b"),
        ("{{ ['a', 'b']|join(', ') }}{{ 'ab'|join('-') }}", "a, ba-b"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{% set l = [1] %}{% set _ = l.append(2) %}{{ l.pop(0) }}{{ l }}", "1[2]"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) + m(2) }}", "<1><2>"),
        ("{% set n = namespace() %}{% for x in [1] %}{% set n.x = x %}{% endfor %}{{ n.x }}", "1"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x|length }}", "2"),
        ("{{ tools is none }}{{ undefined is defined }}{{ x.y is defined }}", "TrueFalseFalse"),
        ("{{ items[1:] }}{{ 'abc'[::-1] }}", "[2]cba"),
        ("{{ 2 ** 10 }}{{ 7 % 2 }}{{ 'ab' * 2 }}", "10241abab"),
        ("{% for x in none_given|selectattr('a') %}{{ x }}{% endfor %}.", "."),
        ("{{ 'a' if tools }}{{ 'b' if not tools }}", "b"),
    ],
)  # fmt: skip
def test_the_dialect(source: str, text: str) -> None:
    assert render(source, tools=None, x={}, items=[1, 2], content=None, none_given=None) == text


def test_the_time_is_now() -> None:
    year = str(datetime.now().year)
    assert year in render("{{ strftime_now('%d %b %Y') }}")


def test_a_template_may_refuse() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ messages[0].a.b }}", "UndefinedError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% for x in 3 %}{% endfor %}", "TypeError"),
        ("{{ object|tojson }}", "TypeError"),
        ("{{ nothing() }}", "UndefinedError"),
    ],
)
def test_a_failure_is_the_requests(source: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        render(source, messages=[{}], object=object())
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in y",
        "{{ a b }}",
        "{{ 'a'|no_such_filter }}",
        "{{ 'a'|center(9) }}",
        "{% include 'other' %}",
        "{% import 'other' as other %}",
        "{% from 'other' import x %}",
        "{% extends 'other' %}",
        "{{" + "(" * 3000 + ")" * 3000 + "}}",
        "{{ 9" + "+9" * 20_000 + " }}",
        "{{ x" + " + 'y'" * 250 + " }}",
        "a" * 100_001,
        "{{ " + "9" * 5000 + " }}",
        "{{ 0x" + "f" * 90_000 + " }}",
        "{{ {" + "1:1," * 1001 + "} }}",
        "{% autoescape true %}{{ x }}{% endautoescape %}",
        "{{ '<a>'|striptags }}",
    ],
)  # fmt: skip
def test_what_is_no_chat_template(source: str) -> None:
    with pytest.raises(CheckpointError, match=f"chat template {NAME}"):
        compile_template(source, name=NAME)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ joiner.__init__.__globals__.os.system('false') }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ ('{0.__class__}')|attr('format')(1) }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ (1).to_bytes(2, 'big') }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages.extend(messages) }}",
        "{{ messages.sort() }}",
        "{{ {}.fromkeys(messages) }}",
        "{{ ''.maketrans({}) }}",
        "{{ 'a'.encode('punycode') }}",
        "{{ (messages|map('upper')).gi_frame }}",
        "{{ (messages|map('upper')).close() }}",
        "{{ range(9).count('a') }}",
        "{{ messages[0].keys().isdisjoint(messages) }}",
        "{{ messages[0].keys() - messages }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    messages: list[object] = [{"role": "user"}]
    try:
        text = render(source, messages=messages)
    except (CheckpointError, RequestError):
        text = ""
    assert text == ""
    assert messages == [{"role": "user"}]


DOUBLE = "{% set ns = namespace(s='ab', l=[1]) %}{% for i in range(60) %}%s{% endfor %}{{ ns.s }}"
NEST = DOUBLE.replace("%s", "{% set ns.l = [ns.l, ns.l] %}")


@pytest.mark.parametrize(
    "source",
    [
        # multiplying
        "{{ 'a' * 10**9 }}", "{{ 10**9 * 'a' }}", "{{ [1] * 10**9 }}", "{{ 10 ** (10 ** 8) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (10**9, 1) }}", "{{ '%.999999999f' % 1 }}",
        "{{ 'a'.center(10**9) }}", "{{ 'a'.ljust(10**9) }}", "{{ 'a'.rjust(10**9) }}",
        "{{ 'a'.zfill(10**9) }}", "{{ '\t'.expandtabs(10**9) }}", "{{ 'a'['center'](10**9) }}",
        "{{ '{:>1000000000}'.format('x') }}", "{{ '{:{w}}'.format(1, w=10**9) }}",
        "{{ '{x:>1000000000}'.format_map({'x': 1}) }}", "{{ ('{:>99999}'|attr('format'))('x') }}",
        "{{ 'aaaa'.translate({97: 'b'}) }}", "{{ 'a'|indent(10**9) }}",
        "{{ ['a']|map('indent', 10**9, true)|list }}", "{{ [1]|tojson(indent=10**9) }}",
        "{{ strftime_now('%1000000000d') }}", "{{ range(10**9) }}",
        "{{ ('a' * 900000).replace('a', 'aa') }}", "{{ ('a' * 900000)|replace('a', 'aa') }}",
        "{{ ('a' * 900000).join('bb' * 9) }}", "{{ ('a' * 9000)|join('b' * 9000) }}",
        "{{ ('a' * 900000).join(['b'] * 9) }}", "{{ (['a' * 900000] * 9)|join }}",
        "{{ ['a' * 900000] * 9 }}", "{{ (['a' * 900000] * 9)|string }}",
        "{{ 'x' ~ (['a' * 900000] * 9) }}", "{{ '%s' % [['a' * 900000] * 9] }}",
        "{{ '{}'.format(['a' * 900000] * 9) }}", "{{ (['a' * 900000] * 9)|tojson }}",
        "{{ (['a' * 900000] * 9)|map('upper')|join }}", "{{ '%s%s' % ('a' * 900000, 1) }}",
        # doubling
        DOUBLE.replace("%s", "{% set ns.s = ns.s + ns.s %}"),
        DOUBLE.replace("%s", "{% set ns.s = ns.s ~ ns.s %}"),
        DOUBLE.replace("%s", "{% set ns.s = ns.s|replace('a', 'aa') %}"),
        DOUBLE.replace("%s", "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
        DOUBLE.replace("%s", "{% set ns.l = ns.l + ns.l %}"),
        NEST + "{{ ns.l }}", NEST + "{{ ns.l|tojson }}",
        "{% set _ = messages.append(messages) %}{{ messages }}",
        # looping
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
        "{% for a in 'abc' recursive %}{{ loop(range(99999)) if loop.depth == 1 }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}",
        "{% set x %}{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
        "{% for a in range(99999) %}{% set _ = messages.append(range(99999)|list) %}{% endfor %}",
        "{% for a in range(99999) %}{% set _ = messages.append('a' * 900000) %}{% endfor %}",
        "{% for a in range(99999) %}{% set _ = range(99999)|sum %}{% endfor %}",
        "{% for a in range(99999) %}{% set _ = range(99999)|select('gt', 1)|list %}{% endfor %}",
    ],
)  # fmt: skip
def test_a_template_cannot_run_or_grow_for_ever(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(
        RequestError, match=r"more than a chat|what none may|RecursionError|OverflowError"
    ):
        render(source, messages=[])
    assert time.thread_time() - start < 3


# Names for values that are small in memory and endless to go through, or large.
BIG = (
    "{% set ns = namespace(a=[1], b=[1], t=(1,), u=(1,)) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}"
    "{% set ns.t = (ns.t, ns.t) %}{% set ns.u = (ns.u, ns.u) %}{% endfor %}"
    "{% set s = 'a' * 900000 %}{% set x = 'f' * 900000 %}{% set ints = range(99999)|list %}"
    "{% set p = 2 ** 61 - 1 %}"
)
MANY = BIG + "{% for i in range(99999) %}%s{% endfor %}"

LONG = "{% macro m() %}" + "{% set y = 1 %}" * 3000 + "{% endmacro %}"


@pytest.mark.sample
@pytest.mark.parametrize(
    "source",
    [
        # comparing
        "{{ ns.a == ns.b }}", "{{ ns.a != ns.b }}", "{{ ns.t < ns.u }}", "{{ ns.a < ns.b < 0 }}",
        "{{ ns.a in [ns.b] }}", "{{ ns.a not in (ns.b, 1) }}", "{{ ns.a in {'x': ns.b}.values() }}",
        "{{ {1: ns.a} == {1: ns.b} }}", "{{ {1: ns.a}.items() == {1: ns.b}.items() }}",
        "{{ ns.a is eq(ns.b) }}", "{{ ns.a is in([ns.b]) }}",
        "{{ [ns.a]|select('eq', ns.b)|list }}",
        "{{ [{'x': ns.a}]|selectattr('x', 'ge', ns.b)|list }}", "{{ [ns.a].index(ns.b) }}",
        "{{ [ns.a].count(ns.b) }}", "{{ ns.t.index(1) }}", "{{ [ns.a, ns.b]|min|length }}",
        "{{ [ns.a, ns.b]|sort|length }}", "{{ [ns.a, ns.b]|groupby(0)|length }}",
        "{{ {1: ns.a, 2: ns.b}|dictsort(by='value')|length }}",
        "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
        # hashing
        "{{ {ns.t: 1} }}", "{{ {}[ns.t] }}", "{{ {}.get(ns.t) }}", "{{ ns.t in {} }}",
        "{{ dict([(ns.t, 1)]) }}", "{{ namespace([(ns.t, 1)]) }}", "{{ [ns.t]|unique|list }}",
        "{{ [ns]|unique(attribute='t')|list }}",
        "{% for i in ints %}{% set ns.a = (ns.a,) %}{% endfor %}{{ {ns.a: 1} }}",
        "{% set l = [] %}{% for i in ints %}{{ l.append((i * p, 1)) }}{% endfor %}{{ dict(l) }}",
        # numbers
        "{{ x|int(0, 16) }}", "{{ x[1:]|int(0, 16) % x|int(0, 16) }}", "{{ x|int(0, 32) // 3 }}",
        "{{ 1|round(10**8, 'ceil') }}", "{{ 5|round(-10**9) }}", "{{ 2 ** (2 ** 20) }}",
        "{{ [[1] * 200] * 5000 }}", "{{ ([[1] * 90] * 900)|sum(start=[]) }}",
        # searching
        "{{ s.rfind('ab' + s[:400000]) }}", "{{ s.rsplit('ab' + s[:400000]) }}",
        "{{ s.rpartition('ab' + s[:400000]) }}", "{{ s.strip('b' * 900000 + 'a') }}",
        "{{ s|trim('b' * 900000 + 'a') }}", "{{ s.startswith((s[:500000] + 'b',) * 90000) }}",
        # writing
        "{{ ns }}", "{{ [ns]|join(',', attribute='a') }}", "{{ {}[ns.a].x }}",
        "{{ cycler(ns.a) ~ '' }}", "{{ raise_exception(ns.a) }}",
        "{{ [[ns.a]|map('list')]|tojson }}", "{{ [cycler(ns.a)]|string }}",
        "{% for y in [ns.a, 1] %}{{ '{0.previtem}'.format(loop) }}{% endfor %}",
        "{{ ('%999d' * 99000) % ((1,) * 99000) }}", "{{ ('{:999}' * 99000).format(*ints) }}",
        "{{ ints|tojson(indent=1000) }}", "{{ ints|tojson(separators=[s, s]) }}",
        "{{ ('a\r' * 450000)|indent(1000) }}", "{{ s|replace('a', [1, 2]) }}", "{{ s|urlencode }}",
        # much that is cheap by itself
        MANY.replace("%s", "{% set y = i %}" * 3000), MANY.replace("%s", "{% set y = ints[:] %}"),
        MANY.replace("%s", "{% set y = 'a' in s %}"), MANY.replace("%s", "{% set y = s == s[:] %}"),
        "{% for i in ints if " + " + ".join(["i"] * 90) + " < 0 %}{% endfor %}",
        LONG + MANY.replace("%s", "{{ m() }}"),
        MANY.replace("%s", "{% set x %}{{ [s] }}{% endset %}"),
        "{% set x %}" + MANY.replace("%s", "{{ [s] }}") + "{% endset %}",
        MANY.replace("%s", "{% set _ = ints.copy() %}"), "{{ ints|sort(attribute='a,' * 9999) }}",
        MANY.replace("%s", "{% set ns.a = ns.a|map('upper') %}"),
    ],
)  # fmt: skip
def test_no_operator_is_free(source: str) -> None:
    source = source if source.startswith(BIG) else BIG + source
    start = time.thread_time()
    with pytest.raises(RequestError, match=r"more than a chat|RecursionError"):
        render(source, messages=[])
    assert time.thread_time() - start < 3


def test_a_small_template_still_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered, "MAX_TICKS", 100)
    source = (
        "{{ 1 < n < 3 }}{{ n == 2.0 }}{{ 'b' in x }}{{ 'b' not in x.keys() }}{{ [1] == l[:1] }}"
        "{{ x == {'a': l} }}{{ 1 in l|map('int') }}{{ n in range(3) }}{{ l[-1] is in(l) }}"
        "{{ {n: 1}[n] }}{{ {(n, 'a'): 2}[(2, 'a')] }}{{ l|sum }}{{ [[1], [2]]|sum(start=[]) }}"
        "{{ dict([('k', n)], j=1) }}{{ 7 // n - 1 }}{{ '%3d' % n }}{{ l|sort(reverse=true)|first }}"
        "{{ ' a'.strip() ~ 'a,b'.rsplit(',', 1) }}{{ 2 is even }}{{ 9 is divisibleby(n) }}"
        "{% for i in l if i > 1 %}{{ i }}{% else %}-{% endfor %}{{ [l]|map(attribute=0)|list }}"
        "{{ 3.14159|round(2) }}{{ '7f'|int(0, 16) }}{{ l|unique|list }}{{ n != nothing }}"
    )
    assert render(source, n=2, x={"a": [1, 2]}, l=[1, 2]) == (
        "TrueTrueFalseTrueTrueTrueTrueTrueTrue123[1, 2]{'k': 2, 'j': 1}2  22a['a', 'b']TrueFalse"
        "2[1]3.14127[1, 2]True"
    )


def test_json_is_indented_where_little_of_it_is_deep() -> None:
    """As of many tools, one with a deep schema; IBM's templates write all of them at once."""
    deep: object = 1
    for _ in range(100):
        deep = {"properties": deep}
    tools = [deep, *({"name": f"t{n}", "tags": [n]} for n in range(2000))]
    source = "{{ tools|tojson(indent=4) }}"
    assert render(source, tools=tools) == json.dumps(tools, indent=4)
    with pytest.raises(TemplateLimitError):
        render(source, tools=[deep] * 100)


def test_a_clock_catches_what_no_count_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered, "MAX_SECONDS", -1.0)
    with pytest.raises(RequestError, match="loops too long"):
        render("{% for x in [1] %}{% endfor %}")


def test_other_threads_run_meanwhile() -> None:
    program = compile_template("{% for x in range(50000) %}{% endfor %}", name="test")
    is_over = threading.Event()
    num_runs = 0

    def run() -> None:
        nonlocal num_runs
        while not is_over.is_set():
            num_runs += 1
            time.sleep(0)

    usual = sys.getswitchinterval()
    other = threading.Thread(target=run)
    sys.setswitchinterval(100)  # nobody is interrupted
    try:
        other.start()
        before = num_runs
        program.render({}, size=metered.MIN_SIZE)
        during = num_runs - before
    finally:
        is_over.set()
        sys.setswitchinterval(usual)
        other.join()
    assert during > 1


def test_a_deadline_may_be_sooner() -> None:
    program = compile_template("a", name="test")
    with pytest.raises(TemplateLimitError):
        program.render({}, size=100, deadline=time.thread_time())
    assert program.render({}, size=100, deadline=time.thread_time() + 100) == "a"


def test_longer_chats_may_take_longer() -> None:
    program = compile_template(
        "{% for x in l %}{% for y in l %}{% endfor %}{% endfor %}", name="test"
    )
    with pytest.raises(TemplateLimitError):
        program.render({"l": range(500)}, size=metered.MIN_SIZE)
    assert not program.render({"l": range(500)}, size=4 * metered.MIN_SIZE)


def test_a_text_of_the_allowed_size_is_made() -> None:
    program = compile_template("{{ content }}{{ content }}", name="test")
    assert len(program.render({"content": "a" * 50}, size=100)) == 100
    with pytest.raises(RequestError, match="too long"):
        program.render({"content": "a" * 51}, size=100)


def test_threads_share_a_program() -> None:
    program = compile_template("{% for i in range(2000) %}{{ name }}{% endfor %}", name="test")
    texts: dict[str, str] = {}

    def work(name: str) -> None:
        texts[name] = program.render({"name": name}, size=10_000)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(re.fullmatch(f"{name}{{2000}}", text) for name, text in texts.items())
    assert set(texts) == set("abcd")
