"""``blazr chat``: a conversation."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.conversation import COMMANDS, LEAVE, Conversation
from blazr.cli.partners import open_partner
from blazr.cli.terminal import LineReader, ReadLine, Screen, read_message
from blazr.cli.tools import ToolFlags
from blazr.core.errors import BlazrError

System = Annotated[str | None, typer.Option(help="System prompt.")]
Think = Annotated[
    bool, typer.Option("--think/--no-think", help="Let a model that can think do so first.")
]
HideThinking = Annotated[
    bool, typer.Option("--hide-thinking", help="Do not show what the model thinks.")
]


@options.with_flags
def chat(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    url: options.Url = None,
    system: System = None,
    think: Think = True,
    hide_thinking: HideThinking = False,
    tools: ToolFlags,
    sampling: options.SamplingFlags,
    load: options.ChatLoadFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,
) -> None:
    """Talk with a model, or with --url to a running server; it remembers what was said."""
    given = sampling.given()
    options.sampling_params(given)  # refuses what is out of range before minutes are spent
    name = options.pick_model(model, model_argument) if model or model_argument else None
    user = tools.user()
    partner = open_partner(name, url, load, threads=threads)
    screen = Screen()
    screen.shows_thinking = not hide_thinking
    conversation = Conversation(
        partner, given, system=system, screen=screen, tools=user, thinks=think, verbose=verbose
    )
    converse(conversation)


def converse(conversation: Conversation) -> None:
    """Talk until somebody leaves, then let go of the partner and the tools."""
    try:
        reader = LineReader((*COMMANDS, *LEAVE))
        print(conversation.partner.about, file=sys.stderr)
        if reader.is_interactive:
            print("/help lists the commands, Ctrl+D leaves", file=sys.stderr)
        talk(conversation, reader)
    finally:
        conversation.close()


def talk(conversation: Conversation, reader: ReadLine | LineReader) -> None:
    """Read messages and answer them until the input ends or somebody leaves.

    Args:
        conversation: With whom.
        reader: Gives the next line; raises EOFError at the end.
    """
    is_person = isinstance(reader, LineReader) and reader.is_interactive
    draft = ""
    wants_out = False
    while True:
        try:
            is_draft = bool(draft)
            text = read_message(reader, draft)
            draft = ""
            wants_out = False
        except EOFError:
            return
        except KeyboardInterrupt:
            draft = ""
            was_typing = isinstance(reader, LineReader) and reader.has_text
            if not is_person or (wants_out and not was_typing):
                return
            wants_out = not was_typing
            if wants_out:
                print("Ctrl+C again, Ctrl+D or /exit leaves", file=sys.stderr)
            continue
        if text.split(" ")[0] in LEAVE:
            return
        if is_person and text == "/edit":
            draft = conversation.last_question
            continue
        _answer(conversation, text, is_draft=is_draft)


def _answer(conversation: Conversation, text: str, *, is_draft: bool) -> None:
    """Obey a command, or say something; errors are told, and the talk goes on."""
    try:
        if is_draft and text:
            conversation.say_instead(text)
        elif text.startswith("/") and text.split()[0].count("/") == 1:
            conversation.obey(text)
        elif text:
            conversation.say(text)
    except BlazrError as error:
        print(f"error: {error}", file=sys.stderr)
