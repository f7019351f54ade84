"""``blazr chat``: a conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.core import env
from blazr.core.errors import BlazrError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Fold
from blazr.text.events import TextDelta
from blazr.text.messages import Message

if TYPE_CHECKING:
    from blazr.llm.llm import LLM

_HELP = """\
/clear         forget the conversation
/system TEXT   set what the model is told first; without TEXT, take it away
/help          this
/exit          leave (also /quit, /bye, Ctrl+D)
Ctrl+C stops an answer."""

_LEAVE = {"/exit", "/quit", "/bye"}
_COMMANDS = ("/clear", "/exit", "/help", "/system")


def chat(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: options.MaxTokens = -1,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    vocab: options.Vocab = None,
    chat_template: options.ChatTemplate = None,
    device: options.DeviceName = "auto",
    cpu: options.Cpu = False,
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = None,
    memory: options.Memory = "auto",
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Talk with a model; it remembers what was said."""
    params = SamplingParams.of(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
    )
    with options.open_llm(
        options.pick_model(model, model_argument),
        device=device,
        cpu=cpu,
        dtype=dtype,
        vocab=vocab,
        chat_template=chat_template,
        memory=memory,
        quantize=quantize,
    ) as llm:
        talk(Conversation(llm, params, system=system), _line_reader())


@dataclass(slots=True)
class Conversation:
    """What has been said, and with whom.

    Args:
        llm: The model.
        params: How it answers.
        system: What it is told first.
        history: The messages after that.
    """

    llm: LLM
    params: SamplingParams
    system: str | None = None
    history: list[Message] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Say something and print the answer as it comes. An answer cut by Ctrl+C is kept."""
        asked = [*self.history, Message(role="user", content=text)]
        told = [Message(role="system", content=self.system)] if self.system else []
        gathered = Fold()
        events = self.llm.events([GenerationRequest(messages=told + asked, params=self.params)])
        try:
            for event in events:
                gathered.push(event)
                if isinstance(event, TextDelta):
                    print(event.text, end="", flush=True)
        except KeyboardInterrupt:
            pass  # the events ended with it
        print()
        completions = gathered.completions()
        if completions and completions[0].error:
            print(f"error: {completions[0].error}", file=sys.stderr)
        elif completions:
            answer = Message(role="assistant", content=completions[0].text)
            self.history = [*asked, answer]

    def obey(self, line: str) -> None:
        """Do what a line that begins with a slash says."""
        command, _, rest = line.partition(" ")
        if command == "/clear":
            self.history.clear()
        elif command == "/system":
            self.system = rest.strip() or None
        elif command == "/help":
            print(_HELP, file=sys.stderr)
        else:
            close = get_close_matches(command, _COMMANDS, n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            print(f"there is no command {command[:50]!r}.{meant} /help lists them", file=sys.stderr)


def talk(conversation: Conversation, read_line: Callable[[], str]) -> None:
    """Read lines and answer them until the input ends or somebody leaves.

    Args:
        conversation: With whom.
        read_line: Gives the next line; raises EOFError at the end.
    """
    while True:
        try:
            line = read_line().strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line.split(" ")[0] in _LEAVE:
            return
        try:
            if line.startswith("/"):
                conversation.obey(line)
            elif line:
                conversation.say(line)
        except BlazrError as error:
            print(f"error: {error}", file=sys.stderr)


def _line_reader() -> Callable[[], str]:
    """Lines with editing and history on a terminal, plain ones otherwise."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return input
    # slow to import, and of use to people only
    from platformdirs import user_state_path
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    history: History = InMemoryHistory()
    if not env.flag("BLAZR_NO_HISTORY"):
        path = user_state_path("blazr", ensure_exists=True) / "history"
        path.touch(mode=0o600)
        history = FileHistory(str(path))
    completer = WordCompleter(_COMMANDS, sentence=True)
    session: PromptSession[str] = PromptSession(history=history, completer=completer)
    print("/help lists the commands", file=sys.stderr)
    return lambda: session.prompt("> ")
