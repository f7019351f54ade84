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
from blazr.engine.sampling_params import SamplingParams


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

    def open_conversation(
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
            model: Name of the model; None is the built-in one, or the server's first.
            url: Address of the server; None loads the model here.
            load: How a model is loaded.
            given: Sampling parameters, by the names of `SamplingParams`.
            threads: CPU threads to compute with; None is all.

        Raises:
            BlazrError: A parameter or the file of tools is wrong, or there is no such model.
        """
        SamplingParams.of(**given)  # refuses what is out of range before minutes are spent
        user = self.build_user()
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
def chat(  # noqa: PLR0913  (one argument per flag)
    ctx: typer.Context,
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
    options.refuse_beside_url(ctx)
    named = options.named_model(model, model_argument)
    conversation = flags.open_conversation(named, url, load, sampling.given(), threads=threads)
    conversation.verbose = verbose
    converse(conversation)


def converse(conversation: Conversation) -> None:
    """Talk until the user leaves, then close the conversation."""
    try:
        reader = LineReader((*COMMANDS, *LEAVE))
        print(conversation.partner.about, file=sys.stderr)
        if reader.is_interactive:
            print("/help lists the commands, Ctrl+D leaves", file=sys.stderr)
        talk(conversation, reader)
    finally:
        conversation.close()


def talk(conversation: Conversation, reader: ReadLine | LineReader) -> None:
    """Read messages and answer them until the input ends or the user leaves.

    Args:
        conversation: What answers.
        reader: Gives the next line; raises EOFError at the end.
    """
    is_person = isinstance(reader, LineReader) and reader.is_interactive
    draft = ""
    has_warned = False  # that one more Ctrl+C leaves
    while True:
        try:
            is_draft = bool(draft)
            text = read_message(reader, draft)
            draft = ""
            has_warned = False
        except EOFError:
            return
        except KeyboardInterrupt:
            draft = ""
            was_typing = isinstance(reader, LineReader) and reader.has_text
            if not is_person or (has_warned and not was_typing):
                return
            has_warned = not was_typing
            if has_warned:
                print("Ctrl+C again, Ctrl+D or /exit leaves", file=sys.stderr)
            continue
        if text.split(" ")[0] in LEAVE:
            return
        if is_person and text == "/edit":
            draft = conversation.last_question
            continue
        _answer(conversation, text, is_draft=is_draft)


def _answer(conversation: Conversation, text: str, *, is_draft: bool) -> None:
    """Run a command, or send a message; an error is printed, and the conversation goes on."""
    try:
        if is_draft and text:
            conversation.say_instead(text)
        elif text.startswith("/") and text.split()[0].count("/") == 1:
            conversation.obey(text)
        elif text:
            conversation.say(text)
    except BlazrError as error:
        print(f"error: {error}", file=sys.stderr)
