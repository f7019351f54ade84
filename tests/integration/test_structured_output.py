"""Structured output through the Python API, on the built-in model."""

from __future__ import annotations

import asyncio
import json

import pytest

from blazr import LLM, AsyncLLM, SamplingParams
from blazr.core.errors import GrammarError

CAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "lives": {"type": "integer", "minimum": 1, "maximum": 9},
        "colours": {"type": "array", "items": {"enum": ["black", "white"]}, "maxItems": 2},
    },
    "required": ["name", "lives", "colours"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm():
    with LLM() as llm:
        yield llm


def test_json_is_what_the_schema_says(llm):
    params = SamplingParams(seed=1, max_tokens=200, n=4, grammar={"json_schema": CAT})
    replies = llm.generate("Once there was a cat. In JSON:", params)[0].outputs
    assert [reply.finish_reason for reply in replies] == ["stop"] * 4
    cats = [json.loads(reply.text) for reply in replies]
    assert all(1 <= cat["lives"] <= 9 and list(cat) == list(CAT["properties"]) for cat in cats)
    assert len({reply.text for reply in replies}) > 1


def test_forced_tokens_are_as_if_drawn(llm):
    params = {"temperature": 0.7, "seed": 3, "max_tokens": 150, "grammar": {"json_schema": CAT}}
    (at_once,) = llm.generate("A cat:", SamplingParams(**params))
    (one_by_one,) = llm.generate("A cat:", SamplingParams(**params, logprobs=2))
    assert at_once.token_ids == one_by_one.token_ids
    assert len(one_by_one.logprobs or ()) == len(one_by_one.token_ids)


def test_a_reply_without_a_grammar_is_the_same_beside_one_with(llm):
    plain = SamplingParams(temperature=0, max_tokens=12)
    (alone,) = llm.generate("The old king", plain)

    async def both():
        shaped = SamplingParams(temperature=0, max_tokens=40, grammar={"json_object": True})
        async with AsyncLLM() as other:
            jobs = other.generate("The old king", plain), other.generate("x", shaped)
            return await asyncio.gather(*jobs)

    (together,), _ = asyncio.run(both())
    assert together.token_ids == alone.token_ids


def test_what_cannot_be_enforced_is_refused_before_anything_runs(llm):
    with pytest.raises(GrammarError, match="uniqueItems"):
        llm.generate("x", SamplingParams(grammar={"json_schema": {"uniqueItems": True}}))


def test_64_requests_at_once_share_one_grammar():
    async def main() -> list[str]:
        params = SamplingParams(temperature=1, max_tokens=8, grammar={"choice": ["yes", "no"]})
        async with AsyncLLM() as llm:
            replies = await asyncio.gather(*(llm.generate("Is it?", params) for _ in range(64)))
            assert len(llm.core.grammars._cache) == 1
        return [reply.text for (reply,) in replies]

    texts = asyncio.run(main())
    assert len(texts) == 64
    assert set(texts) <= {"yes", "no"}
