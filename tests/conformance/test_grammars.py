"""Every grammar: what is accepted parses, what is generated is accepted, and there is always a way.

Replies are drawn from random scores, as no model would; every kind of vocabulary is tried.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from blazr.core.errors import GrammarError
from blazr.engine.outputs import FinishReason
from blazr.text.grammars import GRAMMARS
from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.grammars.refusal import _KEYWORDS
from blazr.text.grammars.tool_call import Maybe, TextUntil, ToolGrammar
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import TOKENIZERS
from tests.support import schemas
from tests.support.constrained import RandomScores, ask, drain, engine_over
from tests.support.seeds import run_seed

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizers"
SOURCES = {
    "cl100k_base": ("vocabulary", "cl100k_base"),
    "stories260k": ("tokenizer.json", str(GOLDEN / "stories260k" / "tokenizer.json")),
    "byte_level": ("tokenizer.json", str(GOLDEN / "byte_level" / "tokenizer.json")),
    "ranks": ("tiktoken", str(GOLDEN / "ranks" / "tiny.tiktoken")),
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "città": {"enum": ["Roma", "Torino"]},
    },
    "required": ["name", "age", "città"],
    "additionalProperties": False,
}
LETTER = '{"name": "look", "arguments": '
CALL = ToolGrammar(
    calls=[
        ["<call>" + LETTER, {"type": "object", "additionalProperties": False}, "}</call>"],
        ["<f=x>", Maybe(("<p=y>", TextUntil("</p>"))), "</f>"],
    ],
    separator="\n",
)
CALL_TEXT = re.compile(
    r"(<call>" + re.escape(LETTER) + r"\{\s*\}\}</call>|<f=x>(<p=y>((?!</p>)[\s\S])*</p>)?</f>)"
)


def is_json(text: str, schema: object) -> bool:
    return validator(schema).is_valid(json.loads(text))


def is_calls(text: str) -> bool:
    return re.fullmatch(f"({CALL_TEXT.pattern}(\n|$))+", text) is not None


# By row: something to ask for, and whether a text is that.
EXAMPLES = {
    "json_object": (True, lambda text: isinstance(json.loads(text), dict)),
    "json_schema": (PERSON, lambda text: is_json(text, PERSON)),
    "regex": (r"[a-z]{2}/[0-9]+\.(é|日本)*", r"[a-z]{2}/[0-9]+\.(é|日本)*"),
    "choice": (["yes", "no", 'l"\n🙂', "yes or no"], None),
    "lark": ('start: "(" start ")" | /[0-9]{1,3}/', r"\(*[0-9]{1,3}\)*"),
    "gbnf": ('root ::= "(" root ")" | [0-9]{1,3}\n', r"\(*[0-9]{1,3}\)*"),
    "tool_call": (CALL, is_calls),
}


def accepts(name: str, text: str) -> bool:
    value, oracle = EXAMPLES[name]
    if oracle is None:
        return text in value
    return bool(re.fullmatch(oracle, text) if isinstance(oracle, str) else oracle(text))


def validator(schema: object) -> jsonschema.protocols.Validator:
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return cls(schema, format_checker=cls.FORMAT_CHECKER)


@cache
def tokenizer_of(source: str) -> Tokenizer:
    kind, name = SOURCES[source]
    return TOKENIZERS[kind](name)


@cache
def liked_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(i for i in range(tokenizer.size) if set(tokenizer.token_bytes(i)) & set(b'"}])1'))


@pytest.fixture(scope="module")
def compilers():
    made = {
        name: GrammarCompiler(t, vocab_size=t.size)
        for name in SOURCES
        for t in [tokenizer_of(name)]
    }
    yield made
    for each in made.values():
        each.close()


def generate(
    constraint, tokenizer: Tokenizer, *, seed: int = 0, **params
) -> tuple[str, FinishReason]:
    """A reply from random scores, with a liking for what ends JSON."""
    model = RandomScores(tokenizer.size, liked_of(tokenizer))
    engine = engine_over(model)
    params = {"max_tokens": 300, "seed": seed, **params}
    ask(engine, constraint, 1, stop_ids=tokenizer.eos_ids, **params)
    outputs = drain(engine)[1, 0]
    assert outputs[-1].error is None
    data = b"".join(tokenizer.token_bytes(t) for output in outputs for t in output.token_ids)
    reason = outputs[-1].finish_reason
    assert reason is not None
    return data.decode("utf-8", "replace"), reason


def test_every_row_has_an_example():
    assert set(EXAMPLES) == set(GRAMMARS)


@pytest.mark.sample
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_reply_that_ends_is_what_was_asked_for(compilers, name, source):
    tokenizer, is_large = tokenizer_of(source), source == "cl100k_base"
    constraint = compilers[source].compile({name: EXAMPLES[name][0]})
    texts = [
        generate(constraint, tokenizer, seed=seed, max_tokens=20 if is_large else 150)
        for seed in range(1 if is_large else 5)
    ]
    whole = [text for text, reason in texts if reason is FinishReason.STOP]
    assert whole or is_large
    for text in whole:
        assert accepts(name, text), text


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_accepted_can_be_written_in_any_tokens(compilers, name):
    """And forced tokens are those of the text, so that walking it token by token meets them."""
    tokenizer, rng = tokenizer_of("byte_level"), random.Random(run_seed(1))
    constraint = compilers["byte_level"].compile({name: EXAMPLES[name][0]})
    text = next(
        text
        for seed in range(20)
        for text, reason in [generate(constraint, tokenizer, seed=seed)]
        if reason is FinishReason.STOP
    )
    state, mask = constraint.fork(), np.zeros(tokenizer.size // 32 + 1, np.int32)
    rest = text.encode()
    while rest:
        state.fill_mask(mask)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        fitting = [
            i for i in bits if i < tokenizer.size and rest.startswith(tokenizer.token_bytes(i))
        ]
        assert fitting, "a text that was generated is not accepted"
        chosen = int(rng.choice(fitting))
        state.accept(chosen)
        rest = rest[len(tokenizer.token_bytes(chosen)) :]
    if not state.is_finished:
        state.fill_mask(mask)
        assert mask[tokenizer.size // 32] >> tokenizer.size % 32 & 1, "it may not end there"


def try_schema(compiler: GrammarCompiler, schema: schemas.Schema, seed: int) -> str:
    """What becomes of a schema: refused with its keyword, or a reply that is valid under it."""
    tokenizer = tokenizer_of("byte_level")
    try:
        constraint = compiler.compile({"json_schema": schema})
    except GrammarError as error:
        named = set(re.findall(r"[$A-Za-z]+", error.message)) & _KEYWORDS
        spelled = json.dumps(schema)
        return "refused" if any(f'"{name}"' in spelled for name in named) else f"unnamed: {error}"
    text, reason = generate(constraint, tokenizer, seed=seed)
    if reason is not FinishReason.STOP:
        return "cut"
    assert [error.message for error in validator(schema).iter_errors(json.loads(text))] == [], text
    return "valid"


def test_a_schema_is_refused_by_keyword_or_kept_to(compilers):
    drawn = schemas.samples(60, seed=7)
    fates = [try_schema(compilers["byte_level"], each, i) for i, each in enumerate(drawn)]
    assert set(fates) <= {"refused", "cut", "valid"}
    assert fates.count("valid") >= 30
    assert 5 <= fates.count("refused") <= 25


@pytest.mark.slow
def test_many_schemas_are_refused_by_keyword_or_kept_to(compilers):
    drawn = schemas.samples(500, seed=8)
    fates = [try_schema(compilers["byte_level"], each, i) for i, each in enumerate(drawn)]
    assert set(fates) <= {"refused", "cut", "valid"}
    assert fates.count("valid") >= 300
