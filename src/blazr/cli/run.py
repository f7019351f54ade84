"""``blazr run``: ask one question, or talk."""

from __future__ import annotations

import io
import sys
from time import monotonic
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.chat import ChatFlags, converse
from blazr.cli.conversation import Conversation
from blazr.cli.generate import as_object, is_prompt, raise_if_cut_off, speed_line
from blazr.cli.terminal import Screen
from blazr.core.json_text import dump_json


@options.with_flags
def run(  # noqa: PLR0913  (one argument per flag)
    ctx: typer.Context,
    model_argument: options.ModelArgument = None,
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help="What to ask; what is piped to stdin follows it. Without either, a chat begins.",
            show_default=False,
        ),
    ] = None,
    *,
    model: options.Model = None,
    url: options.Url = None,
    flags: ChatFlags,
    sampling: options.SamplingFlags,
    load: options.ChatLoadFlags,
    threads: options.Threads = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Ask a model one question, in its chat template; without a question, talk with it."""
    options.refuse_beside_url(ctx)
    if question is None and is_prompt(model_argument, model):
        model_argument, question = None, model_argument
    parts = [] if question in {None, "-"} else [str(question)]
    if not sys.stdin.isatty():
        parts.append(options.read_stdin())
    text = "\n\n".join(part for part in parts if part.strip())
    is_chat = not text and sys.stdin.isatty()
    if not (text or is_chat):
        raise typer.BadParameter("give a question, or pipe one to stdin")
    named = options.named_model(model, model_argument)
    started_s = monotonic()
    conversation = flags.open_conversation(named, url, load, sampling.given(), threads=threads)
    timings = {"load_s": monotonic() - started_s}
    conversation.verbose = verbose and is_chat  # of one answer it is said below
    if is_chat:
        converse(conversation)
    else:
        _ask_once(conversation, text, timings, as_json=as_json, verbose=verbose)


def _ask_once(
    conversation: Conversation,
    text: str,
    timings: dict[str, float],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    """Answer one question on stdout; the speed goes to stderr where somebody looks.

    Raises:
        EngineError: The answer was cut off by an error.
    """
    partner = conversation.partner
    try:
        if as_json:
            conversation.screen = Screen(io.StringIO())
        print(partner.about, file=sys.stderr)
        completion = conversation.say(text)
    finally:
        conversation.close()
    if completion is None:
        raise typer.Exit(130)  # Ctrl+C before the first token
    timings |= conversation.timings
    if as_json:
        print(dump_json(as_object(partner.name, completion, timings)))
    if verbose or sys.stderr.isatty():
        print(speed_line(completion, timings), file=sys.stderr)
    if conversation.was_interrupted:
        raise typer.Exit(130)
    raise_if_cut_off(completion)
