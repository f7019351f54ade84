"""A chat on a screen: wrapped answers, dimmed thinking, edited lines, a quiet keyboard."""

from __future__ import annotations

import shutil
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from blazr.core import env

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TAB = 8
_QUOTES = '"""'


class WordWrap:
    """Text with line breaks between words, for a terminal, however it is cut into pieces.

    A word is shown as it comes; when it reaches the edge it is erased and begun again on the next
    line.

    Args:
        width: Gives the columns there are.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._word = ""
        self._word_width = 0

    @property
    def is_within_line(self) -> bool:
        """Whether something stands in the last line."""
        return self._column > 0

    def push(self, text: str) -> str:
        """What to write so that the text appears. Control characters in it do nothing."""
        # in the last column terminals differ in where the cursor is
        edge = max(self._width() - 1, 1)
        return "".join(
            self._place_blank(char, edge) if char in " \t\n" else self._place_letter(char, edge)
            for char in text
        )

    def _place_blank(self, char: str, edge: int) -> str:
        if char == "\n":
            return self._break()
        size = 1 if char == " " else _TAB - self._column % _TAB
        self._word = ""
        self._word_width = 0
        if self._column + size > edge:
            return self._break()
        self._column += size
        return " " * size

    def _place_letter(self, char: str, edge: int) -> str:
        size = _columns(char)
        if size < 0:
            return ""
        before = ""
        if self._column + size > edge:
            word = self._word
            word_width = self._word_width
            is_moved = 0 < word_width < self._column and size < 2
            before = f"\x1b[{word_width}D\x1b[K" if is_moved else ""
            before += self._break()
            if is_moved:
                before += word
                self._column = self._word_width = word_width
                self._word = word
        self._column += size
        # a line may be broken beside any wide character
        is_wide = size > 1
        self._word = "" if is_wide else self._word + char
        self._word_width = 0 if is_wide else self._word_width + size
        return before + char

    def _break(self) -> str:
        self._column = self._word_width = 0
        self._word = ""
        return "\n"


def _columns(char: str) -> int:
    """How wide a character is on a terminal; -1 for control characters."""
    if " " < char <= "~":
        return 1
    from wcwidth import wcwidth  # comes with prompt_toolkit

    return int(wcwidth(char))


class Screen:
    """Where an answer appears.

    On a terminal lines are broken between words and thinking is dimmed; elsewhere there is the text
    of the answer and nothing else.

    Args:
        out: Where to write; None is stdout.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self.is_terminal = self.out.isatty() and env.get("TERM") != "dumb"
        self.wraps = True
        self.shows_thinking = True
        self._has_colour = self.is_terminal and not env.get("NO_COLOR")
        self._wrap = WordWrap(lambda: shutil.get_terminal_size().columns)
        self._is_thinking = False

    @property
    def out(self) -> TextIO:
        """Where it writes: stdout, as it is now, where nothing else was said."""
        return self._out or sys.stdout

    def thinking(self, text: str) -> None:
        """Show a piece of the model's thinking."""
        if not (self.is_terminal and self.shows_thinking):
            return
        if not self._is_thinking:
            self._is_thinking = True
            text = text.lstrip()
            self._write(_DIM if self._has_colour else "", is_text=False)
            if not self._has_colour:
                self._write("(thinking) ")
        self._write(text)

    def answer(self, text: str) -> None:
        """Show a piece of the answer."""
        self._end_thinking()
        self._write(text)

    def pause(self) -> None:
        """Something else is shown on the lines below."""
        self._end_thinking()
        if self.is_terminal and self._wrap.is_within_line:
            self._write("\n")

    def end(self) -> None:
        """The answer is over."""
        self._end_thinking()
        self._write("\n")

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._write(_PLAIN if self._has_colour else "", is_text=False)
            self._write("\n\n")

    def _write(self, text: str, *, is_text: bool = True) -> None:
        if self.is_terminal and is_text:
            # no control characters: a model must not move the cursor or change the terminal
            text = (
                self._wrap.push(text)
                if self.wraps
                else "".join(char for char in text if char in "\n\t" or _columns(char) >= 0)
            )
        self.out.write(text)
        self.out.flush()


@contextmanager
def keyboard(*, echoes: bool) -> Iterator[None]:
    """Show what is typed meanwhile, or keep it for the next line; Ctrl+C works either way.

    Where it is shown, what was typed before is no answer.
    """
    if not sys.stdin.isatty():
        yield
        return
    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)
    wanted = list(before)
    wanted[3] = wanted[3] | termios.ECHO if echoes else wanted[3] & ~termios.ECHO
    termios.tcsetattr(place, termios.TCSANOW, wanted)
    try:
        if echoes:
            termios.tcflush(place, termios.TCIFLUSH)
        yield
    finally:
        termios.tcsetattr(place, termios.TCSANOW, before)


class LineReader:
    """Lines from a person, with editing, history and completion; elsewhere plain lines.

    Args:
        words: What Tab completes.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._session: PromptSession[str] | None = None
        if not self.is_interactive:
            return
        # slow to import, and of use to people only
        from platformdirs import user_state_path
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        history: History = InMemoryHistory()
        if not env.flag("BLAZR_NO_HISTORY"):
            # no home, or one that takes nothing, as in containers
            with suppress(OSError, RuntimeError):
                # without a home it is below a directory that is called ~
                if (folder := user_state_path("blazr")).is_absolute():
                    folder.mkdir(parents=True, exist_ok=True)
                    path = folder / "history"
                    path.touch(mode=0o600)
                    path.open("ab").close()
                    history = FileHistory(str(path))
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._session = PromptSession(
            history=history,
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            enable_open_in_editor=True,
        )

    def __call__(self, prompt: str = "> ", default: str = "") -> str:
        """The next line.

        Raises:
            EOFError: There is none.
            KeyboardInterrupt: Ctrl+C.
        """
        if self._session is None:
            return input()
        return self._session.prompt(prompt, default=default)

    @property
    def has_text(self) -> bool:
        """Whether Ctrl+C came when something stood in the line."""
        return self._session is not None and bool(self._session.default_buffer.text)


ReadLine = Callable[[str, str], str]


def read_message(read_line: ReadLine, default: str = "") -> str:
    """A message of one line, or of several: between triple quotes, or ending in a backslash.

    Args:
        read_line: Gives a line, from a prompt and what stands in the line already.
        default: What stands in the first line.
    """
    line = read_line("> ", default)
    if line.lstrip().startswith(_QUOTES):
        lines = [line.lstrip().removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(read_line("... ", ""))
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines).strip("\n")
    lines = []
    while line.endswith("\\"):
        lines.append(line.removesuffix("\\"))
        line = read_line("... ", "")
    return "\n".join([*lines, line]).strip()
