"""The official Anthropic client against a real engine with a tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest

from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until

HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}  # the client has no argument for it


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Loopback]:
    with serving(load_text_engine(LoadOptions(str(model_path), device="cpu"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Loopback) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as opened:
        yield opened


ASKS = [
    {"messages": HELLO},
    {"messages": HELLO, "system": "be kind"},
    {"messages": HELLO, "system": [{"type": "text", "text": "be kind"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi 👩‍👩‍👧"}]}]},
    {"messages": [*HELLO, {"role": "assistant", "content": "Well,"}]},
    {"messages": [*HELLO, {"role": "assistant", "content": "yes"}, *HELLO]},
    {"messages": HELLO, "stop_sequences": ["a", "e"]},
    {"messages": HELLO, "stop_sequences": ["never said"]},
    {"messages": HELLO, "extra_body": {"temperature": 0, "top_k": 3}},
    {"messages": HELLO, "extra_body": {"temperature": 0, "top_p": 0.5}},
    {"messages": HELLO, "metadata": {"user_id": "u"}},
    {"messages": HELLO, "thinking": {"type": "disabled"}},
    {"messages": HELLO, "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    {"messages": HELLO, "max_tokens": 1},
]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: str(ask)[:60])
def test_whole_and_streamed_are_the_same(client: anthropic.Anthropic, ask: dict) -> None:
    asked = {"model": "tiny", "max_tokens": 12, "extra_body": GREEDY, **ask}
    whole = client.messages.create(**asked)
    assert whole.role == "assistant"
    assert whole.usage.output_tokens <= 12
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content)
    assert [block.text for block in final.content] == [block.text for block in whole.content]
    assert final.stop_reason == whole.stop_reason
    assert final.stop_sequence == whole.stop_sequence
    assert final.usage.output_tokens == whole.usage.output_tokens
    raw = list(client.messages.create(**asked, stream=True))
    assert (raw[0].type, raw[-1].type) == ("message_start", "message_stop")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_tool_is_used(client: anthropic.Anthropic, choice: dict) -> None:
    days = {"enum": ["today", "tomorrow"]}
    schema = {"type": "object", "properties": {"day": days}, "required": ["day"]}
    asked = {
        "model": "tiny",
        "max_tokens": 100,
        "messages": HELLO,
        "tools": [{"name": "weather", "input_schema": {**schema, "additionalProperties": False}}],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "extra_body": GREEDY,
    }
    whole = client.messages.create(**asked)
    (block,) = whole.content
    assert (block.type, block.name, whole.stop_reason) == ("tool_use", "weather", "tool_use")
    assert block.input["day"] in {"today", "tomorrow"}
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().content[0].input == block.input


@pytest.mark.parametrize("ask", ASKS[:6], ids=lambda ask: str(ask)[:60])
def test_counting(client: anthropic.Anthropic, ask: dict) -> None:
    counted = client.messages.count_tokens(model="tiny", **ask).input_tokens
    usage = client.messages.create(model="tiny", max_tokens=1, **ask).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_repeated_prompts_are_read_from_the_cache(client: anthropic.Anthropic) -> None:
    asked = {"model": "tiny", "max_tokens": 1}
    messages = [{"role": "user", "content": "once upon a time " * 30}]
    client.messages.create(messages=messages, **asked)
    usage = client.messages.create(messages=messages, **asked).usage
    assert (usage.cache_read_input_tokens or 0) >= 64
    assert usage.input_tokens < 130


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        ({"model": "claude-x"}, anthropic.NotFoundError),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "a" * 9000}]}, anthropic.BadRequestError),
        ({"stop_sequences": ["x"] * 17}, anthropic.BadRequestError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
    ],
)
def test_refusals_are_the_client_s_exceptions(
    client: anthropic.Anthropic, ask: dict, error: type[anthropic.APIStatusError]
) -> None:
    asked = {"model": "tiny", "max_tokens": 5, "messages": HELLO, **ask}
    for streams in (False, True):
        with pytest.raises(error) as caught:
            client.messages.create(**asked, stream=streams)
        assert caught.value.body["type"] == "error"


def test_a_stream_closed_early_frees_the_engine(
    server: Loopback, client: anthropic.Anthropic
) -> None:
    with client.messages.stream(model="tiny", max_tokens=200, messages=HELLO) as stream:
        next(iter(stream))
    wait_until(lambda: server.core.engine.stats()["num_running"] == 0)
    wait_until(lambda: server.state.num_working == 0)


def test_many_at_once_get_what_one_alone_gets(
    server: Loopback, client: anthropic.Anthropic
) -> None:
    asked = {"model": "tiny", "extra_body": GREEDY, "max_tokens": 8}
    chats = [[{"role": "user", "content": f"story number {i}"}] for i in range(8)]
    alone = [client.messages.create(messages=chat, **asked).content for chat in chats]

    async def ask() -> list[list]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as many:
            replies = await asyncio.gather(
                *(many.messages.create(messages=chat, **asked) for chat in chats)
            )
        return [reply.content for reply in replies]

    assert asyncio.run(ask()) == alone
