"""A chat to token ids: the model's own Jinja template, or a built-in form.

What a client wrote reaches the model as text. Names of special tokens in it are spelled out;
only those that the template itself writes become tokens.
"""

from __future__ import annotations

import json
import math
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile
from typing import TYPE_CHECKING, cast

from blazr.core.errors import CheckpointError, RequestError, TemplateLimitError
from blazr.text.messages import ROLES, SYSTEM_ROLES, Message, function_tool
from blazr.text.stream import PLAIN, ReplyFormat
from blazr.text.templates.escaping import EscapedChat
from blazr.text.templates.spelling import (
    Dict,
    Spelling,
    as_dicts,
    find_spelling,
    has_tools,
    is_simple,
    spell,
)
from blazr.text.templates.turn_marks import ASKED, TurnMarks, find_turn_marks
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls.choose import DEFAULT
from blazr.text.tool_calls.rows import TOOL_FORMATS

if TYPE_CHECKING:
    from blazr.text.templates.program import ChatTemplateProgram

# A rendered chat is a few times what went into it, and a preamble.
_SIZE_PER_CHARACTER = 4
_MIN_SIZE = 1_000_000
# Of processor time, for all trials of a template or of a chat; a long chat has more.
_TRIAL_SECONDS = 1.0
_ASKED_IN_PARTS = [{"type": "text", "text": ASKED}]
_NEXT_TURN: tuple[Dict, ...] = (
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "a"},
)
_TOOL: Dict = function_tool("f", "a", {"type": "object", "properties": {"x": {"type": "string"}}})
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Bound the processor time of all renderings within together, on this thread.

    An inner limit does not extend an outer one. Beyond it, a rendering raises `TemplateLimitError`.
    """
    token = _DEADLINE.set(min(time.thread_time() + seconds, _DEADLINE.get()))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as a template renders it, before it is tokenized.

    Args:
        text: With a stand-in where a client spelled the name of a special token.
        chat: What tells the two apart.
        tokenizer: The model's.
        usable: The special tokens that the model has.
        tail: Where the beginning of a reply follows that is to be gone on with; it is plain text.
        anchors: Where later chats are likely to part from this one, in characters, ascending.
    """

    text: str
    chat: EscapedChat
    tokenizer: Tokenizer
    usable: Mapping[str, int]
    tail: int | None = None
    anchors: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """Two prompts of one key have one meaning wherever their texts are the same."""
        return self.chat.stand_ins

    def __str__(self) -> str:
        """The text as the template would render what the client wrote."""
        return self.chat.restore(self.text)

    def followed_by(self, text: str) -> ChatPrompt:
        """The same with the beginning of a reply."""
        return replace(self, text=self.text + text, tail=len(self.text))

    def encode(self, start: int = 0) -> list[int]:
        """The token ids of the text from character ``start`` on."""
        tail = len(self.text) if self.tail is None else self.tail
        written = self.text[start:tail]
        ids: list[int] = []
        if self.chat.has_names or len(self.usable) < len(self.tokenizer.special_ids):
            ids = self.tokenizer.encode_parts([*self.chat.split(written, self.usable)])
        elif written:
            ids = self.tokenizer.encode(written, allow_special=True)
        begun = self.text[max(start, tail) :]
        return ids + self.tokenizer.encode(begun, continues=bool(tail)) if begun else ids

    def anchor_tokens(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The anchors, in tokens of the prompt's ids.

        Counted by the tokens' bytes, from the end: a few too many or too few where a message spells
        a special token.
        """
        found = []
        num_bytes = 0
        num_tokens = len(ids)
        end = len(self.text)
        for anchor in reversed(self.anchors):
            num_bytes += len(self.text[anchor:end].encode())
            end = anchor
            while num_bytes > 0 and num_tokens > 0:
                num_tokens -= 1
                num_bytes -= len(self.tokenizer.token_bytes(ids[num_tokens]))
            found.append(num_tokens)
        return tuple(reversed(found))


class ChatTemplate:
    """Renders chats for one model. Immutable; threads may share it.

    Args:
        source: The Jinja template.
        name: What it is called.
        tool_source: Another one for chats with tools.
        token_names: What it sees as ``bos_token``, ``eos_token`` and so on.
        stop_names: Special tokens at which a reply ends. None finds them by rendering a chat.
        vocab_size: Rows of the model's embedding. Special tokens beyond it are plain text.
        reply_format: How the model writes its thinking and its calls of tools. Where the template
            does not write tools or calls, they are written in this format.

    Raises:
        CheckpointError: The template is not Jinja, uses what it may not, or takes too much time or
            memory for a chat of one message.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        tool_source: str | None = None,
        token_names: Mapping[str, str] | None = None,
        stop_names: Sequence[str] | None = None,
        vocab_size: int | None = None,
        reply_format: ReplyFormat = PLAIN,
    ) -> None:
        # Imported here: whoever never chats does not pay for Jinja.
        from blazr.text.templates.sandbox import compile_template

        self.name = name
        self.source = source + (tool_source or "")
        self._program = compile_template(source, name=name)
        self._tool_program: ChatTemplateProgram | None = None
        if tool_source is not None:
            self._tool_program = compile_template(tool_source, name=f"{name} (tools)")
        self._token_names = {"bos_token": "", "eos_token": "", **(token_names or {})}
        self._stop_names = stop_names
        self._vocab_size = vocab_size
        self._turn_marks: dict[str, TurnMarks] = {}
        self.reply_format = reply_format
        self._tool_format = reply_format.tool_format or TOOL_FORMATS[DEFAULT]
        # an older kind of template is given the tools as text, and the time
        self._wants_functions = re.search(r"\btools\b", source) is None
        self._spellings: dict[bool, Spelling] = {}
        self._takes_parts = False
        is_written = self._probe(tools=None)
        if not is_written:  # some write parts alone, and leave out a content that is text
            self._takes_parts = self._probe(_ASKED_IN_PARTS, tools=None)
        self._probe(tools=[_TOOL])

    def _probe(self, content: object = ASKED, *, tools: list[Dict] | None) -> bool:
        """Render the smallest chat, so that a hostile template is refused together with its model.

        What else may be wrong, the first chat says: some templates take no chat as small as this.

        Returns:
            Whether the content is written.
        """
        chat = EscapedChat([[{"role": "user", "content": content}], tools, {}], ())
        try:
            return ASKED in self._render_as(Spelling(), chat, add_generation_prompt=True)
        except TemplateLimitError as error:
            raise CheckpointError(
                f"the chat template {self.name} cannot be used: {error.message}",
                found=f"{error.found} (for a chat of one message)",
                hint="name another one with --chat-template",
            ) from None
        except RequestError:
            return False

    def check_roles(self, messages: Iterable[Message]) -> None:
        """Refuse messages of nobody: many templates would write any role, which no model has seen.

        Args:
            messages: A chat. Its roles are the usual ones, or others that this template names.

        Raises:
            RequestError: There is such a message.
        """
        for role in {message.role for message in messages}.difference(ROLES):
            if f"'{role}'" not in self.source and f'"{role}"' not in self.source:
                raise RequestError(
                    "a message has an unknown role.",
                    param="messages",
                    found=repr(role)[:50],
                    expected=", ".join(ROLES),
                )

    def prompt(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
        looks_ahead: bool = False,
    ) -> ChatPrompt:
        """A chat as it is tokenized.

        Args:
            messages: The chat.
            tokenizer: The model's.
            tools: Functions the model may call, as the OpenAI API describes them.
            add_generation_prompt: End with the beginning of the assistant's turn.
            variables: More for the template to see.
            looks_ahead: Find out where later chats are likely to part from it.

        Raises:
            RequestError: The template does not take the messages or variables.
        """
        chat, text, spelling = self._render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            names=tuple(tokenizer.special_ids),
        )
        anchors: set[int] = set()
        if looks_ahead:
            anchors.update(_turn_ends(text, chat))
            # once the user speaks again, some templates drop thoughts, or move the tools
            num_same = len(text)
            with suppress(RequestError):  # it cannot be told
                extended = self._render_as(
                    spelling, chat, add_generation_prompt=False, followed_by=_NEXT_TURN
                )
                num_same = _common_length(text, extended)
            anchors.add(num_same)
        return ChatPrompt(
            text, chat, tokenizer, self._usable(tokenizer), anchors=tuple(sorted(anchors))
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """A chat as text, to be looked at: it does not tell tokens from their spellings.

        Raises:
            RequestError: The template does not take the messages or variables.
        """
        _, text, _ = self._render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            names=(),
        )
        return text

    def stop_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The tokens at which a reply in this form ends, besides the tokenizer's own."""
        usable = self._usable(tokenizer)
        names = self._marks(tokenizer).names if self._stop_names is None else self._stop_names
        return tuple(usable[name] for name in names if name in usable)

    def stop_texts(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """The strings at which a reply ends, where turns are marked by no special token."""
        return self._marks(tokenizer).texts

    @time_limit(_TRIAL_SECONDS)
    def _marks(self, tokenizer: Tokenizer) -> TurnMarks:
        if tokenizer.name not in self._turn_marks:
            self._turn_marks[tokenizer.name] = find_turn_marks(
                lambda messages: self.render(messages, add_generation_prompt=False),
                self._usable(tokenizer),
                has_own_ends=len(tokenizer.eos_ids) > 1,
            )
        return self._turn_marks[tokenizer.name]

    def _usable(self, tokenizer: Tokenizer) -> Mapping[str, int]:
        limit = self._vocab_size
        if limit is None or tokenizer.size <= limit:
            return tokenizer.special_ids
        return {name: each for name, each in tokenizer.special_ids.items() if each < limit}

    def _render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None,
        names: Sequence[str],
    ) -> tuple[EscapedChat, str, Spelling]:
        """The first rendering that the template does not refuse, and how the chat was spelled."""
        variables = variables or {}
        taken = {"messages", "tools", "add_generation_prompt", *self._token_names}
        for name in variables:
            if name in taken or not self._program.takes(name):
                raise RequestError(
                    "a chat template's own variable cannot be set.",
                    param="chat_template_kwargs",
                    found=repr(name)[:100],
                )
        spelling = Spelling()
        if tools or not is_simple(messages):
            spelling = self._find_spelling(with_tools=bool(tools))
        try:
            return self._render_some(
                [as_dicts(messages), list(tools) if tools else None, variables],
                spelling.others(has_calls=has_tools(messages)),
                add_generation_prompt=add_generation_prompt,
                names=names,
            )
        except RecursionError:
            raise RequestError(
                "the messages are nested too deep.",
                param="messages",
                expected="less in each other in arguments of calls, tools and variables",
            ) from None

    def _render_some(
        self,
        values: Sequence[object],
        spellings: Iterable[Spelling],
        *,
        add_generation_prompt: bool,
        names: Sequence[str],
    ) -> tuple[EscapedChat, str, Spelling]:
        """The first of some spellings with which rendering does not fail."""
        chat = EscapedChat(values, names)
        first_error: RequestError | None = None
        with time_limit(_TRIAL_SECONDS * _most_characters(chat) / _MIN_SIZE):
            for attempt in spellings:
                try:
                    text = self._render_as(
                        attempt, chat, add_generation_prompt=add_generation_prompt
                    )
                except TemplateLimitError:
                    raise
                except RequestError as error:
                    first_error = first_error or error
                else:
                    return chat, text, attempt
        assert first_error is not None
        raise first_error

    def _render_as(
        self,
        spelling: Spelling,
        chat: EscapedChat,
        *,
        add_generation_prompt: bool,
        followed_by: Sequence[Dict] = (),
    ) -> str:
        given, tools, variables = cast(
            "tuple[list[Dict], list[Dict] | None, Dict]", deepcopy(chat.values)
        )
        given += followed_by
        messages, shown = spell(given, tools, spelling, self._tool_format)
        if self._takes_parts:
            messages = [{**each, "content": _as_parts(each["content"])} for each in messages]
        more: Dict = {}
        if self._wants_functions:
            functions = [tool.get("function", tool) for tool in tools or ()]
            more["functions"] = json.dumps(functions, ensure_ascii=False)
            more["datetime"] = f"{datetime.now():%Y-%m-%d}"
        program = self._tool_program if tools and self._tool_program else self._program
        return program.render(
            {
                **self._token_names,
                **more,
                **variables,
                "messages": messages,
                "tools": shown,
                "add_generation_prompt": add_generation_prompt,
            },
            size=_most_characters(chat),
            deadline=_DEADLINE.get(),
        )

    @time_limit(_TRIAL_SECONDS)
    def _find_spelling(self, *, with_tools: bool) -> Spelling:
        """What the template wants of chats with tools, found by trying."""
        if with_tools not in self._spellings:

            def render(
                messages: Sequence[Message], tools: Sequence[Dict] | None, spelling: Spelling
            ) -> str:
                chat = EscapedChat([as_dicts(messages), tools, {}], ())
                return self._render_as(spelling, chat, add_generation_prompt=True)

            self._spellings[with_tools] = find_spelling(render, with_tools=with_tools)
        return self._spellings[with_tools]


def _most_characters(chat: EscapedChat) -> int:
    """How long a rendering may be."""
    return _MIN_SIZE + _SIZE_PER_CHARACTER * chat.num_characters


def _as_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _common_length(text: str, other: str) -> int:
    """With how many characters both begin alike; by bisection, which compares whole strings."""
    lengths = range(1, min(len(text), len(other)) + 1)
    return bisect_left(lengths, 1, key=lambda count: text[:count] != other[:count])


def _turn_ends(text: str, chat: EscapedChat) -> Iterator[int]:
    """Where what comes before a conversation ends in its rendering, and where each message does.

    A later chat parts there: another has the same instructions and tools, or one is told anew from
    some message on. Messages that the template does not write as they are have no place.
    """
    messages = cast("tuple[list[Dict], ...]", chat.values)[0]
    conversation = [*dropwhile(lambda each: each["role"] in SYSTEM_ROLES, messages)]
    end = len(text)
    for message in reversed(conversation):
        content = message.get("content")
        written = content.strip() if isinstance(content, str) else ""
        start = text.rfind(written, 0, end) if written else -1
        if start >= 0:
            yield start + len(written)
            end = start
    yield end
