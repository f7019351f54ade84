"""``blazr launch``: another program, told of a server that it finds or starts."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.programs import PROGRAMS, LaunchTarget, Program
from blazr.cli.signals import exiting_on_signals
from blazr.core import env
from blazr.core.errors import ConfigError, EngineError
from blazr.core.remote import auth_headers, root_url

DEFAULT_URL = "http://127.0.0.1:8080"
NO_KEY = "blazr"  # programs insist on a key; a server without keys takes any
PROBE_TIMEOUT_S = 2.0
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 10.0
SMALL_CONTEXT = 16_384  # with less, an agent's instructions alone may not fit


def launch(
    program: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help=f"One of {', '.join(PROGRAMS)}."),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The program's own arguments, after --."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Name of a model the server has; else what `blazr serve` takes, and a server is "
            "started.  [default: the server's first, or built-in nano]",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help=f"A server that runs.  [default: {DEFAULT_URL}, if one is there]"),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="API key of the server.")] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Show the settings instead of running the program.")
    ] = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Run a coding agent or a chat page on a model here, with address, key and context set."""
    row = PROGRAMS[program]
    model = options.named_model(model, None)
    if not print_only and shutil.which(row.name) is None:
        raise ConfigError(f"{row.name} is not installed.", hint=row.install)
    if print_only:
        _print_settings(row, args or (), url=url or DEFAULT_URL, key=api_key, model=model)
        return
    with ExitStack() as stack:
        stack.enter_context(exiting_on_signals())
        target = stack.enter_context(_find_or_start_server(url, api_key, model))
        if target.context is not None and target.context < SMALL_CONTEXT:
            _note(
                f"{target.model} has a context of {target.context} tokens; "
                f"{program} may need {SMALL_CONTEXT} for its instructions alone"
            )
        settings = row.settings(target)
        folder = stack.enter_context(TemporaryDirectory(prefix="blazr-launch-"))
        for name, text in settings.files.items():
            (Path(folder) / name).write_text(text, "utf-8")
        command = [row.name, *settings.args_in(folder), *(args or [])]
        process = subprocess.Popen(command, env=env.inherited(**settings.env))
        stack.callback(_stop, process)
        # Ctrl+C reaches the program too, which decides what it means
        while process.poll() is None:
            with suppress(KeyboardInterrupt):
                process.wait()
    raise typer.Exit(process.returncode)


def _print_settings(
    program: Program, args: Sequence[str], *, url: str, key: str | None, model: str | None
) -> None:
    """Print the lines of a shell that do the same; no server is started for them."""
    target = _find_server(url, key, model)
    if target is None:
        command = f"blazr serve {shlex.quote(model or options.BUILT_IN)}"
        _note(f"no server at {url}; start one: {command}")
        target = LaunchTarget(url=url, key=key or NO_KEY, model="default", context=None)
    settings = program.settings(target)
    folder = "/tmp/blazr-launch" if settings.files else ""
    for name, value in settings.env.items():
        print(f"export {name}={shlex.quote(value)}")
    for name, text in settings.files.items():
        print(f"mkdir -p {folder} && cat > {folder}/{name} <<'END'\n{text}\nEND")
    print(shlex.join([program.name, *settings.args_in(folder), *args]))


@contextmanager
def _find_or_start_server(
    url: str | None, key: str | None, model: str | None
) -> Iterator[LaunchTarget]:
    """The server at ``url`` or the usual address, or else one of our own until the block ends.

    Raises:
        ConfigError: There is no server at the address that was named, or not that model.
        EngineError: Our own does not start.
    """
    found = _find_server(url or DEFAULT_URL, key, model)
    if found is not None:
        yield found
        return
    if url is not None:
        raise ConfigError(
            "the server does not answer, or does not have the model."
            if model
            else "no server answers.",
            found=url,
            hint="blazr serve, or leave --url out and a server is started",
        )
    with _running_server(model or options.BUILT_IN, key) as address:
        target = _find_server(address, key, None)
        if target is None:
            raise EngineError("the server that was started lists no model.")
        yield target


def _find_server(url: str, key: str | None, model: str | None) -> LaunchTarget | None:
    """The server at an address; None where none answers, or it does not have the model.

    Raises:
        ConfigError: The address is none, or the server refuses the key.
    """
    url = root_url(url)
    request = urllib.request.Request(f"{url}/v1/models", headers=auth_headers(key))
    try:
        with urllib.request.urlopen(request, timeout=PROBE_TIMEOUT_S) as reply:
            cards = {str(each["id"]): each for each in json.loads(reply.read())["data"]}
    # what answers may be a server of another kind
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code in {401, 403}:
                raise ConfigError(
                    "the server refuses the API key.", found=request.full_url, hint="--api-key"
                ) from None
        return None
    name = next(iter(cards), None) if model is None else model
    if name is None or name not in cards:
        return None
    context = cards[name].get("max_model_len")
    return LaunchTarget(
        url=url,
        key=key or NO_KEY,
        model=name,
        context=context if isinstance(context, int) else None,
    )


@contextmanager
def _running_server(model: str, key: str | None) -> Iterator[str]:
    """Run a server of our own until the block ends; yields its address.

    Raises:
        EngineError: It does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "blazr", "serve", "--model", model]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--api-key", key] if key else []
    with TemporaryDirectory(prefix="blazr-launch-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        try:
            _note(f"starting {model} ...")
            _await_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=PROBE_TIMEOUT_S):
                return
        except OSError:
            time.sleep(0.1)
    tail = log.read_text("utf-8", "replace").strip().splitlines()[-3:]
    raise EngineError("the server did not start.", found=" ".join(tail)[-300:])


def _note(text: str) -> None:
    print(f"blazr: {text}", file=sys.stderr)
