"""`blazr launch`: every program is told of the server, and runs with what it was told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer

from blazr.cli.launch import launch
from blazr.cli.programs import PROGRAMS, LaunchTarget
from blazr.core.errors import ConfigError, UnknownNameError
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

RECORDER = f"""#!{sys.executable}
import json, os, sys
files = {{arg: open(arg).read() for arg in sys.argv if arg.endswith("models.json")}}
record = {{"args": sys.argv[1:], "env": dict(os.environ), "files": files}}
open(os.environ["RECORD"], "w").write(json.dumps(record))
sys.exit(7)
"""
# It waits for its end, and says so.
WAITER = f"""#!{sys.executable}
import os, pathlib, signal, sys
record = pathlib.Path(os.environ["RECORD"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(record.write_text("ended")))
record.touch()
signal.pause()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    with serving(scripted_core(max_seq_len=32768)) as server:
        yield server


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every program, as one that writes down how it was run."""
    for name in PROGRAMS:
        path = tmp_path / name
        path.write_text(RECORDER)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RECORD", str(tmp_path / "record.json"))
    return tmp_path / "record.json"


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_runs_with_its_settings(name: str, running: Loopback, installed: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        launch(name, ["--flag", "a b"], url=running.url, api_key="k1")
    assert ended.value.exit_code == 7
    record = json.loads(installed.read_text())
    settings = PROGRAMS[name].settings(
        LaunchTarget(url=running.url, key="k1", model="scripted", context=32768)
    )
    assert settings.env.items() <= record["env"].items()
    assert record["args"][-2:] == ["--flag", "a b"]
    told = json.dumps([record["args"], settings.env, list(record["files"].values())])
    for word in (running.url, "k1", "scripted"):
        assert word in told
    assert "32768" in told or name == "open-webui"
    assert "{files}" not in told


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_settings_are_shown(
    name: str, running: Loopback, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(name, url=running.url, print_only=True)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("export ") and running.url in line for line in lines) or (
        running.url in lines[-1]
    )
    assert lines[-1].startswith(name)


def test_without_a_server_the_default_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    launch("claude", url="http://127.0.0.1:9", print_only=True)
    shown = capsys.readouterr()
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:9" in shown.out
    assert "no server" in shown.err


def test_codex_reads_its_settings() -> None:
    target = LaunchTarget(url="http://h:1", key="k", model='a"b', context=9)
    args = PROGRAMS["codex"].settings(target).args
    config = tomllib.loads("\n".join(args[1::2]))
    assert set(args[::2]) == {"-c"}
    assert config["model"] == 'a"b'
    assert config["model_context_window"] == 9
    assert config["model_providers"]["blazr"]["base_url"] == "http://h:1/v1"


def test_a_program_that_is_not_there(running: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="claude is not installed") as told:
        launch("claude", url=running.url)
    assert "npm install" in str(told.value)
    with pytest.raises(UnknownNameError):
        launch("emacs", url=running.url)


def test_a_server_that_is_not_there(installed: Path) -> None:
    with pytest.raises(ConfigError, match="no server answers"):
        launch("codex", url="http://127.0.0.1:9")
    assert not installed.exists()


LISTS = [b'["a"]', b"[null]", b"{}", b'[{"name": "a"}]', b"1"]


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0\r\n", *(b'HTTP/1.0 200 OK\r\n\r\n{"data": %b}' % each for each in LISTS)]
)
def test_a_server_of_something_else(answer: bytes, installed: Path) -> None:
    """Anything may listen on the usual port."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ConfigError, match="no server answers"):
                launch("codex", url=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert not installed.exists()


def test_a_model_the_server_has_not(running: Loopback, installed: Path) -> None:
    with pytest.raises(ConfigError, match="does not have the model"):
        launch("codex", url=running.url, model="other")
    assert not installed.exists()


def test_a_key_that_is_missing(installed: Path) -> None:
    with serving(scripted_core(), api_keys=("right",)) as server:
        with pytest.raises(ConfigError, match="refuses the API key"):
            launch("codex", url=server.url)
        with pytest.raises(typer.Exit):
            launch("codex", url=server.url, api_key="right")
    assert installed.exists()


def test_a_program_ends_with_its_launcher(running: Loopback, installed: Path) -> None:
    """Whoever stops the launcher, a supervisor say, leaves nothing that runs."""
    program = installed.with_name("claude")
    program.write_text(WAITER)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "blazr", "launch", "claude", "--url", running.url]
    )
    try:
        wait_until(installed.exists, timeout_s=60)
        launcher.terminate()
        assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        launcher.kill()
    assert installed.read_text() == "ended"


@pytest.mark.slow
def test_a_server_is_started(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blazr.cli.launch.DEFAULT_URL", "http://127.0.0.1:9")
    with pytest.raises(typer.Exit):
        launch("claude")
    env = json.loads(installed.read_text())["env"]
    assert env["ANTHROPIC_MODEL"] == "nano"
    assert env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"].isdigit()
