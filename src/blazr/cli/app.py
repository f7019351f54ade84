"""The ``blazr`` command: finds the subcommand in COMMANDS and shows errors on one screen."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

import blazr
from blazr.cli import COMMANDS
from blazr.core import env, log
from blazr.core.errors import BlazrError, ContextLengthError, RequestError

if TYPE_CHECKING:
    from typer._click import Command, Context

_ALIASES = {"run": "generate", "show": "info"}


class _Commands(TyperGroup):
    """The subcommands, imported when they are asked for."""

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        # each flag of a server may come from BLAZR_<FLAG>, as containers like to have it
        more = {"auto_envvar_prefix": "BLAZR"} if name == "serve" else {}
        single.command(name, context_settings={**_HELP, **more})(COMMANDS[name])
        return typer.main.get_command(single)


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


def main() -> None:
    """Run the command line and exit: 0 is success, 1 a failure, 2 a wrong command line."""
    log.setup()
    try:
        app(prog_name="blazr")
    except BrokenPipeError:
        # whoever read our output has had enough; keep Python from flushing into the void
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  (users get one screen, not a traceback)
        sys.exit(_report(error))


def _report(error: Exception) -> int:
    shows_all = env.flag("BLAZR_DEBUG") or logging.getLogger("blazr").isEnabledFor(logging.DEBUG)
    if shows_all:
        traceback.print_exception(error)
    if isinstance(error, BlazrError):
        print(f"error: {error}", file=sys.stderr)
    else:
        print(f"error: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr)
        if not shows_all:
            print("  this is a bug; -v shows where", file=sys.stderr)
    # what the flags asked for is impossible: wrong usage, unless the text is only too long
    is_usage = isinstance(error, RequestError) and not isinstance(error, ContextLengthError)
    return 2 if is_usage else 1
