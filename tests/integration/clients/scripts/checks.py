"""What the scripts share: what they ask, what a reply must be, and a runner for their checks.

A script is run as ``python SCRIPT URL REPORT MODELS``, with the Python of its client's environment.
It writes to REPORT what became of each check: its name, and null or the traceback. MODELS has the
directories of the models that are served.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

Check = Callable[[str], None]

MODEL = "nano"
KEY = "none"
QUESTION = "Tell me a story about a dog."
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 16
# Closed and small: a model that tells stories would fill its context with what is left open.
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of the next days.",
        "parameters": WEATHER_SCHEMA,
    },
}
_checks: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its function's name."""
    _checks[function.__name__] = function
    return function


def run() -> None:
    """Run the script's checks against the server at argv[1]; write what came of them to argv[2]."""
    url, report = sys.argv[1], Path(sys.argv[2])
    outcomes: dict[str, str | None] = {}
    for name, function in _checks.items():
        try:
            function(url)
            outcomes[name] = None
        except Exception:  # noqa: BLE001  (whatever it is, the report tells it)
            outcomes[name] = traceback.format_exc()
        report.write_text(json.dumps(outcomes), encoding="utf-8")


def is_text(text: object) -> None:
    """Fail unless there is text, with a letter in it."""
    assert isinstance(text, str), text
    assert any(character.isalpha() for character in text), repr(text)


def is_stream_of(pieces: Iterable[str | None], whole: str | None) -> None:
    """Fail unless the pieces, more than one, make up the whole."""
    texts = [piece for piece in pieces if piece]
    assert len(texts) > 1, texts
    assert "".join(texts) == whole, (texts, whole)


def is_usage(prompt: int | None, reply: int | None, total: int | None = None) -> None:
    """Fail unless tokens were counted, and no more than MAX_TOKENS in the reply."""
    assert prompt is not None, "there is no count of the prompt"
    assert reply is not None, "there is no count of the reply"
    assert prompt > 1, prompt
    assert 1 <= reply <= MAX_TOKENS, reply
    assert total is None or total == prompt + reply, (prompt, reply, total)


def is_weather(value: object) -> None:
    """Fail unless a value, or the JSON of one, satisfies WEATHER_SCHEMA."""
    value = json.loads(value) if isinstance(value, str) else value
    assert isinstance(value, dict), value
    assert set(value) == {"city", "days"}, value
    assert value["city"] in {"Paris", "Rome"}, value
    assert value["days"] in range(1, 10), value


def are_vectors(vectors: Sequence[Sequence[float]], num_texts: int = 2) -> None:
    """Fail unless there is a vector for each text, of one length, and no two are the same."""
    assert len(vectors) == num_texts, len(vectors)
    assert len({len(vector) for vector in vectors}) == 1, [len(vector) for vector in vectors]
    assert len(vectors[0]) > 1, vectors[0]
    assert len({tuple(vector) for vector in vectors}) == num_texts, "texts have the same vector"


def launch(url: str, program: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory to its end, by ``blazr launch``."""
    return subprocess.run(
        ["blazr", "launch", program, "--url", url, "--", *arguments],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def writes_hello(url: str, program: str, place: str, *arguments: str) -> None:
    """Fail unless a coding agent, asked for a file, calls its tool and tells of it."""
    home = repository(place)
    done = launch(url, program, *arguments, home=home)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert (home / "hello.txt").exists(), told
    assert (home / "hello.txt").read_text("utf-8") == "hello\n"
    assert "The file is written." in done.stdout, told


def repository(name: str) -> Path:
    """A directory that git knows, with one file in it."""
    folder = Path(name).resolve()
    folder.mkdir()
    (folder / "story.txt").write_text("A dog ran.\n", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    who = ["-c", "user.name=Lily", "-c", "user.email=lily@example.org"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
