"""``blazr chat``: a conversation."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.conversation import COMMANDS, LEAVE, Conversation
from blazr.cli.partners import LocalPartner, Partner, RemotePartner
from blazr.cli.terminal import LineReader, ReadLine, Screen, read_message
from blazr.cli.tools import ToolFlags
from blazr.core.errors import BlazrError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags(ToolFlags):
    """How to chat with a model, and which tools it may call."""

    system: Annotated[str | None, typer.Option(help="System prompt.")] = None
    think: Annotated[
        bool, typer.Option("--think/--no-think", help="Let a model that can think do so first.")
    ] = True
    hide_thinking: Annotated[
        bool, typer.Option("--hide-thinking", help="Do not show what the model thinks.")
    ] = False

    def open(
        self,
        model: str | None,
        url: str | None,
        load: options.LoadFlags,
        given: dict[str, object],
        *,
        threads: int | None,
    ) -> Conversation:
        """Begin a conversation with a model that is loaded here, or with one of a server.

        Args:
            model: Which; None is the built-in one, or the server's first.
            url: Of the server.
            load: How a model is loaded.
            given: How it is to answer, by the names of `SamplingParams`.
            threads: How many compute; None is all.
        """
        options.sampling_params(given)  # refuses what is out of range before minutes are spent
        user = self.user()
        screen = Screen()
        screen.shows_thinking = not self.hide_thinking
        partner: Partner
        if url is not None:
            partner = RemotePartner(url, model)
        else:
            partner = LocalPartner(model or options.BUILT_IN, load, threads=threads)
        return Conversation(
            partner, given, system=self.system, screen=screen, tools=user, thinks=self.think
        )


@options.with_flags
def chat(
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    url: options.Url = None,
    flags: ChatFlags,
    sampling: options.SamplingFlags,
    load: options.ChatLoadFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,
) -> None:
    """Talk with a model, or with --url to a running server; it remembers what was said."""
    named = options.named_model(model, model_argument)
    conversation = flags.open(named, url, load, sampling.given(), threads=threads)
    conversation.verbose = verbose
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
