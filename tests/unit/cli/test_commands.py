"""The command line on its own: help, errors, exit codes, what it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import blazr
from blazr.cli import COMMANDS, serve
from blazr.cli.app import app
from blazr.cli.generate import is_prompt
from blazr.cli.options import (
    LoadFlags,
    SamplingFlags,
    flag_names,
    set_threads,
)
from blazr.core import log
from blazr.core.errors import ConfigError
from blazr.engine.config import EngineConfig
from blazr.engine.sampling_params import SamplingParams
from blazr.llm import load
from blazr.models.checkpoint.open import names_model


def blazr_cli(*args: str, stdin: str = "", check: int | None = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "blazr", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def run_blazr(
    line: list[str], *, unbuffered: str, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose stdout or stderr is given; other keywords are its environment."""
    streams = {name: more.pop(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, **more}  # noqa: TID251
    command = [sys.executable, "-m", "blazr", *line]
    return subprocess.run(command, env=env, timeout=60, check=False, **streams)


@pytest.mark.smoke
def test_help_lists_every_command() -> None:
    text = blazr_cli("--help").stdout
    for name in COMMANDS:
        assert f"  {name} " in text


def test_summaries_are_whole_sentences() -> None:
    listed = blazr_cli("--help").stdout.partition("Commands:")[2]
    text = " ".join(listed.split())
    for name in COMMANDS:
        summary = " ".join((COMMANDS[name].__doc__ or "").partition("\n\n")[0].split())
        assert summary.endswith(".")
        assert f"{name} {summary}" in text


@pytest.mark.parametrize(
    ("typed", "meant"), [("gener", "generate"), ("serv", "serve"), ("sho", "show")]
)
def test_a_mistyped_command_is_told_what_was_meant(typed: str, meant: str) -> None:
    done = CliRunner().invoke(app, [typed, "x"])
    assert done.exit_code == 2
    assert f"There is no command '{typed}'. Did you mean '{meant}'?" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", [["--help"], ["--version"], ["encode", "a b c"]])
def test_a_reader_that_leaves_is_no_failure(line: list[str], unbuffered: str) -> None:
    """As in ``blazr ... | head``: the reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_blazr(line, stdout=writer, unbuffered=unbuffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "--help" in done.stdout
    assert COMMANDS[name].__doc__ is not None


@pytest.mark.parametrize(
    ("text", "is_model"),
    [
        ("Once upon a time", False),
        ("Hello", False),
        ("either/or and more", False),
        ("nano", True),
        ("org/name", True),
        ("org/name:file.gguf", True),
        ("./models/nano", True),
        ("model.gguf", True),
        ("tests/unit", True),
    ],
)
def test_a_word_that_names_no_model_is_a_prompt(text: str, *, is_model: bool) -> None:
    assert names_model(text) == is_model
    assert is_prompt(text, model=None) != is_model
    assert is_prompt(text, model="named")


def test_commands_with_prompts_share_their_flags() -> None:
    group = typer.main.get_command(app)

    def flags(name: str) -> set[str]:
        return {row.name for row in group.get_command(typer.Context(group), name).params}

    shared = {*flag_names(SamplingFlags), *flag_names(LoadFlags)}
    for name in ("generate", "chat", "run"):
        assert shared <= flags(name)
    assert set(flag_names(LoadFlags)) <= flags("serve")


# What only programs say of a reply, and what --json-schema says.
NO_FLAGS = {
    *("samplers", "logits_processors", "logit_bias", "stop_token_ids", "ignore_eos"),
    *("include_stop", "skip_special_tokens", "logprobs", "prompt_logprobs", "speculate", "n"),
    "grammar",
}


def test_every_sampler_has_a_flag() -> None:
    wanted = {each.name for each in fields(SamplingParams)} - NO_FLAGS
    assert wanted <= {each.name for each in fields(SamplingFlags)}


def test_flags_of_samplers_reach_the_reply() -> None:
    flags = SamplingFlags(
        repeat_last_n=9,
        dry_base=1.5,
        dry_allowed_length=3,
        dry_penalty_last_n=7,
        dry_sequence_breakers=["."],
        allowed_token_ids=[1, 2],
        min_tokens=4,
        min_p=0.1,
    )
    params = SamplingParams.of(**flags.given())
    assert (params.repeat_last_n, params.dry_base, params.dry_allowed_length) == (9, 1.5, 3)
    assert (params.dry_penalty_last_n, params.dry_sequence_breakers) == (7, (".",))
    assert (params.allowed_token_ids, params.min_tokens, params.min_p) == ((1, 2), 4, 0.1)


@pytest.mark.parametrize("schema", ["nowhere.json", "{", "[1"])
def test_a_json_schema_that_cannot_be_read(schema: str) -> None:
    with pytest.raises(ConfigError, match="JSON Schema cannot be read"):
        SamplingFlags(json_schema=schema).given()


@pytest.mark.parametrize("line", ["import blazr", "import blazr.cli.app", "blazr.core"])
def test_nothing_imports_torch_before_it_must(line: str) -> None:
    line = line if line.startswith("import") else f"import {line}"
    code = f"{line}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_commands_without_a_model_do_not_import_torch() -> None:
    code = (
        "import sys; from blazr.cli.app import app;"
        "app(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    for args in (["--help"], ["serve", "--help"], ["decode", "--ids", "1,2"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *args], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, (args, done.stderr)


INTERRUPTED = """
import os, signal, sys, threading
from contextlib import suppress
from blazr.__main__ import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == wanted:
            if works:
                threading.Thread(target=threading.Event().wait, daemon=True).start()
                os.kill(os.getpid(), signal.SIGINT)
            with suppress(KeyboardInterrupt):  # as native modules do
                os.kill(os.getpid(), signal.SIGINT)

*sys.argv, wanted, works = sys.argv
works = works == "works"
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
main()
"""


@pytest.mark.parametrize(
    ("imported", "works", "status"),
    [
        ("typer", "", -signal.SIGINT),
        ("blazr.cli.info", "", -signal.SIGINT),
        ("numpy", "", -signal.SIGINT),
        ("numpy", "works", 130),  # what has begun is ended in order
    ],
)
def test_ctrl_c_ends_a_command_quietly(imported: str, works: str, status: int) -> None:
    """A shell says 130 of either. An import that swallows exceptions does not swallow it."""
    words = [sys.executable, "-c", INTERRUPTED, "info", "nano", imported, works]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_version() -> None:
    assert blazr_cli("--version").stdout == f"blazr {blazr.__version__}\n"


def test_public_names_are_there() -> None:
    assert set(blazr.__all__) <= set(dir(blazr))
    for name in blazr.__all__:
        assert getattr(blazr, name) is not None
    with pytest.raises(AttributeError):
        blazr.nothing  # noqa: B018


@pytest.mark.parametrize(
    "args",
    [
        ["nope"],
        ["generate", "--nope"],
        ["generate", "--max-tokens", "many"],
    ],
)
def test_wrong_command_lines_exit_2(args: list[str]) -> None:
    assert blazr_cli(*args, check=2).stdout == ""


@pytest.mark.parametrize(("wished", "warns"), [(1, False), (9999, True), (10**30, True)])
def test_there_are_no_more_threads_than_processors(
    wished: int, *, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    before = torch.get_num_threads()
    monkeypatch.setattr(log, "once", lambda *told: lines.append(told[-1]))
    try:
        set_threads(wished)
        assert torch.get_num_threads() == min(wished, len(os.sched_getaffinity(0)))
    finally:
        torch.set_num_threads(before)
    assert len(lines) == warns
    assert all(str(wished)[:20] in line for line in lines)


@pytest.mark.parametrize(
    ("flag", "value", "code"),
    [
        ("--concurrency", "0", 1),
        ("--concurrency", "1,65537", 1),
        ("--concurrency", "9" * 5000, 1),
        ("--prompt-tokens", "99999999999", 2),
        ("--output-tokens", "99999999999", 2),
        ("--shared-prefix", "99999999999", 2),
    ],
)
def test_bench_refuses_what_no_machine_could_do(flag: str, value: str, code: int) -> None:
    done = CliRunner().invoke(app, ["bench", flag, value])
    assert done.exit_code == code
    assert isinstance(done.exception, ConfigError if code == 1 else SystemExit)


@pytest.mark.parametrize(
    "line",
    [
        ["chat", ""],
        ["run", "", "hi"],
        ["generate", "", "hi"],
        ["bench", ""],
        ["serve", "", "--port", "0"],
        ["serve", "--model", "a=nano", "--model", "", "--port", "0"],
        ["serve", "--served-model-name", "", "--port", "0"],
        ["mcp", ""],
        ["launch", "claude", "--print", "--model", ""],
    ],
    ids=" ".join,
)
def test_an_empty_name_of_a_model_is_refused(line: list[str]) -> None:
    """Of a shell variable that is not set; the built-in model would answer instead."""
    assert "the name of a model is empty" in blazr_cli(*line, check=1).stderr


@pytest.mark.parametrize("flag", ["cache", "files", "adapter", "weights", "profile"])
def test_an_empty_name_of_a_folder_is_refused(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that the server is started in would be read or filled instead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "open_models", lambda *_: pytest.fail("the models are loaded"))
    done = CliRunner().invoke(app, ["serve", "--port", "0", f"--{flag}-dir", ""])
    assert isinstance(done.exception, ConfigError)
    assert "is empty" in str(done.exception)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("chat --quantize q4_0 --spec ngram -m x", {"--quantize", "--spec"}),
        ("run hi --cpu --threads 2 --temperature 0", {"--cpu", "--threads"}),
        (
            "batch in -o out -m x --max-running 3 --no-prefix-cache",
            {"--model", "--no-prefix-cache"},
        ),
        ("bench -m x --device cpu --seed 1", {"--device"}),
        ("mcp nano --adapter a=b", {"MODEL", "--adapter"}),
    ],
)
def test_flags_that_load_a_model_are_refused_beside_a_server(
    line: str, named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would change nothing of how the server answers."""
    monkeypatch.setenv("BLAZR_MEMORY", "1GB")  # of other commands of the same container
    done = CliRunner().invoke(app, [*line.split(), "--url", "http://127.0.0.1:1"])
    assert isinstance(done.exception, ConfigError)
    assert set(str(done.exception).partition(" cannot be used")[0].split(", ")) == named


@pytest.mark.parametrize("line", ["generate hi", "run hi", "batch in -o out", "serve", "mcp"])
def test_a_limit_of_files_without_their_folder_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_text_engine", lambda *_, **__: pytest.fail("it is loaded"))
    done = CliRunner().invoke(app, [*line.split(), "--cache-disk", "1GiB"])
    assert isinstance(done.exception, ConfigError)
    assert "there is no cache_dir" in str(done.exception)


def test_a_peer_without_a_folder_for_what_it_sends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every request that names the peer would be refused."""
    monkeypatch.setattr(serve, "open_models", lambda *_: pytest.fail("the models are loaded"))
    done = CliRunner().invoke(app, ["serve", "--port", "0", "--kv-peer", "http://10.0.0.1:8100"])
    assert isinstance(done.exception, ConfigError)
    assert "--kv-peer" in str(done.exception)
    assert "--cache-dir" in str(done.exception)


@pytest.mark.parametrize("line", ["chat", "run hi", "batch in -o out", "bench", "mcp"])
def test_an_address_without_http_is_refused_at_once(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a server that may come yet, for which a batch waits for minutes."""
    if line == "mcp":
        pytest.importorskip("mcp")
    monkeypatch.chdir(tmp_path)
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
    (tmp_path / "in").write_text(json.dumps(asked))
    done = CliRunner().invoke(app, [*line.split(), "--url", "127.0.0.1:8080"])
    assert isinstance(done.exception, ConfigError)
    assert "the URL of the server is not understood" in str(done.exception)


def test_errors_take_one_screen_and_exit_1() -> None:
    done = blazr_cli("decode", "--ids", "1", "--vocab", "llama33", check=1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "llama3" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in blazr_cli("decode", "-v", "--ids", "1", "--vocab", "x", check=1).stderr


@pytest.mark.sample(3)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", [["--version"], ["encode", "hi"], ["info", "nano", "--json"]])
def test_a_full_disk_is_not_called_a_bug(line: list[str], unbuffered: str) -> None:
    """What is printed may reach the disk only when Python exits; containers have it unbuffered."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run_blazr(line, stdout=full, unbuffered=unbuffered)
    assert done.returncode == 1
    told = done.stderr.decode()
    assert told.splitlines()[0] == "error: the disk is full."
    assert len(told.splitlines()) == 3, told


@pytest.mark.sample(6)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("lost", ["full", "unread"])
@pytest.mark.parametrize(
    ("line", "status", "printed"),
    [
        (["--version"], 0, f"blazr {blazr.__version__}\n"),
        (["list"], 0, ""),  # says on stderr that there is no model
        (["info", "no/such/folder/"], 1, ""),
        (["encode", "--vocab", "x", "a"], 1, ""),
        (["generate", "--max-token"], 2, ""),
    ],
)
def test_a_lost_stderr_changes_nothing_else(
    tmp_path: Path, line: list[str], status: int, printed: str, lost: str, unbuffered: str
) -> None:
    """What it would say is lost; neither the output nor the exit code may go with it."""
    reader, writer = os.pipe()
    os.close(reader)
    if lost == "full":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run_blazr(line, stderr=writer, unbuffered=unbuffered, HF_HOME=str(tmp_path))
    finally:
        os.close(writer)
    assert (done.returncode, done.stdout.decode()) == (status, printed)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "line", ["decode 1 --vocab", "convert nano", "serve --files-dir", "generate hi --cache-dir"]
)
def test_a_path_that_cannot_be_is_not_called_a_bug(line: str) -> None:
    told = blazr_cli(*line.split(), 300 * "a", check=1).stderr.partition("error: ")[2]
    assert "this is a bug" not in told
    assert 100 * "a" in told
    if sys.version_info < (3, 14):  # later Path.exists() and its like say no more than that
        assert told.startswith(
            "a file or directory cannot be used.\n  found     File name too long"
        )
    assert "bug" not in told


def test_a_user_without_a_home_is_not_called_a_bug() -> None:
    """As containers have them, which know neither HOME nor the number of the user."""
    done = run_blazr(["list"], unbuffered="", HOME="~", HF_HOME="~/models", HF_HUB_CACHE="~/models")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: this user has no home directory.")
    assert b"bug" not in done.stderr


def test_no_character_is_called_a_bug() -> None:
    """Locales with another encoding than UTF-8, and files in one."""
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}  # noqa: TID251
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}  # noqa: TID251
    command = [sys.executable, "-m", "blazr"]
    shown = subprocess.run(
        [*command, "decode", "9080,22656"], env=latin, capture_output=True, check=True
    )
    assert shown.stdout == b"??\n"
    refused = subprocess.run(
        [*command, "encode"], env=strict, input=b"f\xfcr", capture_output=True, check=False
    )
    assert refused.returncode == 2
    assert b"a byte that is not UTF-8, at character 1" in refused.stderr


def test_encode_and_decode_are_inverse() -> None:
    text = "hello <|user|> wörld"
    ids = blazr_cli("encode", "--text", text, "--vocab", "llama3").stdout.strip()
    assert blazr_cli("decode", "--ids", ids, "--vocab", "llama3").stdout == f"{text}\n"
    assert blazr_cli("decode", "-", "--vocab", "llama3", stdin=f"[{ids}]").stdout == f"{text}\n"
    found = json.loads(blazr_cli("encode", "--json", "--special", stdin="<|user|>").stdout)
    assert found == {"vocab": "cl100k_base", "count": 1, "ids": [100278]}


@pytest.mark.parametrize("ids", ["1,x", "1,-2", "100331", "9" * 5000])
def test_wrong_ids_are_told(ids: str) -> None:
    done = blazr_cli("decode", "--ids", ids, check=1)
    assert "token ids are not understood" in done.stderr
    assert len(done.stderr) < 400


def test_flags_have_the_engine_s_defaults() -> None:
    """The command line states them again, because its help must come before torch does."""
    defaults = EngineConfig()
    seen = set()
    for name in ("serve", "generate", "chat"):
        group = typer.main.get_command(app)
        command = group.get_command(typer.Context(group), name)
        for row in command.params:
            if hasattr(defaults, row.name):
                seen.add(row.name)
                assert row.default == getattr(defaults, row.name), (name, row.name)
    assert seen == {f.name for f in fields(EngineConfig)} - {"prefill_share", "warm_up", "sharers"}
