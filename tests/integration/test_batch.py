"""``blazr batch``: killed at any moment and started again, it answers each line once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blazr.cli.app import app
from tests.support.seeds import run_seed


def write_requests(path: Path, count: int) -> None:
    """Write short requests, and a long one, before whose end every signal comes."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            tokens = 3 if number < count - 1 else 1000
            prompt = f"Once {number}"
            body = {"model": "nano", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            body["ignore_eos"] = True
            line = {"custom_id": f"n{number}", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def command(folder: Path, output: str) -> list[str]:
    arguments = ["batch", str(folder / "in.jsonl"), "-o", str(folder / output)]
    return [sys.executable, "-m", "blazr", *arguments]


def answer_all(folder: Path, output: str) -> dict[str, str]:
    """The texts, by a batch that nobody stops, without a process and its import of torch."""
    done = CliRunner().invoke(app, command(folder, output)[3:])
    assert done.exit_code == 0, done.output
    return texts_of(folder / output)


def texts_of(path: Path) -> dict[str, str]:
    answers = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    ids = Counter(each["custom_id"] for each in answers)
    assert set(ids.values()) == {1}
    return {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in answers}


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize(
    ("count", "signs"),
    [
        (60, [signal.SIGKILL, signal.SIGINT]),
        pytest.param(
            2000,
            [signal.SIGKILL, signal.SIGINT, signal.SIGTERM],
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],
        ),
    ],
    ids=["some", "many"],
)
def test_killed_and_started_again(tmp_path: Path, count: int, signs: list[int]) -> None:
    rng = random.Random(run_seed(1))
    write_requests(tmp_path / "in.jsonl", count)
    expected = answer_all(tmp_path, "whole.jsonl")
    assert len(expected) == count
    output = tmp_path / "out.jsonl"
    for sign in signs:
        before = output.read_bytes() if output.exists() else b""
        # never so many that the long one has to end for them
        wanted = min(before.count(b"\n") + rng.randint(1, count // 5), count - 1)
        # a shell's job in the background is started without it, and what it starts inherits that
        interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                command(tmp_path, "out.jsonl"), stderr=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGINT, interrupt)
        while process.poll() is None and (
            not output.exists() or output.read_bytes().count(b"\n") < wanted
        ):
            time.sleep(0.005)
        process.send_signal(sign)
        _, told = process.communicate()
        assert process.returncode != 0, "it had finished"
        assert output.read_bytes().startswith(before.rpartition(b"\n")[0])
        if sign == signal.SIGINT:
            assert "run the same command again" in told
    assert answer_all(tmp_path, "out.jsonl") == expected
