"""What grammars refuse, and in which words; what they become for llguidance."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from blazr.core.errors import GrammarError
from blazr.engine.sampling_params import SamplingParams
from blazr.text.grammars import GRAMMARS
from blazr.text.grammars.child import make_matcher
from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.grammars.constraint import GrammarConstraint
from blazr.text.grammars.json_schema import json_schema, schema_source
from blazr.text.grammars.tool_call import Maybe, TextUntil, ToolGrammar
from blazr.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def compiler(chatty: Tokenizer):
    compiler = GrammarCompiler(chatty, vocab_size=chatty.size)
    yield compiler
    compiler.close()


def deep(levels: int) -> object:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def refs(count: int) -> dict[str, object]:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$defs": {**defs, f"d{count}": True}, "$ref": "#/$defs/d0"}


REFUSED = {
    "no kind": ({"riddle": "x"}, "kind of grammar is unknown"),
    "json_object with a schema": ({"json_object": {}}, "takes no schema"),
    "schema of a number": ({"json_schema": 3}, "is no schema"),
    "schema of a list": ({"json_schema": [{}]}, "is no schema"),
    "schema in broken JSON": ({"json_schema": "{"}, "not valid JSON"),
    "schema false": ({"json_schema": False}, "nothing is valid"),
    "schema with NaN": ({"json_schema": {"const": float("nan")}}, "JSON cannot say"),
    "schema with an object of ours": ({"json_schema": {"const": object()}}, "JSON cannot say"),
    "schema too deep": ({"json_schema": deep(5000)}, "too deep"),
    "schema too deep, in JSON": ({"json_schema": '{"items":' * 99999 + "{}"}, "not valid JSON"),
    "reference to itself": ({"json_schema": {"$ref": "#"}}, "$ref of the schema leads back"),
    "reference in a circle": (
        {"json_schema": {"items": {"$ref": "#/a"}, "a": {"allOf": [{"$ref": "#/items"}]}}},
        "$ref of the schema leads back",
    ),
    "references in a row": ({"json_schema": refs(3000)}, "too many $ref"),
    "reference to nothing": ({"json_schema": {"$ref": "#/$defs/a"}}, "see $ref"),
    "reference elsewhere": ({"json_schema": {"$ref": "https://a.example/b"}}, "see $ref"),
    "a keyword": ({"json_schema": {"type": "array", "uniqueItems": True}}, "see uniqueItems"),
    "an English keyword": ({"json_schema": {"not": {}}}, "see not."),
    "a keyword inside": (
        {"json_schema": {"items": {"propertyNames": {"minLength": 2}}}},
        "see propertyNames",
    ),
    "a keyword it asks to ignore": (
        {"json_schema": {"x-guidance": {"lenient": True}, "uniqueItems": True}},
        "see uniqueItems",
    ),
    "oneOf that overlaps": ({"json_schema": {"oneOf": [{}, {"type": "null"}]}}, "see oneOf."),
    "a format": ({"json_schema": {"type": "string", "format": "idn-hostname"}}, "see format"),
    "a type": ({"json_schema": {"type": "text"}}, "see type"),
    "a pattern with look-around": ({"json_schema": {"pattern": "a(?=b)"}}, "see pattern"),
    "a format that no value has": (
        {"json_schema": {"allOf": [{"type": "string", "format": "ipv6"}, {"enum": ["", "x"]}]}},
        "nothing is valid under the schema: see format, enum",
    ),
    "a pattern with a reference": ({"json_schema": {"pattern": r"(a)\1"}}, "see pattern"),
    "an empty range": (
        {"json_schema": {"type": "number", "minimum": 3, "maximum": 2}},
        "see minimum, maximum",
    ),
    "an empty interval": (
        {"json_schema": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}},
        "see exclusiveMinimum",
    ),
    "no multiple": (
        {"json_schema": {"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 5}},
        "see multipleOf",
    ),
    "required but forbidden": (
        {"json_schema": {"type": "object", "required": ["a"], "additionalProperties": False}},
        "see required",
    ),
    "regex of a number": ({"regex": 3}, "regex needs a text"),
    "regex of half a character": ({"regex": "\ud800"}, "not valid Unicode"),
    "regex that is none": ({"regex": "(a"}, "grammar is not valid"),
    "regex of nothing": ({"regex": ""}, "only the empty text"),
    "regex of brackets": ({"regex": "(" * 30000 + "a" + ")" * 30000}, "grammar is not valid"),
    "choice of a text": ({"choice": "yes"}, "texts to choose from"),
    "choice of nothing": ({"choice": []}, "texts to choose from"),
    "choice of numbers": ({"choice": [1]}, "choice needs a text"),
    "choice of the empty text": ({"choice": ["a", ""]}, "empty text"),
    "choice of too many": ({"choice": list(map(str, range(9999)))}, "too many texts"),
    "Lark without a rule": ({"lark": "start: foo"}, "grammar is not valid"),
    "Lark that never ends": ({"lark": 'start: start "a"'}, "cannot be followed"),
    "Lark in JSON": ({"lark": '{"grammars": []}'}, "no Lark grammar"),
    "Lark too long": ({"lark": "#" * (2 << 20)}, "too long"),
    "GBNF without a rule": ({"gbnf": "root ::= foo"}, "GBNF grammar is not valid"),
    "GBNF without a root": ({"gbnf": 'a ::= "b"'}, "GBNF grammar is not valid"),
    "GBNF of brackets": ({"gbnf": "root ::= " + "(" * 9999}, "GBNF grammar is not valid"),
    "GBNF too long": ({"gbnf": "#" * (1 << 17)}, "too long"),
    "no tool": ({"tool_call": ToolGrammar(calls=[])}, "needs a tool"),
    "a tool's schema": ({"tool_call": ToolGrammar(calls=[[{"not": {}}]])}, "see not."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_words(compiler, name):
    grammar, expected = REFUSED[name]
    with pytest.raises(GrammarError) as caught:
        compiler.compile(grammar)
    assert expected in caught.value.message
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    "grammar",
    [
        {"regex": "(ab"},
        {"regex": "(" + "long" * 20},
        {"lark": "start: a\na: /(ab/"},
        {"json_schema": {"type": "string", "pattern": "(ab"}},
    ],
    ids=str,
)
def test_a_wrong_regular_expression_is_told_what_is_wrong(compiler, grammar):
    with pytest.raises(GrammarError) as caught:
        compiler.compile(grammar)
    assert caught.value.found.endswith(": unclosed group")
    assert max(map(len, caught.value.render().splitlines())) < 200


def test_every_kind_is_refused_by_something():
    assert {kind for grammar, _ in REFUSED.values() for kind in grammar} >= set(GRAMMARS)


def test_a_model_without_a_vocabulary_has_no_grammar():
    from blazr.llm.missing_tokenizer import MissingTokenizer

    with pytest.raises(GrammarError, match="no known vocabulary"):
        GrammarCompiler(MissingTokenizer(), vocab_size=10).compile({"json_object": True})


def test_params_take_one_grammar():
    with pytest.raises(GrammarError.__bases__[0], match="grammar"):
        SamplingParams(grammar={"regex": "a", "choice": ["b"]})


def follows(constraint: GrammarConstraint, tokenizer: Tokenizer, text: str, **options) -> bool:
    """Whether a text follows a grammar and may end there."""
    state = constraint.fork()
    try:
        for token_id in tokenizer.encode(text, **options):
            state.accept(token_id)
    except GrammarError:
        return False
    return state.is_finished or state._matcher.is_accepting()


ACCEPTED = [
    ({"regex": "a/b"}, ["a/b"], ["a\\/b", "ab"]),
    ({"regex": r"a\/b\\/c"}, [r"a/b\/c"], ["a/b/c"]),
    ({"regex": 'x\n"y"'}, ['x\n"y"'], ["x"]),
    ({"regex": "^a|b$"}, ["a", "b"], ["ab", "c"]),
    ({"choice": ['a"\n', "é🙂", "/x/"]}, ['a"\n', "é🙂", "/x/"], ["a", "x"]),
    ({"json_schema": True}, ["1", '{"a": [null]}'], ["", "01"]),
    ({"json_schema": '{"enum": ["x", 2]}'}, ['"x"', "2"], ["x", "3"]),
    ({"json_object": True}, ["{}", '{"a": 1}'], ["[]", "1", "{} "]),
    (
        {
            "json_schema": {
                "type": "object",
                "properties": {"a/b": {}, "c": {"$ref": "#/properties/a~1b"}},
            }
        },
        ['{"a/b": 1, "c": [2]}'],
        ["1"],
    ),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), ACCEPTED)
def test_what_follows_and_what_does_not(compiler, chatty, grammar, good, bad):
    constraint = compiler.compile(grammar)
    assert [text for text in good if not follows(constraint, chatty, text)] == []
    assert [text for text in bad if follows(constraint, chatty, text)] == []


def test_space_between_the_tokens_of_json_is_bounded(compiler, chatty):
    constraint = compiler.compile({"json_schema": {"type": "array", "minItems": 1}})
    assert follows(constraint, chatty, "[\n" + " " * 20 + "1]")
    assert follows(constraint, chatty, "[ 1 ]")
    assert not follows(constraint, chatty, "[\n" + " " * 21 + "1]")
    assert not follows(constraint, chatty, "[\n\n1]")


def test_calls_of_tools(compiler, chatty):
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    json_call = ['<|im_start|>{"name": "f", "arguments": ', schema, "}"]
    xml_call = ["<f>", Maybe(("<x>\n", TextUntil("\n</x>"))), "</f>"]
    one = ToolGrammar(calls=[json_call, xml_call], begin="[", end="]<|im_end|>")
    many = ToolGrammar(calls=[json_call, xml_call], separator=", ")
    first, second = '<|im_start|>{"name": "f", "arguments": {"x": 3}}', "<f><x>\na<b\n\n</x></f>"

    def ok(grammar: ToolGrammar, text: str, *, special: bool = True) -> bool:
        constraint = compiler.compile({"tool_call": grammar})
        return follows(constraint, chatty, text, allow_special=special)

    assert ok(one, f"[{first}]<|im_end|>")
    assert ok(one, f"[{second}]<|im_end|>")
    assert ok(one, "[<f></f>]<|im_end|>")
    assert not ok(one, f"[{first}, {second}]<|im_end|>")
    assert not ok(one, f"[{first.replace('3', 'true')}]<|im_end|>")
    assert not ok(one, f"[{first}]<|im_end|>", special=False), "spelled, it is no special token"
    quoted = ToolGrammar(calls=[["f:<|im_start|>", TextUntil("<|im_end|>"), "!"]])
    assert ok(quoted, 'f:<|im_start|>a "b"\n<|im_end|>!')
    assert not ok(quoted, "f:<|im_start|>a<|im_end|>!", special=False)
    assert ok(many, f"{first}, {second}, {first}")
    assert not ok(many, f"{first},{second}")


@pytest.mark.parametrize(("end", "special"), [("</think>", False), ("<|im_end|>", True)])
@pytest.mark.parametrize("grammar", [{"choice": ["yes", "no"]}, {"json_schema": {"enum": ["yes"]}}])
def test_a_grammar_may_begin_after_free_text(compiler, chatty, grammar, end, special):
    constraint = compiler.compile(grammar, after=end)
    word = json.dumps("yes") if "json_schema" in grammar else "yes"
    for free, good in (("Well, {é}.\n", True), ("", True)):
        text = f"{free}{end}\n\n{word}"
        assert follows(constraint, chatty, text, allow_special=special) is good
    assert not follows(constraint, chatty, f"well {word}", allow_special=special)
    assert not follows(constraint, chatty, f"{end}well", allow_special=special)


@pytest.mark.parametrize("vocabulary", ["cl100k", "llama3", "stories", "chatty"])
def test_forced_text_is_tokenized_as_the_model_knows_it(request, vocabulary):
    tokenizer = request.getfixturevalue(vocabulary)
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.size)
    try:
        state = compiler.compile({"regex": "the little bird (sang|flew) away"}).fork()
    finally:
        compiler.close()
    forced = state.forced()
    assert len(forced) > 1
    text = b"".join(map(tokenizer.token_bytes, forced))
    assert b"the little bird ".startswith(text)
    if tokenizer.strips_leading_space:  # "the" has a space before it only where a text begins
        assert tokenizer.encode("a little")[-1] in forced
    else:
        assert list(forced) == tokenizer.encode("the little bird ")[: len(forced)]


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("date", ["2020-02-29", "2000-02-29", "2021-04-30"], ["2021-02-29", "1900-02-29"]),
        ("time", ["23:59:60Z", "12:30:59.5+01:00"], ["12:00:60Z", "23:59:60+01:00"]),
        ("date-time", ["2016-12-31T23:59:60Z"], ["2021-02-29T00:00:00Z", "2016-12-31T12:59:60Z"]),
    ],
)
def test_dates_and_times_exist(form: str, right: list[str], wrong: list[str]) -> None:
    source = json_schema({"type": ["string", "null"], "format": form}, {})
    tokenizer = LLTokenizer("byte")
    for text in (*right, *wrong):
        matcher = make_matcher(tokenizer, source)
        data = list(json.dumps(text).encode())
        is_taken = matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
        assert is_taken is (text in right), text


def test_a_value_that_looks_like_a_format_stays() -> None:
    schema = {"const": {"format": "date"}}
    assert json.loads(schema_source(schema))["const"] == {"format": "date"}
    both = json.loads(schema_source({"format": "date", "pattern": "^2020"}))
    assert both["pattern"] == "^2020"
    assert "02-29" in both["allOf"][0]["pattern"]
