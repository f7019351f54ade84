"""Endpoints: a row of ROUTES, what a request brings its handler, and the ASGI application."""

from __future__ import annotations

import asyncio
import re
import uuid
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.core import garbage
from blazr.core.errors import RequestError
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.text_engine import MAX_IMAGES
from blazr.pipelines.kinds import COMPLETION
from blazr.server.config import LARGE_BODY_BYTES, ServerConfig
from blazr.server.errors import ErrorShape, HttpError, clean, openai_error
from blazr.server.foreign_fields import name_as_sent, refuse_foreign
from blazr.server.form import decode_form
from blazr.server.media import fetch_media, named_media
from blazr.server.models import Models, untagged
from blazr.server.replica_ids import id_of
from blazr.server.served import ServedLLM, ServedModel, ServedPipeline
from blazr.server.sse import DATA, Framing, Stream
from blazr.server.state import ServerState

if TYPE_CHECKING:
    from blazr.pipelines.pipeline import Pipeline

FORWARDED_PROTO = "x-forwarded-proto"
MAX_JSON_DEPTH = 64
# Objects, arrays and members of objects in one body; numbers and strings in arrays are not counted.
MAX_JSON_VALUES = 200_000
# Bodies above LARGE_BODY_BYTES are decoded and translated here, while the event loop serves others.
# One thread: several would take turns at the GIL with the event loop, which then waits for longer.
_worker = ThreadPoolExecutor(1, thread_name_prefix="blazr-large-bodies")
# Types of decoded JSON that hold no other values.
_LEAVES = frozenset({int, float, str, bool, NoneType})

# Fields of the bodies that ask for a reply, of which each has one.
_SAMPLING = frozenset({"temperature", "options", "parameters"})

_FIELD = re.compile(r"(?:at|in) `\$\.(\w+)")
_LONG_VALUE = re.compile(r"^(Invalid enum value '.{60}).+('(?: - at .*)?)$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`$")  # of the body itself

Body_co = TypeVar("Body_co", covariant=True)
R = TypeVar("R")
W = TypeVar("W")
E = TypeVar("E", bound=msgspec.Struct)

# What a handler that can stream returns: one whole value, or a stream of events.
Reply: TypeAlias = W | Stream[E]
# Everything a handler may return; what is no `Response` is sent as JSON.
Answer = Response | msgspec.Struct | Sequence[object] | Mapping[str, Any]


class Scheduling(TypedDict):
    """Fields of a `GenerationRequest` that say when it runs and what it shares."""

    cache_salt: str
    client: tuple[str, ...]
    cache_anchors: tuple[int, ...]
    adapter: str | None
    priority: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Body_co]):
    """One request, read and decoded.

    Args:
        body: The decoded body, or the query of a request without one.
        models: The server's models.
        served: The model it is for; None for an endpoint that needs none.
        path: The parameters in its path.
        framing: How the events of its stream become bytes.
        tenant: Names the API key it came with; empty without keys.
        is_operator: Whether it came with an operator's key, or there are none.
        host: How the client has reached this server: a name and perhaps a port.
        request_id: Its ``X-Request-Id``.
        id: A fresh id, which the id of its answer ends with.
        base_url: Of the server, as the client has asked for it; it ends with a slash.
        facts: What the access log and the trace say of it besides.
        headers: Headers of its answer; the handler adds to them.
        is_large: Whether its body has more than `LARGE_BODY_BYTES`.
    """

    body: Body_co
    models: Models
    served: ServedModel | None = None
    path: Mapping[str, str]
    framing: Framing = DATA
    tenant: str = ""
    is_operator: bool = True
    host: str = ""
    request_id: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    base_url: str = "/"
    facts: dict[str, str | int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    is_large: bool = False

    @property
    def model(self) -> ServedModel:
        """The model it is for."""
        assert self.served is not None, "this endpoint's row does not say that it needs a model"
        return self.served

    @property
    def name(self) -> str:
        """What clients call the model that answers: the adapter, where it asks for one."""
        model = self.model
        return (self.adapter if isinstance(model, ServedLLM) else None) or model.name

    @property
    def language_model(self) -> ServedLLM:
        """The model it is for, where blazr runs it."""
        return cast("ServedLLM", self.model)  # `Models.using` chose it by what the row needs

    @property
    def llm(self) -> AsyncLLM:
        """The language model it is for."""
        return self.language_model.llm

    @property
    def pipeline(self) -> Pipeline:
        """The model it is for, where another library runs it."""
        return cast("ServedPipeline", self.model).pipeline

    @property
    def state(self) -> ServerState:
        """What the server knows about itself."""
        return self.models.state

    @property
    def adapter(self) -> str | None:
        """The adapter that it asks for, as ``adapter`` or as its model; None without one."""
        known = self.llm.core.adapters.by_name
        adapter = getattr(self.body, "adapter", None)
        if adapter:
            return untagged(adapter, known) or adapter
        return untagged(getattr(self.body, "model", None) or "", known)

    async def translate(self, work: Callable[[], R]) -> R:
        """Do what takes time in proportion to the body; for a large one on a worker thread."""
        return await run_in_worker_if(self.is_large, work)

    def scheduling(self) -> Scheduling:
        """When a generation request runs, by which adapter, and with whom it shares prefixes.

        It is what the body's fields say, where it has them. A client's salt divides its key's
        prefixes further; it never reaches another key's.
        """
        salt = getattr(self.body, "cache_salt", None)
        longest_s = self.model.config.request_timeout_s
        return {
            # a key's name is hexadecimal, so no salt can turn one into another's
            "cache_salt": f"{self.tenant}/{salt}" if salt else self.tenant,
            "client": (self.tenant, self.id) if self.state.knows_clients else (self.id,),
            "cache_anchors": tuple(getattr(self.body, "cache_anchors", None) or ()),
            "adapter": self.adapter,
            "priority": getattr(self.body, "priority", None) or 0,
            "timeout_s": min(getattr(self.body, "timeout", None) or longest_s, longest_s),
        }


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the ROUTES table.

    Args:
        method: ``"GET"``, ``"POST"`` or ``"DELETE"``.
        path: The path, with parameters in Starlette's syntax.
        handler: Takes a `Call` and returns the answer. Its annotations are the schemas: ``Call[B]``
            decodes the body to B, or the query where there is no body, and ``Reply[W, E]`` answers
            with a W or streams events E.
        is_open: Whether it is answered without a key, and while the server stops.
        needs_model: Whether it waits for a model, which the body's ``model`` or else the query's
            names; None means that it does if it has a body.
        is_command: Whether it is an operator's: its body may be left out, or stand in the query,
            and it needs an operator's key, so that nobody may where there are no keys.
        needs_operator: Whether it needs an operator's key where there are keys; without any,
            everybody may.
        capability: What its model has to be able to do; None where that is of no account.
        is_form: Whether its body is a form with a file (``multipart/form-data``), and no JSON.
        is_in_front: Whether the process in front of replicas answers it, and none of them.
        error: How its errors are written.
        framing: How the events of its stream become bytes.
        body: Type of the body, read from the handler; None where there is none.
        reply: Type of the whole answer, read from the handler; None where it only streams, or
            answers with something that is no JSON.
        media_types: What the whole answer can be besides JSON.
        event: Type of a stream's events, read from the handler; None where it does not stream.
    """

    method: str
    path: str
    handler: Callable[[Call[Any]], Awaitable[Answer]]
    is_open: bool = False
    needs_model: bool | None = None
    is_command: bool = False
    needs_operator: bool = False
    capability: str | None = COMPLETION
    is_form: bool = False
    is_in_front: bool = False
    error: ErrorShape = openai_error
    framing: Framing = DATA
    body: type[msgspec.Struct] | None = field(init=False)
    reply: Any = field(init=False)
    media_types: tuple[str, ...] = field(init=False)
    event: Any = field(init=False)

    def __post_init__(self) -> None:
        hints = get_type_hints(self.handler)
        answer = hints.pop("return", None)
        if answer is None or len(hints) != 1 or get_origin(*hints.values()) is not Call:
            name = getattr(self.handler, "__qualname__", repr(self.handler))
            raise TypeError(f"{name} needs annotations: (call: Call[Body]) -> Reply, a Struct")
        (call,) = hints.values()
        (body,) = get_args(call)
        is_union = get_origin(answer) in {Union, UnionType}
        choices = get_args(answer) if is_union else (answer,)
        events = [get_args(each)[0] for each in choices if get_origin(each) is Stream]
        wholes = [each for each in choices if get_origin(each) is not Stream]
        # what can be text or JSON is described as both
        texts = [each for each in wholes if isinstance(each, type) and issubclass(each, Response)]
        media_types = tuple(each.media_type or "text/plain" for each in texts)
        object.__setattr__(self, "media_types", media_types)
        wholes = [each for each in wholes if each not in texts] or wholes
        object.__setattr__(self, "body", None if body is NoneType else body)
        object.__setattr__(self, "reply", Union[tuple(wholes)] if wholes else None)  # noqa: UP007
        object.__setattr__(self, "event", events[0] if events else None)

    @property
    def is_page(self) -> bool:
        """Whether it is no part of the API: a page, or a refusal."""
        return self.reply in {Response, NoReturn}


class Endpoint:
    """A route as an ASGI application."""

    def __init__(self, route: Route, models: Models) -> None:
        self._route = route
        self._models = models
        has_body = route.method == "POST" and route.body is not None
        self._decoder = msgspec.json.Decoder(route.body) if has_body else None
        self._needs_model = has_body if route.needs_model is None else route.needs_model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Errors are raised; the middleware renders them."""
        with self._models.state.bodies.hold() as grow:
            await self._handle(scope, receive, send, grow)

    async def _handle(
        self, scope: Scope, receive: Receive, send: Send, grow: Callable[[int], None]
    ) -> None:
        state = self._models.state
        connection = HTTPConnection(scope)
        body: msgspec.Struct | None = None
        num_bytes = 0
        is_large = False
        is_command = self._route.is_command
        if self._decoder is not None:
            raw = await read_body(scope, receive, state.config, grow)
            raw = raw or b"{}" if is_command else raw
            num_bytes = len(raw)
            is_large = num_bytes > LARGE_BODY_BYTES
            body = await self._decode(connection, raw, is_large=is_large)
            del raw  # a reply takes long
            if is_command:
                # what the body leaves out may stand in the query
                asked = _decode_query(type(body), connection.query_params)
                left_out = [x for x in body.__struct_fields__ if getattr(body, x) is None]
                given = {name: getattr(asked, name) for name in left_out}
                body = msgspec.structs.replace(body, **given)
        elif self._route.body is not None:
            body = _decode_query(self._route.body, connection.query_params)
        if not self._needs_model:
            response = await self._answer(scope, body, is_large=is_large)
            await run_until_disconnect(receive, response(scope, receive, send))
            return
        body, name = _with_model(body, connection.query_params.get("model"))

        async def work() -> None:
            async with self._models.using(name, self._route.capability) as model:
                if isinstance(model, ServedPipeline) and getattr(body, "adapter", None):
                    raise RequestError("this model has no adapters.", param="adapter")
                try:
                    await self._fetch_media(body, model, lambda more: grow(num_bytes + more))
                    response = await self._answer(scope, body, model, is_large=is_large)
                except RequestError as error:
                    name_as_sent(error, body)
                    raise
                await response(scope, receive, send)

        with working(state):
            await run_until_disconnect(receive, work())

    async def _decode(
        self, connection: HTTPConnection, raw: bytes, *, is_large: bool
    ) -> msgspec.Struct:
        assert self._decoder is not None
        if not self._route.is_form:
            return await run_in_worker_if(is_large, partial(_decode, self._decoder, raw))
        assert self._route.body is not None
        try:
            return await decode_form(connection.headers, raw, self._route.body)
        except msgspec.ValidationError as error:
            raise _invalid_value(error, self._route.body) from None

    async def _fetch_media(
        self, body: object, model: ServedModel, grow: Callable[[int], None]
    ) -> None:
        """Fetch the images that a body names by URL, where that is allowed."""
        state = self._models.state
        if state.media is None or self._route.capability != COMPLETION:
            return
        if cast("ServedLLM", model).llm.core.reads_images:
            most_bytes = state.config.max_body_bytes
            await fetch_media(
                body, state.media, most_images=MAX_IMAGES, most_bytes=most_bytes, grow=grow
            )
        elif any(named_media(body)):
            raise RequestError("this model reads only text.", param="messages", found="an image")

    async def _answer(
        self, scope: Scope, body: object, model: ServedModel | None = None, *, is_large: bool
    ) -> Response:
        config = self._models.state.config
        number, fresh = config.replica, uuid.uuid4().hex
        call = Call(
            body=body,
            models=self._models,
            served=model,
            path=scope.get("path_params", {}),
            framing=self._route.framing,
            tenant=scope.get("tenant", ""),
            is_operator=scope.get("is_operator", True),
            host=HTTPConnection(scope).headers.get("host", ""),
            request_id=scope.get("request_id", ""),
            id=fresh if number is None else id_of(number, fresh),
            base_url=_base_url(HTTPConnection(scope), config.root_path),
            facts=scope.setdefault("facts", {}),
            is_large=is_large,
        )
        answer = await self._route.handler(call)
        if isinstance(answer, Response):
            return answer
        content = msgspec.json.encode(answer)  # NaN and infinities become null
        return Response(content, headers=call.headers, media_type="application/json")


def _base_url(connection: HTTPConnection, root_path: str) -> str:
    """The server's address as the client has it.

    What is before the server says by which scheme it was asked. No client is trusted with that: one
    that says so itself only gets other addresses.
    """
    url = connection.base_url
    said = connection.headers.get(FORWARDED_PROTO, "").partition(",")[0].strip().lower()
    if said in {"http", "https"}:
        url = url.replace(scheme=said)
    return f"{str(url).rstrip('/')}{root_path}/"


@contextmanager
def working(state: ServerState) -> Iterator[None]:
    """Count a request as running, so that a stopping server waits for it."""
    state.num_working += 1
    try:
        yield
    finally:
        state.num_working -= 1


async def run_in_worker_if(is_large: bool, work: Callable[[], R]) -> R:  # noqa: FBT001
    """Run what takes time in proportion to a body: on a worker thread if that is large."""
    if not is_large:
        return work()

    def run() -> R:
        with garbage.collector_paused():
            return work()

    return await asyncio.get_running_loop().run_in_executor(_worker, run)


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> msgspec.Struct:
    """Decode a JSON body.

    Raises:
        HttpError: 400, saying what is wrong with it and where.
    """
    raw = raw.removeprefix(BOM_UTF8)  # as Windows' tools write it
    try:
        if not raw:
            raise HttpError(400, "the body is empty: send JSON.", code="invalid_json")
        raw.decode()  # the decoder skips unknown fields without looking at their bytes
        body: msgspec.Struct = decoder.decode(raw)
        if not _SAMPLING.isdisjoint(body.__struct_fields__):
            refuse_foreign(raw, body)
    except UnicodeDecodeError:
        raise HttpError(400, "the body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise HttpError(400, "the JSON is nested too deep.", code="invalid_json") from None
    except msgspec.ValidationError as error:
        raise _invalid_value(error, decoder.type) from None
    except msgspec.DecodeError as error:
        message = clean(f"the body is not JSON: {error}.", 200)
        raise HttpError(400, message, code="invalid_json") from None
    _check_size(body)
    return body


def _with_model(
    body: msgspec.Struct | None, in_query: str | None
) -> tuple[msgspec.Struct | None, str | None]:
    """A body that names the model that it or else the query names, and that name.

    Some clients know an address and no model, as those of text-embeddings-inference do.
    """
    if body is None:
        return body, in_query
    if in_query and not getattr(body, "model", in_query):
        body = msgspec.structs.replace(body, model=in_query)
    return body, getattr(body, "model", None)


def _decode_query(kind: type[msgspec.Struct], given: Mapping[str, str]) -> msgspec.Struct:
    """The query of a request. What is not known is ignored.

    Raises:
        HttpError: 400, saying what is wrong with it and where.
    """
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_value(error, kind) from None


def _invalid_value(error: msgspec.ValidationError, kind: object) -> HttpError:
    """What is wrong with a value, and with one of a few what there is.

    Args:
        error: Says the first.
        kind: What was to be read.
    """
    found = _FIELD.search(str(error)) or _MISSING.search(str(error))
    name = found[1] if found else None
    choices: list[object] = []
    if name and "enum value" in str(error) and isinstance(kind, type):
        hint = get_type_hints(kind).get(name)
        choices = _literals(hint)
    expected = f" Expected: one of {', '.join(map(repr, choices))}." if choices else ""
    said = _LONG_VALUE.sub(r"\1…\2", str(error))
    return HttpError(400, clean(f"{said}.{expected}", 400), param=name, code="invalid_value")


def _literals(hint: object) -> list[object]:
    """What a type has instead of any text, also in a list of such."""
    found = get_args(hint)
    if get_origin(hint) is Literal:
        return [*found]
    return [choice for each in found for choice in _literals(each)]


def _check_size(body: object) -> None:
    """Refuse more levels or values than an honest request has; the types allow free-form fields.

    Each value of those that are counted takes time again when a chat template is rendered.

    Raises:
        HttpError: 400.
    """
    layer: list[object] = [body]
    num_values = 0
    for _ in range(MAX_JSON_DEPTH):
        inner: list[object] = []
        for value in layer:
            if isinstance(value, msgspec.Struct):
                inner += [getattr(value, name) for name in value.__struct_fields__]
            elif isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list) and not _LEAVES.issuperset(map(type, value)):
                inner += value
        num_values += len(inner)
        if num_values > MAX_JSON_VALUES:
            raise HttpError(
                400,
                "the JSON has too many objects, arrays and members of objects: "
                f"at most {MAX_JSON_VALUES} in all.",
                code="invalid_json",
            )
        if not inner:
            return
        layer = inner
    raise HttpError(400, "the JSON is nested too deep.", code="invalid_json")


async def read_body(
    scope: Scope, receive: Receive, config: ServerConfig, grow: Callable[[int], None]
) -> bytes:
    """Read the body of a request within its limits; ``grow`` is told its length so far.

    Raises:
        HttpError: 415, it is compressed; 413, 408 or 503, a limit is passed; 400, the client has
            left.
    """
    limit = config.max_body_bytes

    def too_long() -> HttpError:
        return HttpError(413, f"the body is longer than {limit} bytes.", code="body_too_large")

    headers = HTTPConnection(scope).headers
    encoding = headers.get("content-encoding", "").strip()
    if encoding.lower() not in {"", "identity"}:
        raise HttpError(
            415,
            clean(f"the body is compressed. Found: {encoding!r}. Try: send it as it is.", 100),
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise too_long()
    body = bytearray()
    deadline = asyncio.get_running_loop().time() + config.body_timeout_s
    has_more = True
    while has_more:
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HttpError(408, "the body did not arrive in time.", code="timeout") from None
        if message["type"] == "http.disconnect":
            raise HttpError(400, "the client left before its body was read.")
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_long()
        grow(len(body))
        has_more = message.get("more_body", False)
    return bytes(body)


async def run_until_disconnect(receive: Receive, work: Coroutine[object, object, None]) -> None:
    """Run ``work``, and cancel it when the client leaves first. It has ended on return."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.create_task(wait_for_disconnect())
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)
