"""Grammars as llama.cpp writes them: what follows them, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from blazr.core.errors import GrammarError
from blazr.text.grammars.child import make_matcher
from blazr.text.grammars.gbnf import MAX_REPETITIONS, MAX_RULES, gbnf
from tests.support.seeds import examples

TOKENIZER = LLTokenizer("byte")
SUM = r"""
# sums, each on a line of its own
root ::= (sum "=" ws value "\n")+
sum ::= value ([-+] value)*
value ::= word | number | "(" ws sum ")" ws
word ::= [a-z] [a-z0-9_]* ws
number ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
TREE = """
root ::= node
node ::= "<" name ">" (text | node)* "</" name ">"
name ::= [a-z]+
text ::= [^<]+
"""
NAMES = r"""
root ::= start A a foo-Bar foo_bar fooBar 1st import
start ::= "0"
A ::= "1"
a ::= "2"
foo-Bar ::= "3"
foo_bar ::= "4"
fooBar ::= "5"
1st ::= "6"
import ::= "7"
"""
CASES = {
    "characters": (
        r'root ::= "\x41\u00e9\U0001F600\"\\\t" [\]\[\-\\] [\u00e0-\u00ff] [^\n\r"]',
        ['Aé😀"\\\t]èx', 'Aé😀"\\\t-ü\\'],
        ['Aé😀"\\\t^èx', 'Aé😀"\\\t]ex', 'Aé😀"\\\t]è"'],
    ),
    "nothing": ('root ::= "\\u0000" [\\x00-\\x1f]', ["\0\x1f"], ["\0 "]),
    "raw characters": ('root ::= "a\tb\nc" [\t ]', ["a\tb\nc\t"], ["a b\nc "]),
    "signs in brackets": (
        "root ::= [&&a] [a~~b] [!--] [-x] [x-] [^-x]",
        ["&~+--y", "aa!xxé"],
        ["b~+--y", "&~+---", "&~.--y"],
    ),
    "any character": ("root ::= . .", ["\né", "😀\0"], ["a", "abc"]),
    "counts": (
        'root ::= "a"{2} "b"{1,2} "c"{0,1} "d"{2,} "e"{0} "f"?',
        ["aabdd", "aabbcdddf"],
        ["abdd", "aabbbdd", "aabd", "aabdde"],
    ),
    "an empty alternative": ('root ::= "a" ( | "b") ""', ["a", "ab"], ["abb"]),
    "lines": ('root ::= (\n "a" # one\n | "b"\n) |\n  "c"\r\n\n# end', ["a", "b", "c"], ["ab"]),
    "names": (
        NAMES,
        ["01234567"],
        ["01134567"],
    ),
    "the last of two": ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    "spaces before a line's end": (SUM, ["a+b=c\n", "a -(1 +2)= 3 \nx=y\n\n\n"], ["a=b", "a=\n"]),
    "text and tags": (TREE, ["<a>b <c></c>\n</a>", "<a></b>"], ["<a>", "a", "<a><</a>"]),
    "left recursion": ('root ::= root "+" n | n\nn ::= [0-9]+', ["1", "12+3+4"], ["1+", "+1"]),
    "all before a word": (
        'root ::= a b?\na ::= .* "END"\nb ::= root',
        ["END", "aEND", "ENDEND"],
        ["EN"],
    ),
    "a keyword after a word": (
        'root ::= "(" root ")" | word "end"\nword ::= [a-z]+',
        ["abend", "(endend)"],
        ["end", "(end)"],
    ),
    "spaces twice": (
        'root ::= "(" ws root ws ")" ws | "x" ws\nws ::= [ \\n]*',
        ["( x  ) ", "(( x))", "x\n"],
        ["( x", "()"],
    ),
    "a letter that must follow": ('root ::= "[" root "]" | a "ab"\na ::= "a"+', ["aab"], ["ab"]),
}


def matcher_of(source: str) -> LLMatcher:
    matcher = make_matcher(TOKENIZER, gbnf(source, {}))
    assert not matcher.get_error(), matcher.get_error()
    return matcher


def takes(matcher: LLMatcher, text: str) -> bool:
    matcher = matcher.deep_copy()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("name", CASES)
def test_what_a_grammar_derives_follows_it(name: str) -> None:
    source, right, wrong = CASES[name]
    matcher = matcher_of(source)
    assert [text for text in right if not takes(matcher, text)] == []
    assert [text for text in wrong if takes(matcher, text)] == []


# A grammar, and the regular expression for the same.
LETTERS = st.sampled_from(
    [
        ('"a"', "a"),
        ('"ab"', "ab"),
        ("[ab]", "[ab]"),
        ("[^a]", "[^a]"),
        ('" "', " "),
        (".", "(?s:.)"),
    ]
)
COUNTS = st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "{0,2}", "{1,}"])


Pair = tuple[str, str]


def joined(parts: list[Pair], mark: str, sign: str) -> Pair:
    grammar, pattern = zip(*parts, strict=True)
    return f"({mark.join(grammar)})", f"(?:{sign.join(pattern)})"


def repeated(pair: Pair, count: str) -> Pair:
    return f"({pair[0]}){count}", f"(?:{pair[1]}){count}"


def larger(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        parts.map(lambda each: joined(each, " ", "")),
        parts.map(lambda each: joined(each, " | ", "|")),
        st.builds(repeated, inner, COUNTS),
    )


EXPRESSIONS = st.recursive(LETTERS, larger, max_leaves=8)


@settings(deadline=None, max_examples=examples(60))
@given(
    pairs=st.lists(EXPRESSIONS, min_size=2, max_size=2),
    texts=st.lists(st.text("ab \n", max_size=6), max_size=12),
)
def test_a_grammar_without_recursion_is_a_regular_expression(
    pairs: list[Pair], texts: list[str]
) -> None:
    (first, one), (second, other) = pairs
    matcher = matcher_of(f"root ::= x x | y\nx ::= {first}\ny ::= {second}")
    pattern = re.compile(f"(?:{one})(?:{one})|(?:{other})")
    for text in {"", "a", "ab", "aab", "  ", *texts}:
        assert takes(matcher, text) == bool(pattern.fullmatch(text)), text


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("root ::= foo", "no rule 'foo'"),
        ('a ::= "b"', "no rule 'root'"),
        ("", "no rule 'root'"),
        ('root ::= "a" )', "line 1: ')'"),
        ('root ::= "a"\n  "b"', "line 2: '\"b\"'"),
        ('root ::= ("a"', "its end"),
        ('root ::= "a', "its end"),
        ("root ::= [a", "its end"),
        ("root ::= []", "line 1: ']'"),
        ("root ::= [b-a]", "line 1: ']'"),
        (r"root ::= [\d]", r"line 1: '\\d]'"),
        (r'root ::= "\ud83d"', "ud83d"),
        ('root ::= "a"{2,1}', "{2,1}"),
        ('root ::= "a"{99999}', "{99999}"),
        ('root ::= "a"{', "'{'"),
        ('root ::= "a"**', "'*'"),
        ('root := "a"', "':= \"a\"'"),
    ],
)
def test_what_is_no_grammar_is_refused_where_it_goes_wrong(source: str, found: str) -> None:
    with pytest.raises(GrammarError, match="GBNF grammar is not valid") as caught:
        gbnf(source, {})
    assert found in str(caught.value.found)


@pytest.mark.parametrize(
    "source",
    [
        "root ::= " + "(" * 9999,
        "root ::= " + "(" * 500 + '"a"' + ")" * 500,
        'a ::= "a"\n' * 9999,
        "#" * 99999,
        "".join(f'r{n} ::= "a"\n' for n in range(MAX_RULES + 1)),
        f'root ::= "a"{{{MAX_REPETITIONS + 1}}}',
    ],
)
def test_a_grammar_beyond_any_bound_is_refused(source: str) -> None:
    with pytest.raises(GrammarError):
        gbnf(source, {})


LARGE = {
    "doubling": [
        *(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(490)),
        "root ::= r0",
        'r490 ::= "a"',
    ],
    "doubling and recursion": [
        *(f"r{n} ::= r{n + 1} r{n + 1} root?" for n in range(330)),
        "root ::= r0",
        'r330 ::= "a"',
    ],
    "alternatives": ["root ::= root? (" + " | ".join(['"a"'] * 900) + ")"],
    "long text": ['root ::= root? "' + "a" * 60000 + '"'],
    "long class": ["root ::= root? [" + "ab" * 30000 + "]"],
    "brackets": ["root ::= " + "(" * 120 + '"a"' + ")" * 120],
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_grammar_is_written_as_one_of_its_size(name: str) -> None:
    source = "\n".join(LARGE[name])
    assert len(gbnf(source, {})) < 20 * len(source)
