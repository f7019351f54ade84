"""The official Anthropic client: what goes wrong, is tried again, takes too long or is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import anthropic
import httpx2
import pytest

from blazr.engine.outputs import FinishReason
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, wait_until

HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "default", "max_tokens": 20, "messages": HELLO}
LONG = {**ASKED, "max_tokens": 20_000}  # for more the client wants to stream


def connect(running: Loopback, **more: object) -> AbstractContextManager[anthropic.Anthropic]:
    settings = {"base_url": running.url, "api_key": "none", "max_retries": 0, **more}
    return anthropic.Anthropic(**settings)


@pytest.fixture
def endless() -> Iterator[Loopback]:
    """One that goes on until it is told to stop."""
    with serving(scripted_core(max_seq_len=100_000), keep_alive_s=0.6) as running:
        running.engine.script *= 5000
        yield running
        running.engine.go.set()


def is_idle(running: Loopback) -> bool:
    return running.engine.num_running == 0 and running.state.num_working == 0


def test_a_full_context_is_no_full_reply(model_path: Path) -> None:
    core = load_text_engine(LoadOptions(str(model_path), device="cpu", max_seq_len=32))
    with serving(core) as running, connect(running) as client:
        asked = {**ASKED, "max_tokens": 5000, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**asked, timeout=60)
        full = running.core.info.max_seq_len
        usage = whole.usage
        assert usage.input_tokens + usage.output_tokens == full
        assert whole.stop_reason == "model_context_window_exceeded"
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_message().stop_reason == whole.stop_reason
        with pytest.raises(anthropic.BadRequestError, match=r"is too long: .* > 32 max"):
            client.messages.create(**{**ASKED, "messages": [{**HELLO[0], "content": "a b " * 300}]})


@pytest.mark.parametrize(
    "shown", [{"api_key": "secret"}, {"auth_token": "secret", "api_key": None}]
)
def test_keys_may_be_shown_either_way(shown: dict) -> None:
    with serving(scripted_core(), api_keys=("secret",)) as running, connect(running, **shown) as c:
        assert c.messages.create(**ASKED).content[0].text == SCRIPT
        assert list(c.models.list())


def test_a_wrong_key_is_an_authentication_error() -> None:
    with serving(scripted_core(), api_keys=("secret",)) as running, connect(running) as stranger:
        for call in (
            lambda: stranger.messages.create(**ASKED),
            lambda: stranger.messages.create(**ASKED, stream=True),
            lambda: stranger.messages.count_tokens(model="default", messages=HELLO),
            stranger.models.list,
        ):
            with pytest.raises(anthropic.AuthenticationError) as caught:
                call()
            assert caught.value.type == "authentication_error"


def test_names_of_other_models_are_answered_where_that_is_wished() -> None:
    asked = {**ASKED, "model": "claude-of-tomorrow"}
    with serving(scripted_core(), accept_any_model=True) as running, connect(running) as client:
        assert client.messages.create(**asked).model == "scripted"
        assert client.messages.count_tokens(model="claude-of-tomorrow", messages=HELLO).input_tokens


def test_too_large_a_body_is_refused() -> None:
    with serving(scripted_core(), max_body_bytes=1000) as running, connect(running) as client:
        with pytest.raises(anthropic.ContentTooLargeError) as caught:
            client.messages.create(**{**ASKED, "messages": [{**HELLO[0], "content": "a" * 2000}]})
        assert caught.value.type == "request_too_large"


@pytest.mark.parametrize("streams", [False, True])
def test_a_failure_of_the_engine_is_a_server_error(streams: bool) -> None:
    with serving(scripted_core()) as running, connect(running) as client:
        running.engine.fails_with = "not a number"
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(client.messages.create(**ASKED, stream=streams))
        assert caught.value.type == "api_error"
        assert "not a number" in str(caught.value)


def test_a_stream_that_fails_raises(endless: Loopback) -> None:
    endless.engine.halts_after = 5
    with connect(endless) as client, client.messages.stream(**LONG) as stream:
        events = iter(stream.text_stream)
        assert next(events)
        endless.engine.fails_with = "not a number"
        endless.engine.go.set()
        with pytest.raises(anthropic.APIStatusError, match="not a number"):
            list(events)
    wait_until(lambda: is_idle(endless))


def test_an_engine_that_is_gone_is_overloaded(endless: Loopback) -> None:
    endless.engine.broken = "it fell over"
    with connect(endless) as client:
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**ASKED)
        assert caught.value.status_code == 503
        assert caught.value.type == "overloaded_error"
        assert caught.value.response.headers["retry-after"]


def test_a_full_queue_is_a_rate_limit(endless: Loopback) -> None:
    endless.engine.max_unfinished = 0
    with connect(endless) as client:
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(**ASKED)
        assert caught.value.type == "rate_limit_error"
        assert caught.value.response.headers["retry-after"] == "1"


def test_a_rate_limit_is_tried_again(endless: Loopback) -> None:
    """The client waits as long as the server says, and counts."""
    endless.engine.max_unfinished = 0

    def was_refused() -> bool:
        return 'status="429"' in endless.client.get("/metrics").text

    async def ask() -> anthropic.AsyncAPIResponse:
        async with anthropic.AsyncAnthropic(base_url=endless.url, api_key="x") as client:
            asking = asyncio.create_task(client.messages.with_raw_response.create(**ASKED))
            await asyncio.to_thread(wait_until, was_refused)
            endless.engine.max_unfinished = 9
            return await asking

    raw = asyncio.run(ask())
    assert raw.retries_taken == 1


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with serving(scripted_core()) as gone:
        pass
    with connect(gone) as client, pytest.raises(anthropic.APIConnectionError):
        client.messages.create(**ASKED)


TIMED = [
    lambda c: c.messages.create(**LONG, timeout=0.2),
    lambda c: c.with_options(timeout=0.2).messages.create(**LONG),
    lambda c: c.messages.parse(**LONG, timeout=0.2),
    lambda c: c.beta.messages.create(**LONG, timeout=0.2),
]


@pytest.mark.parametrize("call", TIMED, ids=["create", "options", "parse", "beta"])
def test_a_client_s_timeout_ends_the_work(endless: Loopback, call) -> None:
    endless.engine.go.clear()
    with connect(endless) as client:
        with pytest.raises(anthropic.APITimeoutError):
            call(client)
        wait_until(lambda: is_idle(endless))


def test_a_stream_that_stalls_times_out(endless: Loopback) -> None:
    with connect(endless) as client, client.messages.stream(**LONG, timeout=0.3) as stream:
        events = iter(stream)
        next(events)
        endless.engine.go.clear()
        with pytest.raises(httpx2.ReadTimeout):  # the client lets it through as it is
            list(events)
    wait_until(lambda: is_idle(endless))


def test_the_server_s_own_limit_is_told() -> None:
    with serving(scripted_core()) as running, connect(running) as client:
        running.engine.fails_with = "it took too long"
        running.engine.fails_as = FinishReason.TIMEOUT
        with pytest.raises(anthropic.RequestTimeoutError) as caught:
            client.messages.create(**ASKED)
        assert caught.value.type == "timeout_error"


@pytest.mark.parametrize("streams", [False, True])
def test_a_task_that_is_cancelled_frees_the_engine(endless: Loopback, streams: bool) -> None:
    async def ask() -> None:
        async with anthropic.AsyncAnthropic(base_url=endless.url, api_key="x") as client:

            async def read() -> None:
                reply = await client.messages.create(**LONG, stream=streams)
                if streams:
                    async for _ in reply:
                        pass

            task = asyncio.create_task(read())
            await asyncio.to_thread(wait_until, lambda: endless.engine.num_running == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(ask())
    wait_until(lambda: is_idle(endless))


def test_a_raw_stream_closed_early_frees_the_engine(endless: Loopback) -> None:
    with connect(endless) as client:
        stream = client.messages.create(**LONG, stream=True)
        next(iter(stream))
        stream.close()
        wait_until(lambda: is_idle(endless))
        assert client.messages.count_tokens(model="default", messages=HELLO).input_tokens


def test_streams_at_once_do_not_mix(endless: Loopback) -> None:
    async def ask(n: int) -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=endless.url, api_key="x") as client,
            client.messages.stream(**{**ASKED, "max_tokens": n}) as stream,
        ):
            return await stream.get_final_text()

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(ask(n) for n in range(1, 11)))

    words = SCRIPT.split()
    texts = asyncio.run(all_of_them())
    assert [text.split() for text in texts] == [words[:n] for n in range(1, 11)]
