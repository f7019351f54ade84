"""The command line on its own: help, errors, exit codes, what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

import blazr
from blazr.cli import COMMANDS
from blazr.cli.app import app
from blazr.cli.chat import Conversation, talk
from blazr.engine.config import EngineConfig
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.llm import LLM
from tests.support.scripted import SCRIPT, scripted_core


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
    ("typed", "meant"), [("generat", "generate"), ("serv", "serve"), ("sho", "show")]
)
def test_a_mistyped_command_is_told_what_was_meant(typed: str, meant: str) -> None:
    done = blazr_cli(typed, "x", check=2)
    assert f"There is no command '{typed}'. Did you mean '{meant}'?" in done.stderr


def test_a_reader_that_leaves_is_no_failure() -> None:
    """As in ``blazr ... | head``: the reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    for args in (["--help"], ["encode", "a b c"]):
        done = subprocess.run(
            [sys.executable, "-m", "blazr", *args],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), args
    os.close(writer)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    help_text = blazr_cli(name, "--help").stdout
    assert "--help" in help_text
    assert COMMANDS[name].__doc__ is not None


def test_run_is_generate() -> None:
    assert "--prompt" in blazr_cli("run", "--help").stdout


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


def test_errors_take_one_screen_and_exit_1() -> None:
    done = blazr_cli("decode", "--ids", "1", "--vocab", "llama33", check=1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "llama3" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in blazr_cli("decode", "-v", "--ids", "1", "--vocab", "x", check=1).stderr


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
    assert "no list of token ids" in done.stderr
    assert len(done.stderr) < 400


def test_flags_have_the_engine_s_defaults() -> None:
    """The command line states them again, because its help must come before torch does."""
    defaults, seen = EngineConfig(), set()
    for name in ("serve", "generate", "chat"):
        group = typer.main.get_command(app)
        command = group.get_command(typer.Context(group), name)
        for row in command.params:
            if hasattr(defaults, row.name):
                seen.add(row.name)
                assert row.default == getattr(defaults, row.name), (name, row.name)
    assert seen == {f.name for f in fields(EngineConfig)} - {"prefill_share"}


def test_a_conversation_remembers_and_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["hi", "", "/system be kind", "again", "/nope", "/help", "/clear", "/exit", "no"])
    with LLM(scripted_core()) as llm:
        conversation = Conversation(llm, SamplingParams())
        talk(conversation, lambda: next(lines))
        prompts = [
            llm.tokenizer.decode(each.prompt_ids, skip_special=False)
            for each in llm.core.engine.submitted
        ]
    assert prompts[0] == "<|user|>\nhi\n<|assistant|>\n"
    assert prompts[1] == (
        "<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"
        f"{SCRIPT}\n<|user|>\nagain\n<|assistant|>\n"
    )
    assert conversation.history == []
    shown = capsys.readouterr()
    assert shown.out == f"{SCRIPT}\n" * 2
    assert "no command '/nope'" in shown.err


def test_a_chat_goes_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["a" * 5000, "hi"])
    with LLM(scripted_core()) as llm:
        conversation = Conversation(llm, SamplingParams())

        def read() -> str:
            for line in lines:
                return line
            raise EOFError

        talk(conversation, read)
    assert len(conversation.history) == 2
    assert "cannot fit" in capsys.readouterr().err
