"""From one reply's token ids to its events: characters, stop strings, thinking, calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from blazr.text.events import (
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenText,
    ToolCallDelta,
)
from blazr.text.reasoning import ReasoningFormat
from blazr.text.splitter import (
    CallArguments,
    CallBegin,
    Piece,
    Reasoning,
    Splitter,
    merge,
)
from blazr.text.stop import StopMatcher
from blazr.text.tokenizer import Detokenizer, Tokenizer
from blazr.text.tool_calls.custom_input import input_splitter, input_text
from blazr.text.tool_calls.format import ToolFormat, ToolSpec

# The end of a prompt in which to look for the beginning of thinking, tokens.
_TAIL = 32
# Mistral's templates take ids of nine letters and digits only, and nobody minds them.
_ID_LENGTH = 9
_ID_CHARACTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """What there may be in a reply besides text.

    Args:
        reasoning: How thinking is marked; None leaves it in the text.
        tool_format: How calls of tools are written; None leaves them in the text.
        tools: The tools that may be called.
        has_one_call: Whether the first call of a tool ends the reply.
        turn_marks: Strings at which the next turn begins, so that the reply ends before them.
    """

    reasoning: ReasoningFormat | None = None
    tool_format: ToolFormat | None = None
    tools: Sequence[ToolSpec] = ()
    has_one_call: bool = False
    turn_marks: Sequence[str] = ()

    @property
    def special_names(self) -> frozenset[str]:
        """Names of special tokens that mark parts of the reply."""
        parts = (self.reasoning, self.tool_format)
        return frozenset().union(*(each.special_names for each in parts if each is not None))


PLAIN = ReplyFormat()


class TextStream:
    """Turns the tokens of one reply to events as they come.

    Args:
        tokenizer: What the ids mean.
        index: Which reply.
        stop: Strings that end it.
        min_tokens: No stop string, and no mark of the next turn, ends within this many tokens.
        include_stop: Leave the stop string in the text.
        skip_special: Leave special tokens out of the text.
        prompt_ids: What the reply continues. After a prompt with text in it, a leading space is
            part of the reply; after none, vocabularies that add one have it taken away. A prompt
            may also have begun the thinking.
        reply_format: What there may be in it besides text.

    Attributes:
        num_tokens: Tokens of it so far, without those behind what ended it.
        num_reasoning_tokens: Of these, those that are thinking.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        index: int,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special: bool = True,
        prompt_ids: Sequence[int] = (),
        reply_format: ReplyFormat = PLAIN,
    ) -> None:
        special_ids = tokenizer.special_ids
        names = reply_format.special_names
        self._index = index
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special=skip_special,
            continues=any(not tokenizer.is_special(token_id) for token_id in prompt_ids),
            kept_ids=frozenset(special_ids[name] for name in names if name in special_ids),
        )
        self._stop = frozenset(stop)
        self._includes_stop = include_stop
        self._min_tokens = min_tokens
        self._matcher = StopMatcher(stop, include_stop=include_stop, unseen=reply_format.turn_marks)
        self.num_tokens = 0
        reasoning = reply_format.reasoning
        tool_format = reply_format.tool_format
        self._reasoning_splitter = self._tool_parser = None
        if reasoning is not None:
            tail = tokenizer.decode(prompt_ids[-_TAIL:], skip_special=False)
            self._reasoning_splitter = reasoning.splitter(is_inside=reasoning.has_begun(tail))
        if tool_format is not None:
            self._tool_parser = tool_format.parser(reply_format.tools)
        self._custom_names = {tool.name for tool in reply_format.tools if tool.is_custom}
        self._custom_input: Splitter | None = (
            None  # of the call that began last, if its tool is custom
        )
        self._has_one_call = reply_format.has_one_call
        self._num_calls = 0
        self._has_begun_call = False
        self._has_ended_call = False
        self.num_reasoning_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the reply; None while none has."""
        return self._matcher.matched if self._matcher.matched in self._stop else None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more belongs to the reply.

        A stop string came, the mark of the next turn, or all of its one call.
        """
        return self._matcher.matched is not None or self._has_ended_call

    @property
    def ended_by(self) -> str | None:
        """The string that ended the reply and is no part of its text."""
        return None if self._includes_stop and self.stopped else self._matcher.matched

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is the model's thinking; `num_reasoning_tokens` counts it."""
        return self._reasoning_splitter is not None and self._reasoning_splitter.is_thinking

    def push(self, token_ids: Sequence[int], *, logprobs: Sequence[TokenText] = ()) -> list[Event]:
        """Take new tokens. Those after the one that completes a stop string are dropped.

        Args:
            token_ids: The tokens.
            logprobs: Nothing, or one per token.

        Returns:
            The tokens with a `TextDelta`, always the first event, and what else they brought. Text
            lags behind its tokens while a character is incomplete, or a stop string or a marker
            possible.
        """
        pieces: list[Piece] = []
        used = 0
        for token_id in token_ids:
            if self.has_ended:
                break
            was_thinking = self.is_thinking
            text = self._detokenizer.push(token_id)
            used += 1
            may_end = self.num_tokens + used > self._min_tokens
            pieces += self._split(self._matcher.push(text, may_end=may_end))
            self.num_reasoning_tokens += was_thinking or self.is_thinking
        if not used:
            return []
        self.num_tokens += used
        is_plain = len(pieces) == 1 and isinstance(pieces[0], str)  # as most tokens are
        begun, *others = pieces if is_plain else merge(["", *pieces])
        first = TextDelta(self._index, str(begun), tuple(token_ids[:used]), tuple(logprobs[:used]))
        return [first, *self._events(others)] if others else [first]

    def finish(self, reason: str) -> list[Event]:
        """The reply ended; get what is still held back, and `Finished`.

        Args:
            reason: Why it ended, unless a string or its one call ended it: then the reason is
                ``"stop"``.
        """
        text = ""
        is_cut = reason != "stop" and not self.has_ended
        if not self.has_ended:
            may_end = self.num_tokens > self._min_tokens
            text = self._matcher.push(self._detokenizer.flush(), may_end=may_end)
            text += self._matcher.flush()
        pieces = self._split(text)
        if self._reasoning_splitter is not None:
            pieces += self._find_calls(self._reasoning_splitter.flush(is_cut=is_cut))
        if self._tool_parser is not None:
            pieces += self._first_call(self._tool_parser.flush(is_cut=is_cut))
        events = [*self._events(merge(pieces)), *self._end_custom_input()]
        stop = self.stopped
        end = Finished(
            self._index,
            "stop" if self.has_ended else reason,
            self.num_tokens,
            stop=stop,
            num_reasoning_tokens=self.num_reasoning_tokens,
            num_tool_calls=self._num_calls,
        )
        return [*events, end]

    def _split(self, text: str) -> list[Piece]:
        if not text:
            return []
        return self._find_calls(
            [text] if self._reasoning_splitter is None else self._reasoning_splitter.push(text)
        )

    def _find_calls(self, pieces: Iterable[Piece]) -> list[Piece]:
        if self._tool_parser is None:
            return list(pieces)
        found: list[Piece] = []
        for piece in pieces:
            found += self._tool_parser.push(piece) if isinstance(piece, str) else [piece]
        return self._first_call(found)

    def _first_call(self, pieces: list[Piece]) -> list[Piece]:
        """Up to the end of the first call, where one is all there may be; the rest is dropped."""
        if not self._has_one_call or self._tool_parser is None:
            return pieces
        kept: list[Piece] = []
        for piece in pieces:
            is_next = isinstance(piece, str | CallBegin) and self._has_begun_call
            self._has_ended_call = self._has_ended_call or is_next
            if self._has_ended_call:
                break
            self._has_begun_call = self._has_begun_call or isinstance(piece, CallBegin)
            kept.append(piece)
        self._has_ended_call = self._has_ended_call or (
            self._has_begun_call and self._tool_parser.is_outside
        )
        return kept

    def _events(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if isinstance(piece, CallArguments):
                text = piece.text
                if self._custom_input is not None:
                    text = input_text(self._custom_input.push(text))
                if text:
                    yield self._arguments(text)
                continue
            yield from self._end_custom_input()
            if isinstance(piece, str):
                yield TextDelta(self._index, piece)
            elif isinstance(piece, Reasoning):
                yield ReasoningDelta(self._index, piece.text)
            else:
                self._num_calls += 1
                is_custom = piece.name in self._custom_names
                self._custom_input = input_splitter() if is_custom else None
                yield ToolCallDelta(
                    self._index,
                    self._num_calls - 1,
                    piece.id or "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH)),
                    piece.name,
                    is_custom=is_custom,
                )

    def _arguments(self, text: str) -> Event:
        is_custom = self._custom_input is not None
        return ToolCallDelta(self._index, self._num_calls - 1, arguments=text, is_custom=is_custom)

    def _end_custom_input(self) -> Iterator[Event]:
        unsent = "" if self._custom_input is None else input_text(self._custom_input.flush())
        if unsent:
            yield self._arguments(unsent)
        self._custom_input = None
