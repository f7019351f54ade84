"""Jinja as Hugging Face speaks it, and what it may not do."""

import re
import threading
import time
from datetime import datetime

import pytest

from blazr.core.errors import CheckpointError, RequestError
from blazr.text.templates import sandbox
from blazr.text.templates.sandbox import ChatTemplateProgram

NAME = "the model's own"


def render(source: str, **variables: object) -> str:
    program = ChatTemplateProgram(source, name=NAME)
    return program.render(variables, size=sandbox.MIN_SIZE)


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
        "a" * 1_000_001,
    ],
)  # fmt: skip
def test_what_is_no_chat_template(source: str) -> None:
    with pytest.raises(CheckpointError, match=f"chat template {NAME}"):
        ChatTemplateProgram(source, name=NAME)


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
        "{{ '{:>1000000000}'.format_map({}) }}", "{{ ('{:>99999}'|attr('format'))('x') }}",
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
    with pytest.raises(RequestError, match=r"more than a chat|RecursionError|OverflowError"):
        render(source, messages=[])
    assert time.thread_time() - start < 3


def test_a_clock_catches_what_no_count_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(RequestError, match="loops too long"):
        render("{% for x in [1] %}{% endfor %}")


def test_a_text_of_the_allowed_size_is_made() -> None:
    program = ChatTemplateProgram("{{ content }}{{ content }}", name="test")
    assert len(program.render({"content": "a" * 50}, size=100)) == 100
    with pytest.raises(RequestError, match="too long"):
        program.render({"content": "a" * 51}, size=100)


def test_threads_share_a_program() -> None:
    program = ChatTemplateProgram("{% for i in range(2000) %}{{ name }}{% endfor %}", name="test")
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
