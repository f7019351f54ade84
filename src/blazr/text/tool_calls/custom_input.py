"""The input of a custom tool out of the arguments that a model writes for it, as they come."""

from __future__ import annotations

from blazr.text.splitter import MalformedError, Scan, Sink, literal, spaces
from blazr.text.tool_calls.json_scan import quoted, short_string


class InputReader:
    """Takes the one text out of ``{"input": "..."}``, whatever its key.

    Arguments of another shape are the input as they are: nothing is lost.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._held: list[str] = []  # what was read before the text began
        self._is_raw = False
        self._has_begun = False
        self._scan: Scan | None = self._read()
        next(self._scan)

    def push(self, arguments: str) -> str:
        """More of the input, for more of the arguments."""
        for place, c in enumerate(arguments):
            if self._scan is None:
                if self._is_raw:
                    self._text.append(arguments[place:])
                break
            if not self._has_begun:
                self._held.append(c)
            try:
                self._scan.send(c)
            except StopIteration:
                self._scan = None
            except MalformedError:
                self._scan = None
                self._is_raw = not self._has_begun
                if self._is_raw:
                    self._text += self._held
        return self._take()

    def flush(self) -> str:
        """What is left where the arguments end early."""
        if self._scan is not None and not self._has_begun:
            self._text += self._held
        self._scan = None
        return self._take()

    def _read(self) -> Scan:
        c = yield from spaces((yield))
        c = yield from spaces((yield from literal(c, "{")))
        _, c = yield from short_string(c)
        c = yield from spaces(c)
        c = yield from spaces((yield from literal(c, ":")))
        if c != '"':
            raise MalformedError
        self._has_begun = True
        return (yield from quoted(c, Sink(), self._text.append))

    def _take(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text
