"""The ``blazr`` command: finds the subcommand in COMMANDS and shows errors on one screen."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from difflib import get_close_matches
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

import blazr
from blazr.cli import COMMANDS
from blazr.core import env, log
from blazr.core.detached import exit_process
from blazr.core.errors import BlazrError, ContextLengthError, RequestError
from blazr.core.files import FULL

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from typer._click import Command, Context

# What a path that was named may be: for somebody else, too long, on a disk that fails.
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EROFS, errno.EIO})
_ALIASES = {"show": "info", "ls": "list"}


class _Commands(TyperGroup):
    """The subcommands, imported when they are asked for."""

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = COMMANDS[name]
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        # each flag of a server may come from BLAZR_<FLAG>, as containers like to have it
        more = {"auto_envvar_prefix": "BLAZR"} if name == "serve" else {}
        # without a summary of our own the list of commands cuts this one in mid-sentence
        summary = (command.__doc__ or "").partition("\n\n")[0]
        single.command(name, short_help=summary, context_settings={**_HELP, **more})(command)
        return typer.main.get_command(single)

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """The command that a line names; for a mistyped one, an error that names the closest."""
        names = [*COMMANDS, *_ALIASES]
        if args and args[0] not in names and not args[0].startswith("-"):
            close = get_close_matches(args[0], names, n=1)
            meant = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"There is no command '{args[0][:50]}'.{meant}")
        return super().resolve_command(ctx, args)


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"blazr {blazr.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Run hybrid language models: Mamba, MLA, MoE and GQA, mixed freely."""


def _replace_closed_streams() -> None:
    """Let streams that were closed before the start go nowhere.

    Python has None in their place, and the next file or socket would get their number, to which
    native libraries write.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _take_any_text() -> None:
    """Let no character end a command, whatever the locale's encoding.

    What stdout cannot show becomes a question mark. A byte of stdin that is no text is refused
    where the text is used, as one of an argument is.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


class _Lossy(FileIO):
    """A file to which writing never fails: what it cannot take is lost."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what can be written; what cannot counts as written."""
        nbytes = memoryview(data).nbytes
        try:
            return super().write(data) or nbytes  # None where it would have to wait
        except OSError:
            return nbytes


def _let_stderr_be_lost() -> None:
    """Let a command work on when stderr is on a full disk, or a pipe that nobody reads.

    Also when Python exits, which would turn the exit code into 120.
    """
    if isinstance(sys.stderr, TextIOWrapper):
        file = _Lossy(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = TextIOWrapper(
            BufferedWriter(file),
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            line_buffering=True,
            write_through=sys.stderr.write_through,
        )


def main() -> None:
    """Run the command line and exit: 0 is success, 1 a failure, 2 a wrong command line."""
    _replace_closed_streams()
    _take_any_text()
    _let_stderr_be_lost()
    log.setup()
    stdout = sys.stdout
    try:
        status = _run()
        stdout.flush()
    except BrokenPipeError:  # its reader has gone (``| head``), which is no failure
        status = 0
    except Exception as error:  # noqa: BLE001  (users get one screen, not a traceback)
        status = _show(error)
    try:
        stdout.flush()
    except OSError:
        # what is left goes nowhere, or Python would try again, complain and exit with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    exit_process(status)


def _run() -> int:
    """Run the command that the command line names; its exit code.

    Raises:
        BrokenPipeError: Nobody reads what is printed.
    """
    stdout = sys.stdout
    try:
        app(prog_name="blazr")
    except SystemExit as end:
        if sys.stdout is not stdout:  # Typer has replaced it
            raise BrokenPipeError from end
        if isinstance(end.code, int):
            return end.code
        raise
    return 0


def _show(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    shows_all = env.flag("BLAZR_DEBUG") or logging.getLogger("blazr").isEnabledFor(logging.DEBUG)
    if shows_all:
        traceback.print_exception(error)
    if isinstance(error, BlazrError):
        log.write_line(f"error: {error}")
    elif isinstance(error, MemoryError):
        log.write_line("error: the system has no memory left.")
        log.write_line("  try       close other programs, or ask for less (--memory)")
    elif isinstance(error, OSError) and error.errno in FULL:
        log.write_line("error: the disk is full.")
        log.write_line(f"  found     {error}")
        log.write_line("  try       make room, or write to another place")
    elif isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename:
        log.write_line("error: a file or directory cannot be used.")
        log.write_line(f"  found     {error.strerror}: {str(error.filename)[:200]}")
        log.write_line("  try       another one, or look who may use it")
    elif isinstance(error, RuntimeError) and "home directory" in str(error):
        # of pathlib and platformdirs, where neither HOME nor the system's users say it
        log.write_line("error: this user has no home directory.")
        log.write_line(f"  found     {error}")
        log.write_line("  try       set HOME to a directory in which this user may write")
    else:
        log.write_line(f"error: {type(error).__name__}: {str(error)[:500]}")
        if not shows_all:
            log.write_line("  this is a bug; -v shows where")
    # what the flags asked for is impossible: wrong usage, unless the text is only too long
    is_usage = isinstance(error, RequestError) and not isinstance(error, ContextLengthError)
    return 2 if is_usage else 1
