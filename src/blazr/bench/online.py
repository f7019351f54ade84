"""A server that speaks OpenAI's API, asked in token ids and read as it streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter

import httpx2
import msgspec

from blazr.bench.load import Record
from blazr.bench.workload import BenchRequest
from blazr.core.errors import EngineError
from blazr.core.remote import EventReader, auth_headers, root_url

# Ids that every vocabulary has, where a server does not tell how many it has.
COMMON_IDS = 256
# A first token may take long, but not for ever.
_TIMEOUT = httpx2.Timeout(10, read=600)


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None


class _Chunk(msgspec.Struct):
    choices: list[dict[str, object]] = []
    usage: _Usage | None = None
    error: object = None


class _Meta(msgspec.Struct):
    n_vocab: int = COMMON_IDS


class _Card(msgspec.Struct):
    id: str
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


@asynccontextmanager
async def connect(url: str, *, model: str | None, api_key: str) -> AsyncIterator[HttpTarget]:
    """Connect to a server, with or without ``/v1`` in its URL; no model takes its first one.

    Raises:
        ConfigError: The URL is none.
        EngineError: It does not answer, or has no model.
    """
    base = root_url(url) + "/v1"
    async with httpx2.AsyncClient(
        base_url=base,
        headers=auth_headers(api_key),
        timeout=_TIMEOUT,
        limits=httpx2.Limits(max_connections=None),
    ) as client:
        try:
            answer = (await client.get("/models")).raise_for_status()
            cards = msgspec.json.decode(answer.content, type=_Models).data
        except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError) as error:
            raise EngineError(
                f"no list of models at {base[:100]}.", found=str(error)[:200]
            ) from None
        card = next((each for each in cards if model in {None, each.id}), None)
        name = model or (card.id if card else None)
        if name is None:
            raise EngineError("the server has no model.", found=base[:100])
        meta = (card and card.meta) or _Meta()
        yield HttpTarget(client, model=name, vocab_size=meta.n_vocab)


class HttpTarget:
    """A server to measure by its ``/completions``, to which the client is connected."""

    def __init__(self, client: httpx2.AsyncClient, *, model: str, vocab_size: int) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self._client = client
        self._decoder = msgspec.json.Decoder(_Chunk)

    async def run(self, request: BenchRequest, record: Record, *, salt: str) -> None:
        """Stream one completion, greedy and past any end of text.

        Raises:
            EngineError: The server refused, failed or went away.
        """
        body = {
            "model": self.model,
            "prompt": request.prompt_ids,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.cache_anchors:
            body["cache_anchors"] = request.cache_anchors
        try:
            async with self._client.stream("POST", "/completions", json=body) as answer:
                if answer.status_code != 200:
                    detail = (await answer.aread()).decode(errors="replace")[:150]
                    raise EngineError(f"HTTP {answer.status_code}", found=detail)
                reader = EventReader()
                async for piece in answer.aiter_bytes():
                    self._read_events(reader.feed(piece), record)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise EngineError(f"{type(error).__name__}: {str(error)[:100]}") from None
        if not record.token_s:
            raise EngineError("no text came back.", hint="does the model have a vocabulary?")
        record.output_tokens = record.output_tokens or len(record.token_s)

    def stats(self) -> Mapping[str, float]:
        """None: the figures are the server's own."""
        return {}

    def _read_events(self, events: Iterable[bytes], record: Record) -> None:
        now_s = perf_counter()
        for chunk in map(self._decoder.decode, events):
            if chunk.error is not None:
                raise EngineError("the server failed.", found=str(chunk.error)[:150])
            record.token_s += [now_s for choice in chunk.choices if choice.get("text")]
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details or {}
                record.cached_tokens = details.get("cached_tokens") or 0
                record.output_tokens = chunk.usage.completion_tokens
