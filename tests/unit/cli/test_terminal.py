"""The screen of a chat: wrapping, thinking, the keyboard. The last in a real pseudo-terminal."""

from __future__ import annotations

import io
import os
import pty
import pwd
import re
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs
import pytest

from blazr.cli.terminal import LineReader, Screen, WordWrap

TALK = """
from tests.support.scripted import scripted_core
from blazr.cli.chat import converse
from blazr.cli.conversation import Conversation
from blazr.cli.options import LoadFlags
from blazr.cli.partners import LocalPartner
from blazr.llm.llm import LLM
core = scripted_core()
core.engine.halts_after = 3
converse(Conversation(LocalPartner(LLM.of(core), LoadFlags())))
"""


def seen(written: str) -> list[str]:
    """The lines that a terminal shows, which knows two commands: go left, erase to the end."""
    lines = [""]
    for piece in re.findall(r"\x1b\[\d*[A-Za-z]|\n|[^\x1b\n]+", written):
        if piece == "\n":
            lines.append("")
        elif match := re.fullmatch(r"\x1b\[(\d+)D", piece):
            lines[-1] = lines[-1][: len(lines[-1]) - int(match[1])]
        elif piece != "\x1b[K":
            lines[-1] += piece
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one four three", ["one four", "three"]),
        ("one two  three", ["one two", "three"]),
        ("abcdefghijkl", ["abcdefgh", "ijkl"]),
        ("a abcdefghijkl", ["a", "abcdefgh", "ijkl"]),
        ("one\ntwo three", ["one", "two", "three"]),
        ("日本語日本語", ["日本語日", "本語"]),
        ("ab 日本語日本", ["ab 日本", "語日本"]),
        ("a\x1b[2Jb\x07c\rd", ["a[2Jbcd"]),
    ],
)
def test_lines_break_between_words(text: str, lines: list[str], size: int) -> None:
    wrap = WordWrap(lambda: 9)
    written = "".join(wrap.push(text[i : i + size]) for i in range(0, len(text), size))
    assert seen(written) == lines


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_thinking_is_dimmed_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(out: io.StringIO, *, shows: bool = True) -> str:
        screen = Screen(out)
        screen.shows_thinking = shows
        screen.thinking("\nhm ")
        screen.thinking("so")
        screen.answer("yes")
        screen.end()
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert show(Tty()) == "\x1b[2mhm so\x1b[0m\n\nyes\n"
    assert show(Tty(), shows=False) == "yes\n"
    assert show(io.StringIO()) == "yes\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(Tty()) == "(thinking) hm so\n\nyes\n"


@dataclass
class Terminal:
    """A program in a pseudo-terminal."""

    pid: int
    place: int
    shown: str = ""
    marks: list[int] = field(default_factory=list)

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.shown
            self.read()

    def read(self) -> None:
        try:
            self.shown += os.read(self.place, 65536).decode()
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:  # it has ended
            time.sleep(0.005)

    def has(self, flag: int) -> bool:
        return bool(termios.tcgetattr(self.place)[3] & flag)

    def type(self, text: str) -> None:
        os.write(self.place, text.encode())

    def wait_for_prompt(self) -> None:
        self.wait(lambda: not self.has(termios.ICANON))


@pytest.fixture
def variables() -> dict[str, str]:
    return {"BLAZR_NO_HISTORY": "1"}


@pytest.fixture
def terminal(variables: dict[str, str]) -> Iterator[Terminal]:
    pid, place = pty.fork()
    if pid == 0:
        # Python leaves Ctrl+C ignored where it was, as shells do for what runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        more = {**variables, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-c", TALK], {**os.environ, **more})  # noqa: TID251
    os.set_blocking(place, False)
    yield Terminal(pid, place)
    os.close(place)


@pytest.mark.parametrize("variables", [{"XDG_STATE_HOME": "/proc/none", "BLAZR_NO_HISTORY": "0"}])
def test_a_place_that_takes_no_history(terminal: Terminal) -> None:
    terminal.wait_for_prompt()
    terminal.type("\x04")
    terminal.wait(lambda: os.waitpid(terminal.pid, os.WNOHANG)[0] != 0)
    assert "error" not in terminal.shown


def unknown_place(name: str, *, ensure_exists: bool = False) -> Path:
    """As older versions of platformdirs say it: relative to where the command runs."""
    path = Path("~/.local/state") / name
    if ensure_exists:
        path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("place", [platformdirs.user_state_path, unknown_place])
def test_a_user_without_a_home_has_no_history(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Callable[..., Path]
) -> None:
    """As in containers, which know neither HOME nor the number of the user.

    A directory that is called ~ would be a trap.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_state_path", place)

    def unknown(number: int) -> object:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "BLAZR_NO_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, Tty())
    assert LineReader(("/help",)).is_interactive
    assert not any(tmp_path.iterdir())


def test_a_person_talks(terminal: Terminal) -> None:
    terminal.wait_for_prompt()
    terminal.type("hello\r")
    # it has said some words, and now it says nothing
    terminal.wait(lambda: "one two" in terminal.shown and not terminal.has(termios.ECHO))
    terminal.wait(lambda: terminal.has(termios.ICANON))
    before = len(terminal.shown)
    terminal.type("unseen")
    terminal.type("\x03")
    terminal.wait_for_prompt()
    terminal.type("half a line")
    terminal.wait(lambda: "half a line" in terminal.shown)
    terminal.type("\x03")
    terminal.type("/show messages\r")
    terminal.wait(lambda: "assistant: " in terminal.shown)
    assert "unseen" not in terminal.shown[before:]
    terminal.wait_for_prompt()
    terminal.type("\x03")
    terminal.wait(lambda: "Ctrl+C again" in terminal.shown)
    terminal.wait_for_prompt()
    terminal.type("\x04")
    ended: list[tuple[int, int]] = []

    def has_ended() -> bool:
        ended.append(os.waitpid(terminal.pid, os.WNOHANG))
        return ended[-1][0] != 0

    terminal.wait(has_ended)
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
    assert "user: hello" in terminal.shown
    assert "user: half a line" not in terminal.shown
