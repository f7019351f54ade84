"""The commands that load a model, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest


def run(*args: str, stdin: str = "", check: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "blazr", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == check, done.stderr
    return done


# Importing torch takes longer than these commands do.
IN_ONE_PROCESS = """
import contextlib, io, json, sys
from blazr.cli.app import main

given = sys.stdin
for line in given:
    args, said = json.loads(line)
    out, err, code = io.StringIO(), io.StringIO(), None
    sys.argv, sys.stdin = ["blazr", *args], io.StringIO(said)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([out.getvalue(), err.getvalue(), code or 0]), flush=True)
"""


class Shell:
    """Commands one after another in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *args: str, stdin: str = "", check: int = 0) -> tuple[str, str]:
        """What a command prints, stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps((args, stdin)) + "\n")
        self._process.stdin.flush()
        out, err, code = json.loads(self._process.stdout.readline())
        assert code == check, (args, code, err)
        return out, err


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with subprocess.Popen(
        [sys.executable, "-c", IN_ONE_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Shell(process)


def test_generate_prints_the_text_and_nothing_else(model_path: Path, shell: Shell) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "6", "--cpu")
    plain = run("generate", "--model", str(model_path), "--prompt", "hello", *greedy)
    piped, _ = shell.run("generate", str(model_path), "-", *greedy, stdin="hello")
    as_json, _ = shell.run("generate", "-m", str(model_path), "hello", *greedy, "--json")
    found = json.loads(as_json)
    assert plain.stdout == piped == found["text"]
    assert re.fullmatch(r"tiny on cpu \(.*\)\n", plain.stderr)
    assert found["usage"]["prompt_tokens"] == 1
    assert found["finish_reason"] in {"stop", "length"}
    assert set(found["timings"]) == {"load_s", "first_token_s", "generate_s"}


def test_a_word_alone_is_the_prompt(shell: Shell) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "6")
    alone, _ = shell.run("generate", "Once upon a time", *greedy)
    named, _ = shell.run("generate", "-p", "Once upon a time", *greedy)
    assert alone == named
    assert alone


def test_run_asks_one_question_in_the_template(model_path: Path, shell: Shell) -> None:
    flags = ("--temperature", "0", "--max-tokens", "6", "--cpu", "--threads", "1")
    more = ("--system", "be kind", "--min-p", "0.01", "--repetition-penalty", "1.1")
    asked = ("run", str(model_path), "hello", *flags, *more, "--max-seq-len", "200")
    plain, told = shell.run(*asked)
    found = json.loads(shell.run(*asked, "--json")[0])
    both = json.loads(shell.run(*asked, "--json", stdin="and this")[0])
    _, at_length = shell.run(*asked, "--verbose")
    assert plain == found["text"] + "\n"
    assert ", 1 thread), context 200 tokens" in told
    assert "tokens/s" not in told
    assert both["usage"]["prompt_tokens"] > found["usage"]["prompt_tokens"] > 6
    assert "tokens/s" in at_length


def test_run_follows_a_schema(model_path: Path, tmp_path: Path, shell: Shell) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    asked = ("run", str(model_path), "is it?", "--json-schema", str(schema), "--cpu")
    assert json.loads(shell.run(*asked)[0]) in {"yes", "no"}


def test_run_without_a_question() -> None:
    assert "give a question" in run("run", "nano", check=2).stderr


@pytest.mark.parametrize("args", [(), ("-p", "-")])
def test_generate_without_a_prompt(args: tuple[str, ...]) -> None:
    done = run("generate", *args, check=2)
    assert "give a prompt" in done.stderr
    assert "nano on" not in done.stderr  # nothing was loaded for it


def test_generate_refuses_what_cannot_be(model_path: Path, shell: Shell) -> None:
    done = run("generate", "-m", str(model_path), "-p", "a", "--temperature", "9", check=2)
    assert "temperature is out of range" in done.stderr
    _, told = shell.run("generate", "-m", str(model_path / "nothing"), "-p", "a", check=1)
    assert told.startswith("error: ")
    assert "Traceback" not in told


def test_chat_reads_plain_lines(model_path: Path, shell: Shell) -> None:
    said, told = shell.run(
        "chat", str(model_path), "--system", "be kind", "--max-tokens", "4", "--temperature", "0",
        stdin="hello\n/help\n/clear\n",
    )  # fmt: skip
    assert said.strip()
    assert "/system TEXT" in told


def test_info_describes(model_path: Path, shell: Shell) -> None:
    as_json, _ = shell.run("info", "--model", str(model_path), "--json")
    shown, _ = shell.run("show", str(model_path))
    found = json.loads(as_json)
    assert found["config"]["layer_types"] == ["Mamba2", "MlaWithMoe"]
    assert found["parameters"]["total"] > 0
    assert found["derivation"]
    assert not re.search(r"[{}]", shown)  # lines for people; JSON is for programs
    for name in found["config"]:
        assert re.search(rf"^  {name} ", shown, re.MULTILINE), name
    assert '["Mamba2", "MlaWithMoe"]' in shown
    assert "weights bytes" in shown


def test_doctor(shell: Shell) -> None:
    found = json.loads(shell.run("doctor", "--json", "--tables")[0])
    assert found["device"]["auto"]
    assert "cl100k_base" in found["tables"]["blazr.text.vocabs:VOCABS"]
    assert "POST /v1/completions" in found["tables"]["blazr.server.routes:ROUTES"]
    assert found["trial"]["speed"].endswith("tokens/s")
    assert "works" in found["verdict"]


def test_doctor_is_short_and_ends_in_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_KERNELS", "reference")
    lines = run("doctor").stdout.splitlines()
    assert len(lines) < 8
    assert lines[-1].startswith("verdict: blazr works, but slowly: ")
    assert "BLAZR_KERNELS=reference" in lines[-2]


def test_serve_says_where_warns_serves_and_stops(model_path: Path) -> None:
    flags = ["--max-seq-len", "100", "--no-prefix-cache", "--memory", "4MiB", "--threads", "2"]
    variables = {"BLAZR_MAX_RUNNING": "3", "BLAZR_MEMORY": "1 byte"}  # a flag goes before it
    with subprocess.Popen(
        [sys.executable, "-m", "blazr", "serve", str(model_path), "--port", "0", "--cpu", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,  # noqa: TID251  (what a user's shell passes on)
    ) as process:
        assert process.stderr is not None
        said = ""
        while "warning: anyone" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        found = re.search(r"blazr serves tiny on http://0\.0\.0\.0:(\d+)", said)
        assert found is not None
        num_threads = min(2, len(os.sched_getaffinity(0)))
        assert f", {num_threads} thread" in said
        for place in ("/", "/docs", "/v1"):
            assert f" http://127.0.0.1:{found[1]}{place}\n" in said
        caches = (
            r"caches: (\d+\.\d) MiB for 3 sequences at once, with room for \d+ tokens or \d+ rec"
        )
        sizes = re.findall(caches, said)
        assert len(sizes) == 1
        assert 3 < float(sizes[0]) <= 4
        url = f"http://127.0.0.1:{found[1]}"
        body = {"prompt": "hello", "max_tokens": 3}
        with httpx2.Client(base_url=url, timeout=30) as client:
            assert client.get("/health").json()["status"] == "ok"
            for _ in range(2):
                reply = client.post("/generate", json=body)
                assert isinstance(reply.json()["response"], str)
                assert reply.headers["X-Blazr-Prefix-Cache"] == "0/1; off"
            assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 100
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(timeout=30) == 0
        assert "Traceback" not in said + rest


@pytest.mark.parametrize("extra", [[], ["--port", "99999"]])
def test_serve_checks_the_port_before_the_model(shell: Shell, extra: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        args = ["serve", "-m", "/nowhere", "--host", "127.0.0.1", "--port", port, *extra]
        assert "cannot listen" in shell.run(*args, check=1)[1]
