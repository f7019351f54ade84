"""Clients that ask, read as fast or as slowly as they like, leave, and come again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import h11

from tests.simulation.machine import Machine
from tests.simulation.network import Connection
from tests.support.fake_model import next_token

OPERATORS_KEY = "operator"
PATIENCE_S = 200.0  # of one that waits for the next bytes
LETTERS = '!"#$%'  # the tokens 0 to 4 in cl100k_base


class Wrong(AssertionError):
    """A client got what no client may get."""


@dataclass
class Asked:
    """One request and what must come of it.

    Args:
        kind: Of the request, for the trace.
        method: Of HTTP.
        path: Of HTTP.
        body: Sent as JSON; bytes are sent as they are.
        expected: Statuses that it may be answered with, whatever else goes on.
        prompt: Token ids, where a reply is generated.
        max_tokens: Of each reply.
        choices: Replies.
        streams: Whether they come as events.
        leaves_after: Bytes after which the client goes away; None reads everything.
        pause_s: How long it waits before it reads on.
    """

    kind: str
    method: str = "POST"
    path: str = "/v1/completions"
    body: object = None
    expected: frozenset[int] = frozenset({200})
    prompt: tuple[int, ...] = ()
    max_tokens: int = 0
    choices: int = 1
    streams: bool = False
    leaves_after: int | None = None
    pause_s: float = 0.0


@dataclass
class Outcome:
    """How a request ended.

    Args:
        how: ``"ok"``, ``"error <status>"``, ``"error in stream"``, ``"left"``, ``"cut"``.
        data: What was read of the answer's body.
    """

    how: str
    data: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def oracle(prompt: tuple[int, ...], count: int) -> str:
    """The reply to a prompt."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return "".join(LETTERS[token] for token in history[len(prompt) :])


def draw_request(rng: Random, prefixes: list[tuple[int, ...]]) -> Asked:
    """Any request that a client may send."""
    others = [
        Asked("health", "GET", "/health", expected=frozenset({200, 503})),
        Asked("metrics", "GET", "/metrics"),
        Asked("models", "GET", "/v1/models"),
        Asked("unknown", "GET", "/v1/nothing", expected=frozenset({404})),
        Asked("bad json", body=b'{"prompt": [', expected=frozenset({400})),
        Asked("bad id", body={"prompt": [1, 200_000]}, expected=frozenset({400})),
        Asked("too long", body={"prompt": [1] * 400}, expected=frozenset({400})),
    ]
    if rng.random() < 0.3:
        return rng.choice(others)
    base = rng.choice(prefixes)
    tail = tuple(rng.randrange(5) for _ in range(rng.randrange(9)))
    prompt = (*base[: rng.randrange(len(base) + 1)], *tail) or (0,)
    prefixes.append(prompt[:80])
    asked = Asked(
        "completion",
        prompt=prompt,
        max_tokens=rng.choice([1, 3, 8, 20, 60]),
        choices=rng.choice([1, 1, 1, 1, 2, 3]),
        streams=rng.random() < 0.6,
    )
    asked.body = {
        "prompt": list(prompt),
        "max_tokens": asked.max_tokens,
        "temperature": 0,
        "n": asked.choices,
        "stream": asked.streams,
    }
    if rng.random() < 0.2:
        asked.body["priority"] = rng.choice([-1, 1])
    behaviour = rng.random()
    if behaviour < 0.2:
        asked.leaves_after = rng.choice([-1, 0, 1, 300, 1500])
    elif behaviour < 0.35:
        asked.pause_s = rng.choice([0.01, 0.2, 3.0])
    return asked


def _name(status: int) -> str:
    return "ok" if status == 200 else f"error {status}"


class Client:
    """Sends requests one after the other.

    Args:
        machine: Whose time passes.
        number: Its name.
        connect: Opens a connection; None where nobody listens any more.
        tell: Called with what happens, for the trace.
        limit: Tokens that a prompt and its reply may have together.
    """

    def __init__(
        self,
        machine: Machine,
        number: int,
        connect: Callable[[], Connection | None],
        tell: Callable[..., None],
        limit: int,
    ) -> None:
        self._machine = machine
        self._number = number
        self._connect = connect
        self._tell = tell
        self._limit = limit
        self._connection: Connection | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def work(
        self, rng: Random, prefixes: list[tuple[int, ...]], outcomes: list[tuple[Asked, Outcome]]
    ) -> None:
        """Ask a few times, and again where the server says that it is busy."""
        await asyncio.sleep(rng.expovariate(2.0))
        for _ in range(rng.randint(1, 4)):
            asked = draw_request(rng, prefixes)
            for _ in range(4):
                outcome = await self.ask(asked, rng)
                outcomes.append((asked, outcome))
                if outcome.how not in {"error 429", "error 503"}:
                    break
                was_aborted = b"generation_abort" in outcome.data  # as the operator wished
                if not ("retry-after" in outcome.headers or was_aborted or asked.kind == "health"):
                    raise Wrong(f"client {self._number}: {outcome.how} without Retry-After")
                await asyncio.sleep(rng.uniform(0.5, 4.0))
            await asyncio.sleep(rng.choice([0.0, 0.01, 1.0, 40.0]))
        if self._connection is not None:
            self._connection.leave()

    async def operate(self, rng: Random, outcomes: list[tuple[Asked, Outcome]]) -> None:
        """Do what an operator does: pause and resume, abort, forget."""

        async def command(path: str, **body: object) -> None:
            asked = Asked("command", path=path, body=body)
            outcomes.append((asked, await self.ask(asked, rng)))

        for _ in range(rng.randint(1, 3)):
            await asyncio.sleep(rng.choice([0.05, 0.3, 1.0, 41.0]))
            kind = rng.choice(["pause", "abort", "forget"])
            if kind == "abort":
                await command("/abort_requests", abort_all=True)
            elif kind == "forget":
                await command("/reset_prefix_cache", reset_running_requests=rng.random() < 0.5)
            else:
                await command("/pause", mode=rng.choice(["abort", "wait", "keep"]))
                await asyncio.sleep(rng.choice([0.0, 0.1, 3.0]))
                await command("/resume")

    async def ask(self, asked: Asked, rng: Random) -> Outcome:
        """Send one request and read its answer."""
        is_fresh = self._connection is None or self._connection.is_lost
        if is_fresh or self._http.our_state is not h11.IDLE:
            self._connection = self._connect()
            self._http = h11.Connection(h11.CLIENT)
        if self._connection is None:
            return Outcome("refused")
        self._tell(self._number, "asks", asked.kind, asked.body, asked.leaves_after)
        outcome = await self._exchange(asked, rng, self._connection)
        data = outcome.data if asked.kind != "metrics" else b""  # those tell of the real process
        self._tell(self._number, "got", outcome.how, data)
        if outcome.how in {"left", "cut"}:
            self._connection = None
        elif asked.kind == "completion" and outcome.how == "ok":
            outcome.how = self._check_reply(asked, outcome)
        return outcome

    async def _exchange(self, asked: Asked, rng: Random, connection: Connection) -> Outcome:
        body = asked.body if isinstance(asked.body, bytes) else json.dumps(asked.body).encode()
        body = b"" if asked.body is None else body
        headers = [("Host", "localhost"), ("Content-Length", str(len(body)))]
        if asked.kind == "command":
            headers.append(("Authorization", f"Bearer {OPERATORS_KEY}"))
        request = h11.Request(method=asked.method, target=asked.path, headers=headers)
        data = self._http.send(request) + (self._http.send(h11.Data(data=body)) if body else b"")
        self._http.send(h11.EndOfMessage())
        if asked.leaves_after == -1:  # in the middle of its own request
            connection.send(data[: rng.randrange(1, len(data))])
            await asyncio.sleep(rng.choice([0.0, 0.5]))
            connection.leave(resets=rng.random() < 0.5)
            return Outcome("left")
        cut = rng.randrange(1, len(data))
        connection.send(data[:cut])
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.1]))
        connection.send(data[cut:])
        return await self._read(asked, rng, connection)

    async def _read(self, asked: Asked, rng: Random, connection: Connection) -> Outcome:
        status, headers, body = 0, {}, b""
        event: object = None
        while not isinstance(event, h11.EndOfMessage):
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if asked.leaves_after is not None and len(body) >= asked.leaves_after:
                    await asyncio.sleep(rng.choice([0.0, 0.01, 0.3]))
                    connection.leave(resets=rng.random() < 0.5)
                    return Outcome("left", body)
                data = await self._receive(asked, connection)
                if not data:
                    return Outcome("cut", body)
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {k.decode().lower(): v.decode() for k, v in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        return self._end(asked, connection, Outcome(_name(status), body, headers))

    async def _receive(self, asked: Asked, connection: Connection) -> bytes:
        await asyncio.sleep(asked.pause_s)
        try:
            return await connection.receive(PATIENCE_S)
        except TimeoutError:
            raise Wrong(f"client {self._number} waits for ever for {asked}") from None

    def _end(self, asked: Asked, connection: Connection, outcome: Outcome) -> Outcome:
        """Be ready for the next request."""
        if self._http.trailing_data[0]:
            raise Wrong(f"client {self._number} was answered twice: {self._http.trailing_data[0]}")
        if self._http.their_state is h11.MUST_CLOSE:
            connection.leave()
        else:
            self._http.start_next_cycle()
        is_refused = outcome.how != "ok" and asked.kind != "health"
        if is_refused and "error" not in json.loads(outcome.data):
            raise Wrong(f"client {self._number}: {outcome} without an error")
        return outcome

    def _check_reply(self, asked: Asked, outcome: Outcome) -> str:
        """Compare a reply with the oracle; how the request ended."""
        texts = [""] * asked.choices
        ends = [0] * asked.choices
        was_aborted = False
        choices, has_failed = _events(outcome.data) if asked.streams else _whole(outcome.data)
        for choice in choices:
            if ends[choice["index"]]:
                raise Wrong("a reply goes on after its end")
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] += choice["finish_reason"] is not None
            was_aborted |= choice["finish_reason"] == "abort"
        right = oracle(asked.prompt, min(asked.max_tokens, self._limit - len(asked.prompt)))
        for text, num_ends in zip(texts, ends, strict=True):
            if not right.startswith(text):
                raise Wrong(f"client {self._number} got {text!r}, not {right!r}")
            if not (has_failed or was_aborted) and (text != right or num_ends != 1):
                raise Wrong(f"client {self._number} got {text!r} of {right!r}: {num_ends} ends")
        return "error in stream" if has_failed else "aborted" if was_aborted else "ok"


def _whole(data: bytes) -> tuple[list[dict], bool]:
    """The replies of an answer, and whether it tells of an error."""
    return json.loads(data)["choices"], False


def _events(data: bytes) -> tuple[list[dict], bool]:
    """The same of a stream."""
    frames = data.decode().split("\n\n")
    messages = [each.removeprefix("data: ") for each in frames if each.startswith("data: ")]
    if "[DONE]" in messages[:-1]:
        raise Wrong(f"the end of the stream is not at its end: {messages[-3:]}")
    events = [json.loads(each) for each in messages if each != "[DONE]"]
    has_failed = any("error" in each for each in events)
    if "[DONE]" not in messages and not has_failed:
        raise Wrong("a stream without an end")
    return [choice for each in events for choice in each.get("choices", ())], has_failed
