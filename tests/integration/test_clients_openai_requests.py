"""The official OpenAI client: every kind of request, whole and streamed, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from blazr.llm.llm import LLM
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Loopback]:
    options = LoadOptions(str(model_path), device="cpu", memory="24MiB", max_running=8)
    with serving(load_text_engine(options)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


COMPLETIONS = [
    {"prompt": "Once"},
    {"prompt": ["Once", "upon a"]},
    {"prompt": [5, 6, 7]},
    {"prompt": [[5, 6], [7]], "n": 2},
    {"prompt": "Once", "echo": True},
    {"prompt": "Once", "stop": ["a", "e"]},
    {"prompt": "Once", "logit_bias": {"300": 100}},
    {"prompt": "Once", "seed": 3, "temperature": 1.0},
    {"prompt": "Once", "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"prompt": "Once", "logprobs": 2},
    {"prompt": "Once", "suffix": "a time"},
]
CHATS = [
    {"messages": HELLO},
    {"messages": [{"role": "developer", "content": "be kind"}, *HELLO]},
    {"messages": HELLO, "stop": "e"},
    {"messages": HELLO, "n": 2, "seed": 1, "temperature": 1.0},
    {"messages": HELLO, "max_completion_tokens": 3},
    {"messages": HELLO, "tools": [TOOL], "tool_choice": "none"},
    {"messages": HELLO, "reasoning_effort": "low"},
    {"messages": HELLO, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    {
        "messages": [*HELLO, {"role": "assistant", "content": "Well,"}],
        "extra_body": {"continue_final_message": True, "add_generation_prompt": False},
    },
]
RESPONSES = [
    {"input": "hello"},
    {"input": HELLO},
    {"input": "hello", "instructions": "be kind"},
    {"input": "hello", "max_output_tokens": 3},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
    {"input": "hello", "reasoning": {"effort": "low"}},
]


@pytest.mark.parametrize("ask", COMPLETIONS, ids=lambda ask: str(ask)[:60])
def test_completions(client: openai.OpenAI, ask: dict) -> None:
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 8, **ask}
    whole = client.completions.create(**asked)
    texts = [""] * len(whole.choices)
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("ask", CHATS, ids=lambda ask: str(ask)[:60])
def test_chats(client: openai.OpenAI, ask: dict) -> None:
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 8, **ask}
    whole = client.chat.completions.create(**asked)
    texts, ends = [""] * len(whole.choices), {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}


@pytest.mark.parametrize("ask", RESPONSES, ids=lambda ask: str(ask)[:60])
def test_responses(client: openai.OpenAI, ask: dict) -> None:
    asked = {"model": "tiny", "temperature": 0, "max_output_tokens": 8, **ask}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    final = events[-1].response
    assert text == final.output_text == whole.output_text
    assert final.status == whole.status
    found = client.responses.retrieve(whole.id)
    assert found.output_text == whole.output_text
    assert client.responses.input_tokens.count(
        model="tiny", **{k: v for k, v in ask.items() if k in {"input", "instructions"}}
    ).input_tokens == (whole.usage.input_tokens if whole.usage else None)


def test_responses_go_on_and_are_deleted(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "temperature": 0, "max_output_tokens": 4}
    first = client.responses.create(input="hello", **asked)
    second = client.responses.create(input="and?", previous_response_id=first.id, **asked)
    assert second.usage.input_tokens > first.usage.total_tokens
    assert client.responses.input_items.list(first.id).data[0].content[0].text == "hello"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="and?", previous_response_id=first.id, **asked)


def test_responses_in_the_background_are_followed(client: openai.OpenAI) -> None:
    asked = {"model": "default", "input": "hello", "temperature": 0, "max_output_tokens": 20}
    found = list(client.responses.create(**asked, background=True, stream=True))
    assert [each.sequence_number for each in found] == list(range(len(found)))
    final = found[-1].response
    assert client.responses.retrieve(final.id).output_text == final.output_text
    half = len(found) // 2
    rest = list(client.responses.retrieve(final.id, stream=True, starting_after=half - 1))
    assert rest == found[half:]
    with client.responses.stream(response_id=final.id) as stream:
        assert [each.type for each in stream] == [each.type for each in found]


def test_responses_in_the_background(client: openai.OpenAI, server: Loopback) -> None:
    asked = {"model": "tiny", "input": "hello", "max_output_tokens": 200}
    running = client.responses.create(background=True, **asked)
    assert running.status == "in_progress"
    assert client.responses.cancel(running.id).status in {"cancelled", "completed", "incomplete"}
    wait_until(lambda: server.core.engine.stats()["num_running"] == 0)


@pytest.mark.parametrize("given", ["a b", ["a b", "c"], [5, 6], [[5, 6], [7]]])
def test_embeddings(client: openai.OpenAI, given: object) -> None:
    asked = {"model": "tiny", "input": given}
    packed = client.embeddings.create(**asked).data  # base64 unless told otherwise
    plain = client.embeddings.create(**asked, encoding_format="float").data
    for one, other in zip(packed, plain, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
        assert math.fsum(x * x for x in one.embedding) == pytest.approx(1, abs=1e-5)
    short = client.embeddings.create(**asked, dimensions=4).data
    assert len(short[0].embedding) == 4


def test_embeddings_do_not_depend_on_their_neighbours(client: openai.OpenAI) -> None:
    texts = [f"text number {i} " * (i + 1) for i in range(12)]
    together = client.embeddings.create(model="tiny", input=texts).data
    for text, each in zip(texts, together, strict=True):
        (alone,) = client.embeddings.create(model="tiny", input=text).data
        assert alone.embedding == pytest.approx(each.embedding, abs=1e-5)


def test_decisions(client: openai.OpenAI) -> None:
    reply = client.decisions.create(
        model="tiny",
        input="I was charged twice",
        questions=[
            {"type": "predicate", "instructions": "It is about money.", "name": "money"},
            {
                "type": "choice",
                "instructions": "Who?",
                "choices": [{"value": "billing"}, {"value": False}],
            },
            {
                "type": "score",
                "instructions": "How bad?",
                "levels": [{"label": "low"}, {"label": "high"}],
            },
        ],
    )
    predicate, choice, score = reply.answers
    assert 0 <= predicate.probability <= 1
    assert choice.choice in {"billing", False}
    assert 0 <= score.score <= 1


def test_many_answers_to_one_context_read_it_once(server: Loopback, client: openai.OpenAI) -> None:
    """What evaluation harnesses send: log-probabilities of answers after a shared context."""
    context = [i * 7 % 1000 for i in range(150)]
    prompts = [[*context, *range(2000 + 10 * n, 2003 + n + 10 * n)] for n in range(4)]
    asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
    before = server.core.engine.stats()["computed_tokens"]
    reply = client.completions.create(model="tiny", prompt=prompts, **asked)
    computed = server.core.engine.stats()["computed_tokens"] - before
    logits = LLM.of(server.core).logits
    for prompt, choice in zip(prompts, reply.choices, strict=True):
        found = choice.logprobs
        expected = logits(prompt).log_softmax(-1)
        assert found.token_logprobs[0] is None
        assert len(found.token_logprobs) == len(prompt) + 1
        for place, token_id in enumerate(prompt[1:]):
            value = float(expected[place, token_id])
            assert found.token_logprobs[place + 1] == pytest.approx(value, abs=1e-4)
            is_greedy = max(found.top_logprobs[place + 1].values()) == value
            assert is_greedy == (int(expected[place].argmax()) == token_id)
    # all of them whole would be 4 times the context
    assert computed <= len(context) + sum(len(prompt) - 64 for prompt in prompts[1:]) + 40


PARAMETERS = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}},
    "required": ["day"],
    "additionalProperties": False,
}


class Forecast(BaseModel):
    day: Literal["today", "tomorrow"]
    is_sunny: bool


def test_a_forced_call_comes_whole_and_streamed(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        asked = {
            "model": "tiny",
            "messages": HELLO,
            "tools": [tool],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 100,
        }
        (whole,) = client.chat.completions.create(**asked).choices
        assert whole.finish_reason == "tool_calls"
        (call,) = whole.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["day"] in {"today", "tomorrow"}
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion().choices[0].message
        assert final.tool_calls[0].function.arguments == call.function.arguments


def test_parse(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "temperature": 0}
    chat = client.chat.completions.parse(
        messages=HELLO, response_format=Forecast, max_tokens=100, **asked
    )
    assert isinstance(chat.choices[0].message.parsed, Forecast)
    response = client.responses.parse(
        input="hello", text_format=Forecast, max_output_tokens=100, **asked
    )
    assert isinstance(response.output_parsed, Forecast)


def test_a_forced_call_in_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny",
        input="hello",
        tools=[{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=100,
        temperature=0,
    )
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments)["day"] in {"today", "tomorrow"}


def test_best_of_is_the_likeliest(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "a", "temperature": 1.5, "max_tokens": 5, "seed": 2}
    extra = {"top_k": 0, "top_p": 1.0}
    many = client.completions.create(**asked, n=6, logprobs=0, extra_body=extra).choices
    best = client.completions.create(**asked, n=1, best_of=6, extra_body=extra).choices

    def mean(choice) -> float:
        values = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    assert best[0].text == max(many, key=mean).text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.completions.create(model="gpt", prompt="a"), openai.NotFoundError),
        (lambda c: c.chat.completions.create(model="gpt", messages=HELLO), openai.NotFoundError),
        (lambda c: c.embeddings.create(model="gpt", input="a"), openai.NotFoundError),
        (lambda c: c.embeddings.create(model="tiny", input=[10**6]), openai.BadRequestError),
        (lambda c: c.embeddings.create(model="tiny", input=""), openai.BadRequestError),
        (lambda c: c.responses.create(model="gpt", input="a"), openai.NotFoundError),
        (lambda c: c.responses.create(model="tiny", input=[]), openai.BadRequestError),
        (lambda c: c.responses.retrieve("resp_no"), openai.NotFoundError),
        (lambda c: c.responses.cancel("resp_no"), openai.NotFoundError),
        (lambda c: c.chat.completions.create(model="tiny", messages=[]), openai.BadRequestError),
        (
            lambda c: c.images.generate(model="tiny", prompt="a cat"),
            openai.InternalServerError,
        ),
        (
            lambda c: c.audio.speech.create(model="tiny", input="a", voice="alloy"),
            openai.InternalServerError,
        ),
        (
            lambda c: c.audio.transcriptions.create(model="tiny", file=("a.wav", b"x")),
            openai.InternalServerError,
        ),
    ],
)
def test_refusals_are_the_client_s_exceptions(client: openai.OpenAI, call, error: type) -> None:
    with pytest.raises(error) as caught:
        call(client)
    assert caught.value.body["message"]


def test_a_full_queue_is_tried_again() -> None:
    with serving(scripted_core(max_unfinished=1)) as running:
        running.engine.go.clear()

        async def both() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as many:
                asked = {"model": "default", "messages": HELLO, "max_tokens": 5}
                tasks = [
                    asyncio.create_task(many.chat.completions.create(**asked)) for _ in range(2)
                ]
                await asyncio.sleep(0.3)
                running.engine.go.set()
                return [reply.choices[0].message.content for reply in await asyncio.gather(*tasks)]

        assert asyncio.run(both()) == [" one two three four five"] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.responses.create(model="default", input="a", timeout=0.2),
        lambda c: c.embeddings.create(model="default", input="a", timeout=0.2),
        lambda c: c.completions.create(model="default", prompt="a", timeout=0.2),
    ],
)
def test_a_client_s_timeout_ends_the_work(call) -> None:
    with (
        serving(scripted_core()) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client,
    ):
        running.engine.go.clear()
        with pytest.raises(openai.APITimeoutError):
            call(client)
        wait_until(lambda: running.engine.num_running == 0)
        running.engine.go.set()
