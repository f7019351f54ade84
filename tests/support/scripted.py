"""An engine whose replies are known beforehand: `AsyncEngine`'s face without a model behind it."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from blazr.core.errors import CapacityError, ContextLengthError, EngineError, RequestError
from blazr.engine.outputs import FinishReason, RunningReply, TokenLogprobs, TokenOutput
from blazr.engine.request import Request
from blazr.llm.bundle import ModelInfo
from blazr.llm.text_engine import TextEngine
from blazr.text.choose_template import choose_template
from blazr.text.reasoning import REASONING
from blazr.text.stream import ReplyFormat
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tool_calls.rows import TOOL_FORMATS

R = TypeVar("R")
SCRIPT = " one two three four five six seven eight nine ten"


@dataclass
class Health:
    ok: bool
    reason: str = ""
    heartbeat_age_s: float = 0.0

    @property
    def is_lost(self) -> bool:
        return not self.ok


@dataclass
class _Running:
    request_id: int
    request: Request
    sink: Callable[[TokenOutput], None]
    script: Sequence[int]
    place: int = 0
    waiting: set[int] = field(default_factory=set)


class ScriptedEngine:
    """Says the script, a token a step, then the first stop id.

    Args:
        script: The tokens of every reply, unless ``script_of`` is set.
        vocab_size: Ids at and above it are refused.
        max_seq_len: Longest prompt and reply together.
        max_unfinished: Replies that may run or queue at once.
    """

    files = None  # nothing is kept on disk
    has_drafters = False

    def __init__(
        self,
        script: Sequence[int],
        *,
        vocab_size: int,
        max_seq_len: int = 512,
        max_unfinished: int = 160,
    ) -> None:
        self.script = list(script)
        self.script_of: Callable[[Request], Sequence[int]] = lambda request: self.script
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len
        self.max_unfinished = max_unfinished
        self.broken = ""
        self.fails_with = ""
        self.fails_as = FinishReason.ERROR
        self.submitted: list[Request] = []
        self.aborted: list[int] = []
        self.num_steps = 0
        self.halts_after = 0
        self.is_paused = False
        self.num_forgotten = 0
        self.go = threading.Event()
        self.go.set()
        self._running: dict[int, _Running] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def submit(self, request: Request, sink: Callable[[TokenOutput], None]) -> int:
        if self._closed or self.broken:
            raise EngineError("the engine is not running.", found=self.broken)
        ids = request.prompt_ids
        if not ids:
            raise RequestError("the prompt is empty.", param="prompt")
        if not all(0 <= each < self.vocab_size for each in ids):
            raise RequestError("a token id of the prompt is out of range.", param="prompt")
        if len(ids) + (request.params.max_tokens != 0) > self.max_seq_len:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, and the context holds {self.max_seq_len}.",
                num_tokens=len(ids),
                limit=self.max_seq_len,
                param="prompt",
                found=f"{len(ids)} tokens",
            )
        if request.params.n > max(self.max_unfinished, 1):  # 0 stands for a full queue
            raise RequestError("the queue does not hold so many replies.", param="n")
        script = self.script_of(request)
        with self._work:
            queued = sum(len(each.waiting) for each in self._running.values())
            if queued + request.params.n > self.max_unfinished:
                raise CapacityError("the queue is full.")
            running = _Running(next(self._ids), request, sink, script)
            running.waiting = set(range(request.params.n))
            self._running[running.request_id] = running
            self.submitted.append(request)
            self._work.notify()
        return running.request_id

    def abort(self, request_id: int, index: int | None = None) -> None:
        with self._lock:
            running = self._running.get(request_id)
            if running is None:
                return
            gone = running.waiting & (running.waiting if index is None else {index})
            running.waiting -= gone
            if not running.waiting:
                del self._running[request_id]
                self.aborted.append(request_id)
        for each in sorted(gone):
            end = TokenOutput(
                request_id=request_id,
                index=each,
                finish_reason=FinishReason.ABORT,
                num_prompt_tokens=len(running.request.prompt_ids),
            )
            running.sink(end)

    def lasting_failure(self) -> str:
        return ""

    def health(self) -> Health:
        return Health(not self.broken, self.broken)

    def stats(self) -> dict[str, float]:
        return {"num_running": self.num_running, "max_running": 4, "steps": self.num_steps}

    def running(self) -> list[RunningReply]:
        return [
            RunningReply(
                request_id=each.request_id,
                index=index,
                slot=slot,
                num_prompt_tokens=len(each.request.prompt_ids),
                num_computed_tokens=len(each.request.prompt_ids) + each.place,
                num_output_tokens=each.place,
                max_tokens=self._most(each.request),
            )
            for slot, (each, index) in enumerate(
                (each, index)
                for each in list(self._running.values())
                for index in sorted(each.waiting)
            )
        ]

    def pause(self, *, finishes: bool) -> Future[None]:
        stopped: Future[None] = Future()
        self.is_paused = True
        if not finishes:
            self.go.clear()
        stopped.set_result(None)
        return stopped

    def resume(self) -> None:
        self.is_paused = False
        self.go.set()

    def forget_prefixes(self, *, restarts: bool = False) -> int:
        self.num_forgotten += 1 + restarts
        return 7

    def watch_prefixes(self, listener: object) -> None:
        pass

    def unwatch_prefixes(self, listener: object) -> None:
        pass

    def replace_model(self, model: object) -> None:
        raise NotImplementedError

    def call(self, work: Callable[[], R]) -> R:
        return work()

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify()
        self.go.set()
        self._thread.join()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _loop(self) -> None:
        while not self._closed:
            with self._work:
                while not self._running and not self._closed:
                    self._work.wait()
            self.go.wait()
            with self._lock:
                batch = list(self._running.values())
                self.num_steps += 1
            if self.num_steps == self.halts_after:
                self.go.clear()
            for running in batch:
                self._step(running)

    def _step(self, running: _Running) -> None:
        for index in sorted(running.waiting):
            if running.request_id not in self._running:
                return
            output = self._output(running, index)
            if output.finish_reason is not None:
                self._finish(running, index)
            running.sink(output)
        running.place += 1

    def _finish(self, running: _Running, index: int) -> None:
        running.waiting.discard(index)
        if not running.waiting:
            with self._lock:
                self._running.pop(running.request_id, None)

    def _output(self, running: _Running, index: int) -> TokenOutput:
        params, place, script = running.request.params, running.place, running.script
        common = {
            "request_id": running.request_id,
            "index": index,
            "num_prompt_tokens": len(running.request.prompt_ids),
            "num_cached_tokens": 2,
            "reuse": "partial",
        }
        if self.fails_with:
            return TokenOutput(**common, finish_reason=self.fails_as, error=self.fails_with)
        if place == 0 and params.prompt_logprobs is not None:
            common["prompt_logprobs"] = self._prompt_logprobs(running.request)
        if params.max_tokens == 0:
            return TokenOutput(**common, **_ended(running.request))
        if place >= len(script) and not params.ignore_eos:
            eos = min(running.request.stop_ids, default=None)
            if params.logprobs is not None and eos is not None:
                common["stop_logprobs"] = _logprobs(eos, params.logprobs)
            return TokenOutput(**common, finish_reason=FinishReason.STOP, stop_id=eos)
        token = script[place % len(script)]
        if params.logprobs is not None:
            common["logprobs"] = (_logprobs(token, params.logprobs),)
        reason = FinishReason.LENGTH if place + 1 >= self._most(running.request) else None
        return TokenOutput(**common, token_ids=(token,), finish_reason=reason)

    def _most(self, request: Request) -> int:
        most = request.params.max_tokens
        return self.max_seq_len - len(request.prompt_ids) if most is None else most

    def _prompt_logprobs(self, request: Request) -> tuple[TokenLogprobs | None, ...]:
        wanted = request.params.prompt_logprobs or 0
        rest = [_logprobs(each, wanted) for each in request.prompt_ids[1:]]
        return (None, *rest)


def _ended(request: Request) -> dict[str, object]:
    """The end of a request that only reads its prompt; a vector tells how many tokens it has."""
    if request.pooling is None:
        return {"finish_reason": FinishReason.LENGTH}
    vector = array("f", (3.0, 4.0, float(len(request.prompt_ids))))
    return {"finish_reason": FinishReason.STOP, "embedding": vector}


def _logprobs(token: int, num_top: int) -> TokenLogprobs:
    """Even tokens are the likeliest; for odd ones another is."""
    if token % 2 == 0:
        top = ((token, -0.25), (token + 1, -1.5))
        return TokenLogprobs(token, -0.25, top[:num_top])
    return TokenLogprobs(token, -2.5, ((token - 1, -0.125), (token, -2.5))[:num_top])


def scripted_core(**changes: object) -> TextEngine:
    """A core that answers everything with SCRIPT, in a real vocabulary."""
    tokenizer = load_tokenizer(find_tokenizer(vocab="cl100k_base"))
    assert tokenizer is not None
    script = str(changes.pop("text", SCRIPT))
    info = {"name": "scripted", "family": "oxidizr", "vocab_size": 100331, "max_seq_len": 512}
    for name in list(changes):
        if name in ModelInfo.__dataclass_fields__:
            info[name] = changes.pop(name)
    engine = ScriptedEngine(
        tokenizer.encode(script),
        vocab_size=info["vocab_size"],
        max_seq_len=info["max_seq_len"],
        **changes,
    )
    template = choose_template(
        directory=None, name_or_path=None, family="oxidizr", tokenizer=tokenizer
    )
    return TextEngine(engine, ModelInfo(**info), tokenizer=tokenizer, template=template)


def thinking_core(text: str, **changes: object) -> TextEngine:
    """A core whose answer is told apart as Qwen writes it: thoughts, words and calls of tools."""
    core = scripted_core(text=text, **changes)
    core.reply_format = ReplyFormat(
        reasoning=REASONING["think"], tool_format=TOOL_FORMATS["hermes"]
    )
    return core


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Poll until something holds.

    Raises:
        AssertionError: It did not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
