"""blazr on Ray Serve: ``serve run blazr.ray:app model=path/to/model max_replicas=2``.

The application has two deployments. `Front` takes requests from Ray's proxy; its handle chooses an
`Engine`, a process with the model and all endpoints, by what it has sent each of them (see
`blazr.server.replicas.prefixes`). Ray starts, scales, watches and replaces both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import msgspec
from ray import serve
from ray.exceptions import RayError
from ray.serve import metrics
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from blazr.core.errors import ConfigError
from blazr.llm.options import LoadOptions
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError, openai_error
from blazr.server.middleware import digest_of
from blazr.server.models import Models
from blazr.server.replicas.prefixes import SentPrefixes, block_names
from blazr.server.served import ServedLLM
from blazr.server.sse import DATA

_RUNNING_BLOCKS = 8  # what a reply that is being written costs another, in blocks to read
_HEALTH_S = 5.0  # between two looks at an engine
REPLICA_HEADER = "X-Blazr-Replica"
# what these need is in one process
_NOT_HERE = frozenset(
    {
        "replicas",
        "replica",
        "host",
        "port",
        "health_port",
        "uds",
        "tls_cert",
        "tls_key",
        "files_dir",
    }
)


T = TypeVar("T")


class Scaling(msgspec.Struct, kw_only=True):
    """How many engines there are, and what each takes.

    Args:
        min_replicas: So many at least.
        max_replicas: So many at most; where that is more, Ray scales by load.
        target_requests: Requests that an engine answers at once, before another is started.
        max_requests: Most requests that an engine has at once; others wait in front.
        upscale_s: For how long there must be too many requests before an engine is added.
        downscale_s: For how long there must be few before one goes.
        num_cpus: Processors of an engine, and its threads.
        num_gpus: GPUs of an engine.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: float = 8
    max_requests: int = 256
    upscale_s: float = 30
    downscale_s: float = 600
    num_cpus: float = 1
    num_gpus: float = 0


class PrefixRouter(RequestRouter):
    """Chooses the engine that has the least to read, as `blazr serve --replicas` does."""

    def initialize_state(self) -> None:
        """Begin with nothing sent."""
        self._sent: dict[ReplicaID, SentPrefixes] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The engines, the best one first; Ray takes the first that has room."""
        names = _names_of(pending_request)

        def cost(replica: RunningReplica) -> tuple[int, int]:
            sent = self._sent.setdefault(replica.replica_id, SentPrefixes())
            waiting = self._replica_queue_len_cache.get(replica.replica_id) or 0
            return len(names) - sent.match(names) + _RUNNING_BLOCKS * waiting, len(sent)

        return [[each] for each in sorted(candidate_replicas, key=cost)]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: object,  # noqa: ARG002
    ) -> None:
        """An engine was sent a prompt."""
        self._sent.setdefault(replica_id, SentPrefixes()).add(_names_of(pending_request))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """An engine has gone, and with it what it knew."""
        self._sent.pop(replica_id, None)
        super().on_replica_actor_died(replica_id)


class Begun(NamedTuple):
    """The beginning of an engine's answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Engine:
    """A model and its endpoints, in a process of its own.

    Args:
        options: How the model is loaded.
        config: How its server behaves.
        threads: To compute with.
    """

    def __init__(self, options: LoadOptions, config: ServerConfig, threads: int) -> None:
        import torch

        from blazr.core import log
        from blazr.llm.async_llm import AsyncLLM
        from blazr.llm.load import load_text_engine
        from blazr.server.app import build_app

        log.setup("info")
        torch.set_num_threads(threads)
        core = load_text_engine(options)
        self._models = Models.of(AsyncLLM.of(core), config)
        self._app = build_app(self._models)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._gauges: dict[str, metrics.Gauge] = {}

    async def answer(
        self,
        names: Sequence[bytes],  # noqa: ARG002  (by which it was chosen)
        scope: Scope,
        body: bytes,
    ) -> AsyncIterator[Begun | bytes]:
        """Answer a request: first status and headers, then the body as it comes."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        asked = False

        async def receive() -> Message:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # who leaves has this cancelled
            asked = True
            return {"type": "http.request", "body": body}

        task = asyncio.create_task(self._app(scope, receive, sent.put))
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    name = (REPLICA_HEADER.lower().encode(), self._name.encode())
                    yield Begun(message["status"], [*message["headers"], name])
                elif message.get("body"):
                    yield message["body"]
        finally:
            task.cancel()

    async def check_health(self) -> None:
        """Raise where the engine does not work, and bring Ray's metrics up to date."""
        llms = [each for each in self._models.loaded() if isinstance(each, ServedLLM)]
        for model in llms:
            model.check()
            for name, value in model.llm.core.engine.stats().items():
                if name not in self._gauges:
                    gauge = metrics.Gauge(f"blazr_engine_{name}", tag_keys=("model",))
                    self._gauges[name] = gauge
                self._gauges[name].set(value, {"model": model.name})


class Front:
    """Passes requests on to engines, and their answers back.

    Args:
        engine: The engines.
        config: How their server behaves.
    """

    def __init__(self, engine: DeploymentHandle, config: ServerConfig) -> None:
        self._engines = engine.options(method_name="answer", stream=True)
        self._config = config

    async def __call__(self, request: Request) -> Response:
        """Answer a request; an engine that ends with it is an error that says to retry."""
        try:
            body = await self._read(request)
            answer = self._engines.remote(_names_in(request, body), _scope_of(request), body)
            parts = aiter(answer)
            begun = await anext(parts)
        except HttpError as error:
            return error.response(openai_error)
        except (RayError, StopAsyncIteration, BackPressureError):
            return _lost().response(openai_error)
        response = StreamingResponse(_passed_on(parts, dict(begun.headers)), begun.status)
        response.raw_headers = begun.headers
        return response

    async def _read(self, request: Request) -> bytes:
        limit = self._config.max_body_bytes
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                message = f"the body is longer than {limit} bytes."
                raise HttpError(413, message, code="body_too_large")
        return bytes(body)


async def _passed_on(
    parts: AsyncIterator[bytes], headers: Mapping[bytes, bytes]
) -> AsyncIterator[bytes]:
    """The rest of an answer; a stream whose engine ends has an error as its last event."""
    try:
        async for part in parts:
            yield part
    except RayError:
        if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            raise
        yield DATA.encode(openai_error(_lost())) + DATA.end


def app(settings: Mapping[str, object]) -> serve.Application:
    """Build the application.

    Args:
        settings: Fields of `Scaling`, `LoadOptions` and `ServerConfig`, as text or typed.

    Raises:
        ConfigError: One is none of these, or has no such value.
    """
    scaling = _take(settings, Scaling, Scaling.__struct_fields__)
    options = _take(settings, LoadOptions, [each.name for each in fields(LoadOptions)])
    names = {each.name for each in fields(ServerConfig)} - _NOT_HERE
    config = _take(settings, ServerConfig, names)
    known = {*Scaling.__struct_fields__, *(each.name for each in fields(LoadOptions)), *names}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise ConfigError(
            "a setting is not known.", found=unknown[0][:100], expected=", ".join(sorted(known))
        )
    how_many: dict[str, Any] = {"num_replicas": scaling.min_replicas}
    if scaling.max_replicas > scaling.min_replicas:
        autoscaling = AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=scaling.target_requests,
            upscale_delay_s=scaling.upscale_s,
            downscale_delay_s=scaling.downscale_s,
        )
        how_many = {"autoscaling_config": autoscaling}
    engine = serve.deployment(Engine).options(
        max_ongoing_requests=scaling.max_requests,
        health_check_period_s=_HEALTH_S,
        ray_actor_options={"num_cpus": scaling.num_cpus, "num_gpus": scaling.num_gpus},
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        **how_many,
    )
    front = serve.deployment(Front).options(
        max_ongoing_requests=config.max_connections, ray_actor_options={"num_cpus": 0}
    )
    threads = max(1, int(scaling.num_cpus))
    return front.bind(engine.bind(options, config, threads), config)


def _take(settings: Mapping[str, object], kind: type[T], names: Collection[str]) -> T:
    given = {name: value for name, value in settings.items() if name in names}
    try:
        return msgspec.convert(given, kind, strict=False, dec_hook=lambda of, value: of(value))
    except msgspec.ValidationError as error:
        raise ConfigError("a setting has no such value.", found=str(error)[:200]) from None


def _names_in(request: Request, body: bytes) -> list[bytes]:
    """The names of a prompt's blocks; none where it has no prompt."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        given = msgspec.json.decode(body, type=dict[str, Any])
        key = request.headers.get("authorization", request.headers.get("x-api-key", ""))
        return block_names(digest_of(key).hex(), given)
    return []


def _names_of(request: PendingRequest | None) -> Sequence[bytes]:
    return request.args[0] if request is not None and request.args else ()


def _scope_of(request: Request) -> Scope:
    """What an application looks at of a request."""
    kept = ("type", "http_version", "method", "scheme", "path", "query_string", "headers", "client")
    path = request.scope["path"].encode()
    return {name: request.scope.get(name) for name in kept} | {"raw_path": path, "root_path": ""}


def _lost() -> HttpError:
    return HttpError(
        503,
        "the engine that worked on this has ended; send the request again.",
        code="replica_lost",
        retry_after_s=1,
    )
