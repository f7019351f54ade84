"""A conversation in the terminal: what was said, and the commands that begin with a slash."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, get_args, get_type_hints

from blazr.cli import options
from blazr.cli.generate import speed_line
from blazr.cli.partners import Partner, Question
from blazr.cli.terminal import Screen, keyboard
from blazr.cli.tools import ToolUser, render_step
from blazr.core import log
from blazr.core.errors import ConfigError, as_config_error
from blazr.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from blazr.llm.results import Completion
    from blazr.text.events import Event
    from blazr.text.messages import Message

LEAVE = ("/exit", "/quit", "/bye")
_SWITCH_VALUES = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class _Switch:
    """A setting that is on or off: an attribute of the conversation, or of its screen."""

    attribute: str
    help: str
    is_of_screen: bool = False


_SWITCHES = {
    "think": _Switch("thinks", "let the model think before it answers"),
    "thinking": _Switch("shows_thinking", "show what it thinks", is_of_screen=True),
    "wrap": _Switch("wraps", "break lines between words", is_of_screen=True),
    "verbose": _Switch("verbose", "show the speed after each answer"),
}
_KEYS = """\
\"\"\"            begin and end a message of several lines; or end each with a \\,
               or press Alt+Enter between two
Ctrl+C         stop an answer, or clear the line
Ctrl+X Ctrl+E  edit the line in $EDITOR
Ctrl+D         leave (also /exit, /quit, /bye)"""


@dataclass(slots=True)
class Conversation:
    """What has been said, and with whom.

    Args:
        partner: Who answers.
        given: How it is to answer, by the names of `SamplingParams`; what is not there is left to
            the model.
        system: The system prompt.
        screen: Where answers appear.
        tools: What runs the tools that the partner calls; None where it has none.
        history: The messages after the system prompt.
        thinks: Whether a model that can think may.
        verbose: Whether the speed is shown after each answer.
        timings: Seconds that the last answer took.
        was_interrupted: Whether Ctrl+C ended it.
        num_forgotten: Messages, the oldest, that the model no longer sees.
        attached: Images and sounds that go with the next message.
    """

    partner: Partner
    given: dict[str, object] = field(default_factory=dict)
    system: str | None = None
    screen: Screen = field(default_factory=Screen)
    tools: ToolUser | None = None
    history: list[Message] = field(default_factory=list)
    thinks: bool = True
    verbose: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    was_interrupted: bool = False
    num_forgotten: int = 0
    attached: list[bytes] = field(default_factory=list)
    _last: Completion | None = None
    _num_tokens: int = 0

    def say(self, text: str) -> Completion | None:
        """Say something and show the answer as it comes; what Ctrl+C cuts off is kept.

        What is attached goes before the text, and is attached no longer, whatever comes of it.

        Returns:
            The answer; None where there was none.

        Raises:
            BlazrError: There is none, because something is wrong.
        """
        from blazr.text.images import Image
        from blazr.text.messages import Message

        images = tuple(Image(0, each) for each in self.attached)
        self.attached = []
        asked = [*self.history, Message(role="user", content=text, images=images)]
        completion = self._show_answer(asked)
        if completion is None:
            return None
        self._last = completion
        self._num_tokens += completion.usage.completion_tokens
        if completion.error:
            _tell(f"error: {completion.error}")
            return completion
        answer = completion.text
        between = self.tools.between if self.tools else ()
        for each in between:  # what was said before a call is part of that message
            if each.role == "assistant":
                answer = answer.removeprefix(each.content or "")
        self.history = [*asked, *between, Message(role="assistant", content=answer)]
        count = completion.num_dropped_messages
        if count and count != self.num_forgotten:
            what = "message no longer fits" if count == 1 else "messages no longer fit"
            _tell(f"(the oldest {count} {what} the context)")
        self.num_forgotten = count
        if self.tools is not None and completion.tool_calls:
            _tell(f"(stopped after {self.tools.max_rounds} rounds of tools)")
        if completion.finish_reason == "length":
            limit = self.given.get("max_tokens", -1)
            _tell("(the context is full)" if limit == -1 else f"(stopped after {limit} tokens)")
        if self.verbose:
            _tell(speed_line(completion, self.timings))
        return completion

    @log.held_back()
    def _show_answer(self, asked: list[Message]) -> Completion | None:
        """Show an answer while it comes."""
        from blazr.llm.results import Fold
        from blazr.text.events import ReasoningDelta, TextDelta, ToolStep
        from blazr.text.messages import Message

        system = [Message(role="system", content=self.system)] if self.system else []
        gathered = Fold()
        started_s = monotonic()
        self.timings = {}
        self.was_interrupted = True  # until the last event is there
        shown_by = {TextDelta: self.screen.answer, ReasoningDelta: self.screen.thinking}
        with suppress(KeyboardInterrupt), keyboard(echoes=False):
            for event in self._events(system + asked):
                gathered.push(event)
                if isinstance(event, ToolStep):
                    self.screen.pause()
                    _tell(render_step(event))
                elif isinstance(event, TextDelta | ReasoningDelta):
                    self.timings.setdefault("first_token_s", monotonic() - started_s)
                    shown_by[type(event)](event.text)
            self.was_interrupted = False
        self.screen.end()
        self.timings["generate_s"] = monotonic() - started_s
        completions = gathered.completions()
        return completions[0] if completions else None

    def _events(self, messages: list[Message]) -> Iterator[Event]:
        question = Question(messages=messages, given=self.given, thinks=self.thinks)
        if self.tools is None:
            return self.partner.answer(question)
        return self.tools.answer(self.partner, question)

    def close(self) -> None:
        """Let go of the partner, and of the tools."""
        if self.tools is not None:
            self.tools.close()
        self.partner.close()

    @property
    def last_question(self) -> str:
        """What was said last; empty where nothing was."""
        said = (each.content for each in reversed(self.history) if each.role == "user")
        return next(said, None) or ""

    def say_instead(self, text: str) -> None:
        """Take back what was said last, with its answer, and say this."""
        users = [i for i, each in enumerate(self.history) if each.role == "user"]
        before = self.history
        if users:
            last = self.history[users[-1]].images
            self.attached = [*(each.data for each in last), *self.attached]
        self.history = self.history[: users[-1]] if users else []
        is_answered = False
        try:
            is_answered = self.say(text) is not None
        finally:
            if not is_answered:
                self.history = before

    def obey(self, line: str) -> None:
        """Do what a line that begins with a slash says.

        Raises:
            BlazrError: It cannot be done.
        """
        command, _, argument = line.partition(" ")
        row = COMMANDS.get(command)
        if row is None:
            close = get_close_matches(command, [*COMMANDS, *LEAVE], n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"There is no command {command[:50]!r}.{meant} /help lists them all.")
        row.run(self, argument.strip())

    def show_help(self, _argument: str) -> None:
        """List the commands."""
        _tell("\n".join(f"{row.usage:<14} {row.help}" for row in COMMANDS.values()))
        _tell(_KEYS)

    def clear(self, _argument: str) -> None:
        """Forget what was said."""
        self.history = []
        _tell("(a new conversation)")

    def set_system(self, argument: str) -> None:
        """Change the system prompt."""
        self.system = argument or None

    def retry(self, _argument: str) -> None:
        """Ask the last question again."""
        if not self.last_question:
            raise ConfigError("Nothing was said yet.")
        self.say_instead(self.last_question)

    def edit(self, argument: str) -> None:
        """Say something else instead of the last message."""
        if not argument:
            raise ConfigError("/edit needs a terminal, or the new text: /edit TEXT")
        self.say_instead(argument)

    def attach(self, argument: str, *, kind: str) -> None:
        """Let an image or a sound go with the next message."""
        from blazr.text.images import Sound, read_image

        if argument:
            data = read_image(_path(argument, f"/{kind}"), param=kind)
            self.attached.append(Sound(data) if kind == "audio" else data)
        else:
            self.attached = []
        count = len(self.attached)
        what = {0: "nothing goes", 1: "1 file goes"}.get(count, f"{count} files go")
        _tell(f"({what} with the next message)")

    def change_model(self, argument: str) -> None:
        """Go on with another model."""
        if argument:
            self.partner.change_model(argument)
        _tell(self.partner.about)

    def set_parameter(self, argument: str) -> None:
        """Change a setting, or with no value take it back."""
        name, _, value = argument.partition(" ")
        name = name.replace("-", "_")
        if name in _SWITCHES:
            self._set_switch(name, value.strip())
            return
        known = _setting_types()
        if name not in known:
            close = get_close_matches(name, [*known, *_SWITCHES], n=1)
            raise ConfigError(
                f"There is no setting {name[:50]!r}." if name else "/set NAME VALUE",
                expected=", ".join([*known, *_SWITCHES]),
                hint=f"/set {close[0]}" if close else "",
            )
        given = {key: each for key, each in self.given.items() if key != name}
        value, kind = value.strip(), known[name]
        if value and kind is str:
            given[name] = [value]
        elif value:
            try:
                given[name] = kind(value)
            except ValueError:
                raise ConfigError(
                    f"/set {name} needs a number.",
                    found=repr(value)[:50],
                    expected="a whole number" if kind is int else "a number",
                ) from None
        SamplingParams.of(**given)  # refuses what is out of range
        self.given = given

    def _set_switch(self, name: str, value: str) -> None:
        if value.lower() not in _SWITCH_VALUES:
            raise ConfigError(f"/set {name} on, or /set {name} off: {_SWITCHES[name].help}")
        setattr(*self._switched_by(name), _SWITCH_VALUES[value.lower()])

    def _switched_by(self, name: str) -> tuple[Conversation | Screen, str]:
        """What a switch changes: an object, and which of its attributes."""
        row = _SWITCHES[name]
        return self.screen if row.is_of_screen else self, row.attribute

    def show(self, argument: str) -> None:
        """Show the model, the settings, the system prompt, or what was said."""
        switches = {name: getattr(*self._switched_by(name)) for name in _SWITCHES}
        settings = [f"{name} = {value!r}" for name, value in self.given.items()]
        settings += [f"{name} = {'on' if value else 'off'}" for name, value in switches.items()]
        parts = {
            "model": self.partner.about,
            "settings": "\n".join(settings),
            "system": self.system or "(no system prompt)",
            "messages": "\n".join(f"{each.role}: {each.content or ''}" for each in self.history)
            or "(nothing was said yet)",
        }
        if argument and argument not in parts:
            raise ConfigError(f"/show shows {', '.join(parts)}.")
        _tell(
            parts[argument]
            if argument
            else "\n".join(parts[name] for name in ("model", "settings"))
        )

    def show_stats(self, _argument: str) -> None:
        """Show tokens and speed."""
        if self._last is None:
            raise ConfigError("Nothing was said yet.")
        _tell(speed_line(self._last, self.timings))
        turns = sum(each.role == "user" for each in self.history)
        _tell(f"turns in this conversation: {turns}; tokens generated in all: {self._num_tokens}")

    def save(self, argument: str) -> None:
        """Write the conversation to a file."""
        from blazr.text.messages import openai_message

        messages = [openai_message(each) for each in self.history]
        kept = {"model": self.partner.name, "system": self.system, "settings": self.given}
        text = json.dumps({**kept, "messages": messages}, indent=2, ensure_ascii=False)
        with as_config_error("The conversation cannot be saved."):
            _path(argument, "/save").write_text(text + "\n", encoding="utf-8")
        _tell(f"(saved {len(messages)} messages to {argument})")

    def load(self, argument: str) -> None:
        """Go on with the conversation of a file: one that was saved, or a list of messages."""
        from blazr.llm.generation import as_message

        try:
            found = json.loads(_path(argument, "/load").read_text(encoding="utf-8-sig"))
            kept = found if isinstance(found, Mapping) else {"messages": found}
            messages = [as_message(each) for each in kept["messages"]]
            given = dict(kept.get("settings") or {})
            SamplingParams.of(**given)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                "The conversation cannot be loaded.",
                found=f"{type(error).__name__}: {str(error)[:200]}",
                expected='what /save writes, or a list of {"role": ..., "content": ...}',
            ) from None
        system = next((each.content for each in messages if each.role == "system"), None)
        self.system = kept.get("system") or system
        self.history = [each for each in messages if each.role != "system"]
        self.given = given or self.given
        _tell(f"({len(self.history)} messages)")


@dataclass(frozen=True, slots=True)
class _Command:
    usage: str
    help: str
    run: Callable[[Conversation, str], None]


_COMMANDS = (
    _Command("/help", "show this", Conversation.show_help),
    _Command("/clear", "forget the conversation", Conversation.clear),
    _Command("/retry", "answer the last message again", Conversation.retry),
    _Command("/edit", "change the last message and send it again", Conversation.edit),
    _Command(
        "/image FILE",
        "let an image go with the next message; without FILE, nothing",
        partial(Conversation.attach, kind="image"),
    ),
    _Command("/audio FILE", "the same with a sound", partial(Conversation.attach, kind="audio")),
    _Command(
        "/system TEXT", "set the system prompt; without TEXT, remove it", Conversation.set_system
    ),
    _Command(
        "/set NAME X",
        f"change a setting (temperature, max_tokens, ...); or {', '.join(_SWITCHES)}: on or off",
        Conversation.set_parameter,
    ),
    _Command("/show WHAT", "show the model, settings, system or messages", Conversation.show),
    _Command("/stats", "show tokens and speed", Conversation.show_stats),
    _Command("/save FILE", "write the conversation to a file", Conversation.save),
    _Command("/load FILE", "go on with a saved conversation", Conversation.load),
    _Command("/model NAME", "go on with another model", Conversation.change_model),
)
COMMANDS = {row.usage.partition(" ")[0]: row for row in _COMMANDS}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _path(text: str, command: str) -> Path:
    if not text:
        raise ConfigError(f"{command} FILE")
    return Path(text).expanduser()


def _setting_types() -> dict[str, type]:
    """What /set can change, with its type: numbers, and strings that stop an answer."""
    hints = get_type_hints(SamplingParams)
    found = dict[str, type]()
    flags = {each.name for each in fields(options.SamplingFlags)}
    for name, hint in hints.items():
        kinds = {hint, *get_args(hint)} & {int, float}
        if kinds and (name in flags or name.endswith("_penalty")):
            found[name] = kinds.pop()
    return {**found, "stop": str}
