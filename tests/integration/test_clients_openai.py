"""The official OpenAI client against a real engine with a tiny model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from blazr.llm.llm import LLM
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Loopback]:
    with serving(load_text_engine(LoadOptions(str(model_path), device="cpu"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").owned_by == "oxidizr"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_completion_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "Once upon", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**asked)
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 12
    parts = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.text for part in parts for c in part.choices) == whole.choices[0].text
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_chat_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hello 👩‍👩‍👧"}]},
    ]
    asked = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    assert whole.usage is not None
    assert len(choice.logprobs.content or []) == whole.usage.completion_tokens
    parts = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(c.delta.content or "" for part in parts for c in part.choices)
    assert text == choice.message.content
    assert parts[-1].choices[0].finish_reason == choice.finish_reason


def test_a_seed_repeats_and_n_differ(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": "a", "temperature": 1.5, "max_tokens": 8, "seed": 5, "n": 3}
    extra = {"top_k": 0, "top_p": 1.0}
    first, second = (client.completions.create(**asked, extra_body=extra).choices for _ in range(2))
    assert [c.text for c in first] == [c.text for c in second]
    assert len({c.text for c in first}) == 3


def test_repeated_prompts_are_cached(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": list(range(200)), "max_tokens": 1}
    client.completions.create(**asked)
    usage = client.completions.create(**asked).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= 64


def test_echoed_logprobs_are_those_of_the_logits(server: Loopback, client: openai.OpenAI) -> None:
    ids = [5, 900, 31, 70000, 8]
    reply = client.completions.create(
        model="tiny", prompt=[ids], max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234
    )
    found = reply.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert len(found.token_logprobs) == len(ids) + 1
    expected = LLM.of(server.core).logits(ids).log_softmax(-1)
    for place, token_id in enumerate(ids[1:]):
        assert found.token_logprobs[place + 1] == pytest.approx(
            expected[place, token_id].item(), abs=1e-4
        )
    # the generated token is the likeliest, and says so to the last bit
    assert max(found.top_logprobs[-1].values()) == found.token_logprobs[-1]


def test_refusals_are_the_client_s_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1] * 300)
    assert caught.value.code == "context_length_exceeded"


def test_many_at_once_get_what_one_alone_gets(server: Loopback, client: openai.OpenAI) -> None:
    prompts = [f"story number {i}" for i in range(12)]
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 10}
    alone = [client.completions.create(prompt=p, **asked).choices[0].text for p in prompts]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as many:
            replies = await asyncio.gather(
                *(many.completions.create(prompt=p, **asked) for p in prompts)
            )
        return [reply.choices[0].text for reply in replies]

    assert asyncio.run(ask()) == alone


def test_a_stream_closed_early_frees_the_engine(server: Loopback, client: openai.OpenAI) -> None:
    def running() -> float:
        return server.core.engine.stats()["num_running"]

    stream = client.completions.create(
        model="tiny", prompt="a", max_tokens=10**6, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: running() == 0 and server.state.num_working == 0)


def test_probabilities_sum_to_one_at_most(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt="a", logprobs=20, max_tokens=3)
    found = reply.choices[0].logprobs
    assert found is not None
    for top in found.top_logprobs or []:
        assert 0 < sum(math.exp(value) for value in top.values()) <= 1 + 1e-6


def test_keys_and_retries() -> None:
    with (
        serving(scripted_core(max_unfinished=1), api_keys=("secret",)) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="wrong") as stranger,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="secret", max_retries=0) as friend,
    ):
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        assert friend.completions.create(model="default", prompt="a").choices[0].text
        with pytest.raises(openai.BadRequestError, match="does not hold so many"):
            friend.completions.create(model="default", prompt="a", n=2)
        running.engine.max_unfinished = 0
        with pytest.raises(openai.RateLimitError) as caught:
            friend.completions.create(model="default", prompt="a")
        assert caught.value.response.headers["retry-after"] == "1"
