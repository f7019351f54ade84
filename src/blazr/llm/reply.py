"""Replies while they are being generated: the engine's tokens in, events out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from blazr.core.errors import CapacityError
from blazr.engine.outputs import FinishReason, TokenLogprobs, TokenOutput
from blazr.engine.request import Request
from blazr.llm.text_engine import PreparedRequest
from blazr.text.events import Event, Finished, PromptDone, TokenText
from blazr.text.stream import TextStream
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.engine.async_engine import AsyncEngine


# Steps that may wait to be taken. Later ones are joined to some of so many tokens, so that a reply
# that nobody reads takes little memory.
MOST_WAITING = 256


class Reply:
    """The replies to one or more prompts.

    The engine's thread only puts into the inbox and calls ``notify``; everything else happens on
    the one thread that consumes the reply. Whoever started it calls `abort` at the end, whatever
    happened: it is idempotent, and without it a reply nobody reads would run to its end.

    Args:
        engine: What runs the requests.
        tokenizer: What turns their tokens to text.
        requests: The prompts. Choice ``j`` of prompt ``i`` has the index of all choices before it.
        notify: Called on the engine's thread when there is something to `take`.
        pause_s: Seconds between two such calls, at least, while no reply ends. Tokens that come
            meanwhile are taken together: to wake another thread for each takes longer than a small
            model's step leaves time for. A reply that a stop string or a call ends does not wait.
        waits: Where the queue is full, begin as soon as it has room.

    Raises:
        RequestError: A request asks for something impossible; nothing was started.
        CapacityError: The queue is full, and it does not wait; nothing was started. Where it has
            room for some of the prompts only, the rest are submitted as it empties. Their time has
            run since then.
        EngineError: The engine has stopped.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        requests: Sequence[PreparedRequest],
        *,
        notify: Callable[[], None],
        pause_s: float = 0.0,
        waits: bool = False,
    ) -> None:
        self._engine = engine
        self._notify = notify
        self._pause_s, self._notify_at_s = pause_s, 0.0
        self._waits = waits
        self._has_notified = False  # of all that is in the inbox
        self._started_s = monotonic()
        self._inbox: deque[tuple[int, TokenOutput]] = deque()
        self._lock = Lock()  # of the inbox and what waits there
        self._prompts: list[_PromptState] = []
        first = 0
        for each in requests:
            indices = range(first, first := first + each.request.params.n)
            choices = [_ReplyState(each, tokenizer, index) for index in indices]
            self._prompts.append(_PromptState(each.request, choices))
        self._num_submitted = self._num_done = 0
        try:
            self._submit()
        except BaseException:
            self.abort()
            raise

    @property
    def is_done(self) -> bool:
        """Whether every reply has finished."""
        return self._num_done == len(self._prompts)

    @property
    def is_starved(self) -> bool:
        """Whether nothing runs because others fill the queue, so that no event will come."""
        return self._num_done == self._num_submitted < len(self._prompts)

    @property
    def has_more(self) -> bool:
        """Whether there is something to take."""
        return bool(self._inbox)

    def take(self, most: int | None = None) -> list[Event]:
        """The events since the last call, in order; empty when there are none.

        Args:
            most: Steps of replies to look at, at most, and tokens of prompts that have scores; None
                is all.
        """
        events: list[Event] = []
        left = len(self._inbox)  # what comes meanwhile waits for the next call
        num_seen = 0
        while left and (most is None or num_seen < most):
            with self._lock:
                position, output = self._inbox.popleft()
                prompt = self._prompts[position]
                choice = prompt.choices[output.index]
                if choice.waiting is output:
                    choice.waiting = None
            left -= 1
            if choice.is_done:  # ended by a stop string while the engine was a step ahead
                continue
            num_seen += max(len(output.token_ids), 1) + len(output.prompt_logprobs or ())
            events.extend(choice.push(output))
            if choice.is_done:
                if output.finish_reason is None and prompt.request_id is not None:
                    # a stop string or a whole call ended it, which the engine knows nothing of
                    self._engine.abort(prompt.request_id, output.index)
                self._num_done += prompt.is_done
        if self._num_submitted < len(self._prompts):
            self._submit(waited_s=monotonic() - self._started_s)
        return events

    def abort(self) -> None:
        """End what still runs, or has yet to begin, where it stands: as `take` will tell."""
        for prompt in self._prompts:
            if not prompt.is_done and prompt.request_id is not None:
                self._engine.abort(prompt.request_id)
                prompt.remember()
        for position in range(self._num_submitted, len(self._prompts)):
            request = self._prompts[position].request
            for index in range(request.params.n):
                end = TokenOutput(
                    request_id=0,
                    index=index,
                    finish_reason=FinishReason.ABORT,
                    num_prompt_tokens=len(request.prompt_ids),
                )
                self._inbox.append((position, end))
        self._num_submitted = len(self._prompts)

    def _submit(self, *, waited_s: float = 0.0) -> None:
        while self._num_submitted < len(self._prompts):
            position = self._num_submitted
            prompt = self._prompts[position]
            request = prompt.request
            if request.timeout_s is not None:
                request = replace(request, timeout_s=max(request.timeout_s - waited_s, 0.0))
            try:
                sink = partial(self._deliver, position)
                prompt.request_id = self._engine.submit(request, sink)
            except CapacityError:
                if position == 0 and not self._waits:
                    raise
                return
            self._num_submitted += 1

    def _deliver(self, position: int, output: TokenOutput) -> None:
        """Take a step of the prompt at ``position``; on the engine's thread."""
        with self._lock:
            choice = self._prompts[position].choices[output.index]
            if len(self._inbox) < MOST_WAITING or not choice.try_join(output):
                self._inbox.append((position, output))
                choice.waiting = output
                self._has_notified = False
        now_s = monotonic()
        may_end = output.finish_reason is not None or choice.may_end
        if not self._has_notified and (may_end or now_s >= self._notify_at_s):
            self._has_notified = True
            self._notify_at_s = now_s + self._pause_s
            self._notify()


@dataclass(slots=True)
class _PromptState:
    """One prompt and its choices."""

    request: Request
    choices: list[_ReplyState]
    request_id: int | None = None

    @property
    def is_done(self) -> bool:
        return all(choice.is_done for choice in self.choices)

    def remember(self) -> None:
        """Keep what was written of replies that are not over."""
        for choice in self.choices:
            if not choice.is_done:
                choice.remember()


class _ReplyState:
    """One reply: its first event, its text, its end.

    Attributes:
        waiting: Its step that came last, while it waits to be taken.
        may_end: Whether the request asks that some text ends it, which the engine does not see.
    """

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, index: int) -> None:
        self.is_done = False
        self.waiting: TokenOutput | None = None
        self.may_end = bool(prepared.request.params.stop) or prepared.reply_format.has_one_call
        self._index = index
        self._tokenizer = tokenizer
        self._prompt_ids = prepared.request.prompt_ids
        self._prepared = prepared
        self._written: list[int] = []
        self._has_begun = False

    @cached_property
    def _text(self) -> TextStream:
        """Its text; made with the first token, so that nothing delays the submission."""
        params = self._prepared.request.params
        return TextStream(
            self._tokenizer,
            index=self._index,
            stop=params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop,
            skip_special=params.skip_special_tokens,
            prompt_ids=self._prompt_ids,
            reply_format=self._prepared.reply_format,
        )

    def try_join(self, output: TokenOutput) -> bool:
        """Merge a step into the one that waits to be taken.

        Returns:
            False where there is none, it is full, or the step ends the reply; nothing is changed.
        """
        last = self.waiting
        if last is None or len(last.token_ids) >= MOST_WAITING or output.finish_reason is not None:
            return False
        last.token_ids += output.token_ids
        last.logprobs += output.logprobs
        return True

    def push(self, output: TokenOutput) -> list[Event]:
        events: list[Event] = []
        if not self._has_begun:
            self._has_begun = True
            events.append(self._prompt_done(output))
        if output.token_ids:
            self._written += output.token_ids
            logprobs = tuple(_token_text(self._tokenizer, each) for each in output.logprobs)
            events.extend(self._text.push(output.token_ids, logprobs=logprobs))
            del self._written[self._text.num_tokens :]  # those of the step behind what ended it
        if self._text.has_ended:
            events.extend(self._end(FinishReason.STOP, output))
        elif output.finish_reason is not None:
            events.extend(self._end(output.finish_reason, output))
        return events

    def remember(self) -> None:
        """Keep what was written for the next turn of the chat."""
        if self._prepared.remember is not None:
            self._prepared.remember(self._written, stop=self._text.ended_by)

    def _prompt_done(self, output: TokenOutput) -> PromptDone:
        logprobs = None
        if output.prompt_logprobs is not None:
            pairs = list(zip(self._prompt_ids, output.prompt_logprobs, strict=True))
            if self._prepared.num_scored is not None:
                pairs = pairs[-self._prepared.num_scored :]
            logprobs = tuple(
                _bare_text(self._tokenizer, token_id, None)
                if each is None
                else _token_text(self._tokenizer, each)
                for token_id, each in pairs
            )
        return PromptDone(
            self._index,
            output.num_prompt_tokens,
            output.num_cached_tokens,
            logprobs,
            output.reuse,
            output.resumed_at,
            output.embedding,
            self._prepared.num_dropped_messages,
        )

    def _end(self, reason: FinishReason, output: TokenOutput) -> list[Event]:
        self.is_done = True
        self.remember()
        *before, end = self._text.finish(reason.value)
        assert isinstance(end, Finished)
        end = replace(
            end,
            error=None if self._text.has_ended else output.error,
            is_refusal=output.is_refusal,
            num_drafts=output.num_drafts,
            num_kept_drafts=output.num_kept_drafts,
            end_token=None if self._text.has_ended else _end_token(self._tokenizer, output),
        )
        return [*before, end]


def _end_token(tokenizer: Tokenizer, output: TokenOutput) -> TokenText | None:
    if output.stop_id is None:
        return None
    if output.stop_logprobs is None:
        return _bare_text(tokenizer, output.stop_id, None)
    return _token_text(tokenizer, output.stop_logprobs)


def _token_text(tokenizer: Tokenizer, logprobs: TokenLogprobs) -> TokenText:
    top = tuple(_bare_text(tokenizer, token_id, value) for token_id, value in logprobs.top)
    return replace(_bare_text(tokenizer, logprobs.token_id, logprobs.logprob), top=top)


def _bare_text(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> TokenText:
    data = tokenizer.token_bytes(token_id)
    return TokenText(data.decode("utf-8", "replace"), token_id, data, logprob)
