"""Text of a reply to its parts, character by character: how a format is recognised in a stream.

A format is a scan: a generator that is sent one character at a time and says what it found to a
`Sink`. What it does depends on the characters so far and on nothing else, so cutting the stream
anywhere cannot change the outcome. A scan that meets what its format forbids raises
`MalformedError`; what it had read and not yet accounted for is then text again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins.

    Args:
        name: The tool.
        id: The call's id, where the format has one.
    """

    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of the arguments of the call that began last."""

    text: str


Piece = str | Reasoning | CallBegin | CallArguments

# Scans are sent characters, and "" for the end of the text. They return the character after what
# they have read: looked at, not consumed.
Scan = Generator[None, str, str]
# Scans that also find a value return it before that character.
Found = Generator[None, str, tuple[str, str]]

SPACE = " \t\r\n"
MAX_HEADER = 512  # characters of a name, id or header


class MalformedError(Exception):
    """The text is not of the format after all."""


class CutOffError(MalformedError):
    """The text ended too early."""


class Sink:
    """Where a scan puts what it finds. What it has read is thereby accounted for.

    That includes the character it was sent last, unless it is said to lie ``ahead``: looked at, and
    not yet consumed.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.has_found = False  # whether this scan has found anything
        self.has_begun = False  # whether it is past the beginning of what it found last
        self.is_thinking = False  # whether it is among the model's thinking
        self._is_consumed = False
        self._keeps_last = False

    def text(self, text: str, *, ahead: bool = False) -> None:
        """Text that is no part of the format."""
        self._put(text, ahead=ahead)

    def reasoning(self, text: str) -> None:
        """Thinking."""
        self._put(Reasoning(text))

    def begin(self, name: str, call_id: str | None = None, *, ahead: bool = False) -> None:
        """A call begins."""
        self._put(CallBegin(name, call_id), ahead=ahead)

    def arguments(self, text: str, *, ahead: bool = False) -> None:
        """Arguments go on."""
        self._put(CallArguments(text), ahead=ahead)

    def stop_thinking(self) -> None:
        """The thinking ended."""
        self.is_thinking = False
        self.consume()

    def reopen(self) -> None:
        """Another find may begin with the character looked at; what came before is done with."""
        if self.has_begun:
            self.consume(ahead=True)
            self.has_begun = False

    def consume(self, *, ahead: bool = False) -> None:
        """Nothing was found, but what was read is accounted for."""
        self._keeps_last = ahead and (self._keeps_last or not self._is_consumed)
        self._is_consumed = self.has_begun = self.has_found = True

    def close(self, text: str) -> None:
        """End the arguments of a call that turned out malformed, so that they are still JSON."""
        self.pieces.append(CallArguments(text))

    def restart(self) -> None:
        """Another scan begins."""
        self.has_begun = self.has_found = self.is_thinking = False
        self._is_consumed = self._keeps_last = False

    def drop_consumed(self, held: list[str]) -> None:
        """Forget what is accounted for of the characters that were held."""
        if self._is_consumed:
            del held[: -1 if self._keeps_last else None]
        self._is_consumed = self._keeps_last = False

    def _put(self, piece: Piece, *, ahead: bool = False) -> None:
        self.pieces.append(piece)
        self.consume(ahead=ahead)


# --- small scans that larger ones are made of: each takes the character to begin with


def unexpected(c: str) -> MalformedError:
    """The error for a character that may not stand there, or for the end of the text."""
    return MalformedError() if c else CutOffError()


def spaces(c: str) -> Scan:
    """White space, perhaps none."""
    while c and c in SPACE:
        c = yield
    return c


def literal(c: str, text: str) -> Scan:
    """Exactly this text.

    Raises:
        MalformedError: Something else.
    """
    for expected in text:
        if c != expected:
            raise unexpected(c)
        c = yield
    return c


def symbol(c: str, text: str) -> Scan:
    """Exactly this text, with white space around it.

    Raises:
        MalformedError: Something else.
    """
    c = yield from spaces(c)
    c = yield from literal(c, text)
    return (yield from spaces(c))


def comma(c: str, end: str) -> Scan:
    """What parts one thing from the next, or the end after the last, which is not consumed.

    Raises:
        MalformedError: Something else.
    """
    c = yield from spaces(c)
    return c if c == end else (yield from symbol(c, ","))


def optional(c: str, text: str) -> Scan:
    """White space, and a text that may be missing altogether.

    Raises:
        MalformedError: It begins, and goes on as something else.
    """
    c = yield from spaces(c)
    return (yield from literal(c, text)) if text and c == text[0] else c


def one_of(c: str, *texts: str) -> Found:
    """White space, and one of some texts, of which none begins with another; which one it was.

    Raises:
        MalformedError: Something else.
    """
    c = yield from spaces(c)
    read = ""
    while c:
        read += c
        texts = tuple(each for each in texts if each.startswith(read))
        if not texts:
            break
        c = yield
        if read in texts:
            return read, c
    raise unexpected(c)


def word(c: str, end: str) -> Found:
    """A short text in which the first character of its end does not occur; the end is consumed.

    Raises:
        MalformedError: It is not short, or ends otherwise.
    """
    text = ""
    while c and c != end[0] and len(text) < MAX_HEADER:
        text += c
        c = yield
    return text, (yield from literal(c, end))


def until(c: str, end: str) -> Found:
    """A short text up to its end, which is consumed.

    Raises:
        MalformedError: It is not short, or never ends.
    """
    text = ""
    while c and len(text) < MAX_HEADER:
        text += c
        c = yield
        if text.endswith(end):
            return text.removesuffix(end), c
    raise unexpected(c)


def stream_until(
    c: str,
    ends: tuple[str, ...],
    put: Callable[[str], None],
    *,
    trim: str = "",
    most: int = 64,
    at_end: Callable[[], None] | None = None,
) -> Found:
    """A text of any length up to an end, as it comes; which end it was.

    Args:
        c: Its first character.
        ends: What ends it. It is consumed. The end of the reply, told as "", ends it too.
        put: Takes the text.
        trim: Characters to leave out at both of its sides.
        most: How many of them on a side, at most.
        at_end: Called when the end has been read, which is before the next character is known.
    """
    for _ in range(most):
        if not c or c not in trim:
            break
        c = yield
    held = ""  # what may be left out at the end, and what may be the end
    while c:
        held += c
        end = next((each for each in ends if held.endswith(each)), "")
        if end:
            if at_end is not None:
                at_end()
            c = yield
            return end, c
        body = held[: len(held) - max(overlap(held, each) for each in ends)]
        cut = max(len(body.rstrip(trim)), len(body) - most)
        if cut:
            put(held[:cut])
            held = held[cut:]
        c = yield
    put(held.rstrip(trim))
    return "", c


# --- from text to pieces


class Splitter:
    """Passes text through and hands what begins like the format to a scan.

    White space between text and what is found belongs to neither.

    Args:
        scan: Makes a scan that goes on after a marker or starter; it is told which one.
        markers: Texts that begin the format wherever they are. None holds another.
        starters: Texts that begin it where the reply begins, white space aside.
        is_inside: The format has begun before the text, so that a scan is under way at once.
    """

    def __init__(
        self,
        scan: Callable[[str, Sink], Scan],
        *,
        markers: Sequence[str] = (),
        starters: Sequence[str] = (),
        is_inside: bool = False,
    ) -> None:
        self._scan = scan
        self._markers = tuple(markers)
        self._starters = tuple(starters)
        self._pending = ""  # text that may become a marker, and space that may be dropped
        self._at_start = True
        self._after_find = False
        self._running: Scan | None = None
        self._has_marker = False  # whether a marker began that scan
        self._sink = Sink()
        self._held: list[str] = []  # what the scan has read and not accounted for
        if is_inside:
            self._begin("")
            self._sink.consume()

    @property
    def is_outside(self) -> bool:
        """Whether what comes next is text, as far as is known."""
        return self._running is None

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is the model's thinking."""
        return self._running is not None and self._sink.is_thinking

    def push(self, text: str) -> list[Piece]:
        """Take more text."""
        for start in range(0, len(text), _MAX_CHUNK):  # what is read again stays short
            unread = text[start : start + _MAX_CHUNK]
            while unread:
                is_outside = self._running is None
                unread = self._pass_through(unread) if is_outside else self._advance(unread)
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[Piece]:
        """The text ended; get what was held back of it.

        Args:
            is_cut: It ended where it stood. A marker, or the beginning of one, is then part of the
                format and no text, though too little came to tell what it began.
        """
        if self._running is not None:
            with suppress(StopIteration, MalformedError):
                self._running.send("")
            held = self._take_held()
            if not self._sink.has_begun and not (is_cut and self._has_marker):
                self._sink.pieces.append(held)
            self._end()
        pending = self._pending
        self._pending = ""
        if is_cut:
            pending = pending[: len(pending) - _possible_beginning(pending, self._markers)]
        self._emit(pending)
        return self._take()

    # --- inside a scan

    def _begin(self, marker: str, space: str = "") -> None:
        self._sink.restart()
        self._held = [space + marker]
        self._has_marker = marker in self._markers
        self._running = self._scan(marker, self._sink)
        next(self._running)

    def _advance(self, text: str) -> str:
        """Run the scan over a text. Gives back what is to be read again where it ended in it."""
        assert self._running is not None
        sink = self._sink
        for position, character in enumerate(text):
            try:
                self._running.send(character)
            except StopIteration:
                if not sink.has_found:
                    return self._abandon() + text[position:]
                self._end()
                return text[position:]
            except MalformedError:
                return self._abandon() + text[position:]
            self._held.append(character)
            sink.drop_consumed(self._held)
        return ""

    def _end(self) -> None:
        self._running = None
        self._at_start = False
        self._after_find = True

    def _take_held(self) -> str:
        """What was held before the character sent last, less what is accounted for."""
        self._held.append("")
        self._sink.drop_consumed(self._held)
        return "".join(self._held)

    def _abandon(self) -> str:
        """The format is not followed. Gives back what is to be read again.

        What a scan has read before it found anything is text, and is read once: a text with many
        beginnings takes no longer than others.
        """
        held = self._take_held()
        self._end()
        if self._sink.has_begun:
            return held
        self._after_find = False
        self._sink.pieces.append(held)
        return ""

    # --- outside

    def _pass_through(self, text: str) -> str:
        """Let text through up to a marker. Gives back what follows it."""
        text = self._pending + text
        self._pending = ""
        marker = ""
        if self._at_start and self._starters:
            body = text.lstrip()
            start = len(text) - len(body)
            marker = next((each for each in self._starters if body.startswith(each)), "")
            if not marker and body and any(each.startswith(body) for each in self._starters):
                self._pending = text  # it is not known yet
                return ""
        if not marker:
            places = [(at, each) for each in self._markers if (at := text.find(each)) >= 0]
            start, marker = min(places, default=(len(text), ""))
        if marker:
            space = _space_at_end(text[:start])
            self._emit(text[: start - space])
            self._begin(marker, text[start - space : start])
            return text[start + len(marker) :]
        cut = len(text) - _possible_beginning(text, self._markers)
        cut -= _space_at_end(text[:cut])
        self._pending = text[cut:]
        self._emit(text[:cut])
        return ""

    def _emit(self, text: str) -> None:
        if self._after_find:
            text = text.lstrip()
        if text:
            self._sink.pieces.append(text)
            self._after_find = False
            self._at_start = self._at_start and text.isspace()

    def _take(self) -> list[Piece]:
        merged = merge(self._sink.pieces)
        pieces = [each for each in merged if isinstance(each, CallBegin) or _text_of(each)]
        self._sink.pieces.clear()
        return pieces


_MAX_CHUNK = 1024
_MAX_SPACE = 64


def _space_at_end(text: str) -> int:
    """How much white space ends a text. What is more than a bound is text like any other."""
    return min(_MAX_SPACE, len(text) - len(text.rstrip()))


def _possible_beginning(text: str, markers: Iterable[str]) -> int:
    """How many characters at the end could be the beginning of a marker."""
    return max((overlap(text, each) for each in markers), default=0)


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of a text are the beginning of a marker, but not all of it."""
    start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while start >= 0:
        if marker.startswith(text[start:]):
            return len(text) - start
        start = text.find(marker[0], start + 1)
    return 0


def merge(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with neighbours of a kind joined."""
    merged: list[Piece] = []
    for kind, group in groupby(pieces, key=type):
        if issubclass(kind, CallBegin):
            merged += group
        elif issubclass(kind, str):
            merged.append("".join(_text_of(each) for each in group if isinstance(each, str)))
        else:
            text = "".join(_text_of(each) for each in group if not isinstance(each, CallBegin))
            merged.append(Reasoning(text) if issubclass(kind, Reasoning) else CallArguments(text))
    return merged


def _text_of(piece: str | Reasoning | CallArguments) -> str:
    return piece if isinstance(piece, str) else piece.text
