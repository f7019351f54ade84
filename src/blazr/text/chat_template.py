"""A chat to token ids: the model's own Jinja template, or a built-in form.

What a client wrote reaches the model as text. Names of special tokens in it are spelled out;
only those that the template itself writes become tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from blazr.core.errors import RequestError, UnknownNameError
from blazr.text import sidecars
from blazr.text.messages import Message
from blazr.text.response_template import choose_reply_format
from blazr.text.stream import PLAIN, ReplyFormat
from blazr.text.templates import CHAT_TEMPLATES, mistral
from blazr.text.templates.disarm import Disarmed
from blazr.text.templates.spelling import (
    Dict,
    Spelling,
    as_dicts,
    find_spelling,
    has_tools,
    is_simple,
    spell,
)
from blazr.text.templates.turns import TurnMarks, find_turn_marks
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import tekken
from blazr.text.tool_calls import TOOL_FORMATS
from blazr.text.tool_calls.choose import DEFAULT
from blazr.text.tool_calls.format import as_json

if TYPE_CHECKING:
    from blazr.text.templates.sandbox import ChatTemplateProgram

# A rendered chat is a few times what went into it, or a fixed preamble.
_SIZE_PER_CHARACTER = 4
_MIN_SIZE = 1_000_000
_NEXT_TURN: tuple[Dict, ...] = (
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "a"},
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as a template renders it, before it is tokenized.

    Args:
        text: With a stand-in where a client spelled the name of a special token.
        disarmed: What tells the two apart.
        tokenizer: The model's.
        usable: The special tokens that the model has.
        tail: Where the beginning of a reply follows that is to be gone on with; it is plain text.
        num_settled: Leading characters that stay the same once the user speaks again.
    """

    text: str
    disarmed: Disarmed
    tokenizer: Tokenizer
    usable: Mapping[str, int]
    tail: int | None = None
    num_settled: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """Two prompts of one key have one meaning wherever their texts are the same."""
        return self.disarmed.stand_ins

    def followed_by(self, text: str) -> ChatPrompt:
        """The same with the beginning of a reply."""
        return replace(self, text=self.text + text, tail=len(self.text))

    def encode(self, start: int = 0) -> list[int]:
        """The token ids of the text from character ``start`` on."""
        tail = len(self.text) if self.tail is None else self.tail
        ids, chat, written = [], self.disarmed, self.text[start:tail]
        if not chat.found and len(self.usable) == len(self.tokenizer.special_ids):
            ids = self.tokenizer.encode(written, allow_special=True) if written else []
        else:
            for piece in chat.split(written, self.usable):
                ids += [piece] if isinstance(piece, int) else self.tokenizer.encode(piece)
        begun = self.text[max(start, tail) :]
        return ids + self.tokenizer.encode(begun) if begun else ids

    def num_settled_tokens(self, ids: Sequence[int]) -> int:
        """How many of the prompt's token ids stay the same once the user speaks again.

        Counted by the tokens' bytes, from the end: a few too many or too few where a message spells
        a special token.
        """
        num_bytes, num_tokens = len(self.text[self.num_settled :].encode()), len(ids)
        while num_bytes > 0 and num_tokens > 0:
            num_tokens -= 1
            num_bytes -= len(self.tokenizer.token_bytes(ids[num_tokens]))
        return num_tokens


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
        CheckpointError: The template is not Jinja, or uses what it may not.
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
        from blazr.text.templates.sandbox import ChatTemplateProgram

        self.name = name
        self.source = source + (tool_source or "")
        self._program = ChatTemplateProgram(source, name=name)
        self._tool_program: ChatTemplateProgram | None = None
        if tool_source is not None:
            self._tool_program = ChatTemplateProgram(tool_source, name=f"{name} (tools)")
        self._token_names = {"bos_token": "", "eos_token": "", **(token_names or {})}
        self._stop_names = stop_names
        self._vocab_size = vocab_size
        self._turn_marks: dict[str, TurnMarks] = {}
        self.reply_format = reply_format
        self._tool_format = reply_format.tool_format or TOOL_FORMATS[DEFAULT]
        # an older kind of template is given the tools as text, and the time
        self._wants_functions = re.search(r"\btools\b", source) is None
        self._spellings: dict[bool, Spelling] = {}

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
            looks_ahead: Find out how much of it stays the same once the user speaks again.

        Raises:
            RequestError: The template does not take the messages or variables.
        """
        given = (list(messages), tools, variables or {})
        chat, text, spelling = self._render(
            given, add_generation_prompt, names=tokenizer.special_ids
        )
        num_settled = self._num_settled(text, spelling, chat) if looks_ahead else len(text)
        return ChatPrompt(text, chat, tokenizer, self._usable(tokenizer), num_settled=num_settled)

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The token ids of a chat; see `prompt`."""
        return self.prompt(
            messages,
            tokenizer,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        ).encode()

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
        given = (list(messages), tools, variables or {})
        return self._render(given, add_generation_prompt, names=())[1]

    def stop_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The tokens at which a reply in this form ends, besides the tokenizer's own."""
        usable, names = self._usable(tokenizer), self._stop_names
        if names is None:
            names = self._marks(tokenizer).names
        return tuple(usable[name] for name in names if name in usable)

    def stop_texts(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """The strings at which a reply ends, where turns are marked by no special token."""
        return self._marks(tokenizer).texts

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
        given: tuple[list[Message], Sequence[Mapping[str, object]] | None, Mapping[str, object]],
        add_generation_prompt: bool,  # noqa: FBT001  (a step of the two methods above)
        *,
        names: Sequence[str] | Mapping[str, int],
    ) -> tuple[Disarmed, str, Spelling]:
        messages, tools, variables = given
        self._check_variables(variables)
        spelling = Spelling()
        if tools or not is_simple(messages):
            spelling = self._spelling(bool(tools))
        chat = Disarmed(
            [as_dicts(messages), list(tools) if tools else None, variables], tuple(names)
        )
        first_error: RequestError | None = None
        for attempt in spelling.others(has_calls=has_tools(messages)):
            try:
                return chat, self._render_as(attempt, chat, add_generation_prompt), attempt
            except RequestError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error

    def _num_settled(self, text: str, spelling: Spelling, chat: Disarmed) -> int:
        """How many characters of a rendered chat stay the same once the user speaks again.

        Some templates drop the thoughts of earlier turns then, or move the tools.
        """
        try:
            extended = self._render_as(
                spelling, chat, add_generation_prompt=False, followed_by=_NEXT_TURN
            )
        except RequestError:  # it cannot be told
            return len(text)
        lengths = range(1, min(len(text), len(extended)) + 1)
        return bisect_left(lengths, 1, key=lambda count: text[:count] != extended[:count])

    def _render_as(
        self,
        spelling: Spelling,
        chat: Disarmed,
        add_generation_prompt: bool,  # noqa: FBT001  (a step of the method above)
        *,
        followed_by: Sequence[Dict] = (),
    ) -> str:
        given, tools, variables = cast(
            "tuple[list[Dict], list[Dict] | None, Dict]", deepcopy(chat.values)
        )
        given += followed_by
        messages, shown = spell(given, tools, spelling, self._tool_format)
        more: Dict = {}
        if self._wants_functions:
            functions = [tool.get("function", tool) for tool in tools or ()]
            more = {"functions": as_json(functions), "datetime": f"{datetime.now():%Y-%m-%d}"}
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
            size=_MIN_SIZE + _SIZE_PER_CHARACTER * chat.num_characters,
        )

    def _spelling(self, with_tools: bool) -> Spelling:  # noqa: FBT001  (which program)
        """What the template wants of chats with tools, found by trying."""
        if with_tools not in self._spellings:

            def works(
                messages: Sequence[Message], tools: Sequence[Dict] | None, spelling: Spelling
            ) -> str:
                chat = Disarmed([as_dicts(messages), tools, {}], ())
                return self._render_as(spelling, chat, add_generation_prompt=True)

            self._spellings[with_tools] = find_spelling(works, with_tools=with_tools)
        return self._spellings[with_tools]

    def _check_variables(self, variables: Mapping[str, object]) -> None:
        taken = {"messages", "tools", "add_generation_prompt", *self._token_names}
        wrong = next(
            (name for name in variables if name in taken or not self._program.takes(name)), None
        )
        if wrong is not None:
            raise RequestError(
                "a chat template's own variable cannot be set.",
                param="chat_template_kwargs",
                found=repr(wrong)[:100],
            )


def choose_template(
    *,
    directory: Path | None,
    name_or_path: str | None,
    family: str,
    tokenizer: Tokenizer,
    vocab_size: int | None = None,
    metadata: Mapping[str, object] | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> ChatTemplate:
    """Find the chat template of a model: the one asked for, else its own, else a built-in form.

    Args:
        directory: Where the model's files are.
        name_or_path: A built-in form, one of the model's named templates, or a file.
        family: What kind of checkpoint the model is.
        tokenizer: The model's.
        vocab_size: Rows of the model's embedding.
        metadata: What the model's own file says, if it is a GGUF file.
        tool_parser: How the model writes calls of tools, a row of TOOL_FORMATS; ``"none"`` leaves
            them in the text, None lets the template, the family and the vocabulary tell.
        reasoning_parser: How it marks its thinking, a row of REASONING; the same.

    Raises:
        UnknownNameError: ``name_or_path`` is none of them, or a parser is no row.
        CheckpointError: A file cannot be read, or its template cannot be used.
    """
    own = (
        sidecars.own_templates(directory) if directory is not None else _of_metadata(metadata or {})
    )
    names, stop_names, tool_source = _token_names(directory, tokenizer), None, None
    if name_or_path is None and "default" in own:
        name, source, tool_source = "the model's own", own["default"], own.get("tool_use")
    else:
        name = name_or_path or _likely_form(directory, family)
        source = own.get(name, "") if name not in CHAT_TEMPLATES else ""
        if name in CHAT_TEMPLATES:
            row = CHAT_TEMPLATES[name]
            source, stop_names, names = row.source, row.stop_names, _token_names(None, tokenizer)
        source = source or _read_file(name)
    return ChatTemplate(
        source,
        name=name,
        tool_source=tool_source,
        token_names=names,
        stop_names=stop_names,
        vocab_size=vocab_size,
        reply_format=choose_reply_format(
            source + (tool_source or ""),
            family,
            tokenizer.special_ids,
            directory=directory,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
        ),
    )


def _likely_form(directory: Path | None, family: str) -> str:
    """The built-in form for a model that brings none."""
    if family == "oxidizr":
        return "oxidizr"
    version = tekken.version_of(directory / tekken.NAME) if directory is not None else None
    known = [each for each in mistral.VERSIONS if version is not None and each <= version]
    return f"mistral-v{known[-1]}" if known else "generic"


def _of_metadata(metadata: Mapping[str, object]) -> dict[str, str]:
    """The templates in a GGUF file by name."""
    key = "tokenizer.chat_template"
    found = {name: text for name, text in metadata.items() if isinstance(text, str)}
    own = {name[len(key) + 1 :]: text for name, text in found.items() if name.startswith(key + ".")}
    return own | ({"default": found[key]} if key in found else {})


def _read_file(name: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        try:
            CHAT_TEMPLATES[name]
        except UnknownNameError as error:
            expected = f"{error.expected}, or the path of a .jinja file"
            raise UnknownNameError(error.message, expected=expected, hint=error.hint) from None
    return sidecars.read_text(path)


def _token_names(directory: Path | None, tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call ``bos_token`` and ``eos_token``: as declared, else as the tokenizer."""
    by_id = {token_id: name for name, token_id in tokenizer.special_ids.items()}
    ids = {"bos_token": tokenizer.bos_id, "eos_token": next(iter(tokenizer.eos_ids), None)}
    names = {role: by_id[each] for role, each in ids.items() if each is not None and each in by_id}
    return names | (sidecars.token_names(directory) if directory is not None else {})
