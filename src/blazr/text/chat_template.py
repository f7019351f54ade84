"""A chat to token ids: the model's own Jinja template, or a built-in form.

What a client wrote reaches the model as text. Names of special tokens in it are spelled out;
only those that the template itself writes become tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blazr.core.errors import CheckpointError, RequestError, UnknownNameError
from blazr.text import sidecars
from blazr.text.messages import Message
from blazr.text.templates import CHAT_TEMPLATES, BuiltInTemplate
from blazr.text.templates.disarm import Disarmed
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.text.templates.sandbox import ChatTemplateProgram

# A rendered chat is a few times what went into it, or a fixed preamble.
_SIZE_PER_CHARACTER = 4
_MIN_SIZE = 1_000_000
_PROBE = (Message(role="user", content="a"), Message(role="assistant", content="blazr-probe"))


class ChatTemplate:
    """Renders chats for one model. Immutable; threads may share it.

    Args:
        source: The Jinja template.
        name: What it is called.
        tool_source: Another one for chats with tools.
        token_names: What it sees as ``bos_token``, ``eos_token`` and so on.
        stop_names: Special tokens at which a reply ends. None finds them by rendering a chat.
        vocab_size: Rows of the model's embedding. Special tokens beyond it are plain text.

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
    ) -> None:
        # Imported here: whoever never chats does not pay for Jinja.
        from blazr.text.templates.sandbox import ChatTemplateProgram

        self.name = name
        self._program = ChatTemplateProgram(source, name=name)
        self._tool_program: ChatTemplateProgram | None = None
        if tool_source is not None:
            self._tool_program = ChatTemplateProgram(tool_source, name=f"{name} (tools)")
        self._token_names = {"bos_token": "", "eos_token": "", **(token_names or {})}
        self._stop_names = stop_names
        self._vocab_size = vocab_size
        self._stop_ids: dict[str, tuple[int, ...]] = {}

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The token ids of a chat.

        Args:
            messages: The chat.
            tokenizer: The model's.
            tools: Functions the model may call, as the OpenAI API describes them.
            add_generation_prompt: End with the beginning of the assistant's turn.
            variables: More for the template to see.

        Raises:
            RequestError: The template does not take the messages or variables.
        """
        given = (list(messages), tools, variables or {})
        chat, text = self._render(given, add_generation_prompt, names=tokenizer.special_ids)
        usable = self._usable(tokenizer)
        if not chat.found and len(usable) == len(tokenizer.special_ids):
            return tokenizer.encode(text, allow_special=True)
        ids: list[int] = []
        for piece in chat.split(text, usable):
            ids += [piece] if isinstance(piece, int) else tokenizer.encode(piece)
        return ids

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
        if tokenizer.name not in self._stop_ids:
            names = self._stop_names
            if names is None:
                names = self._find_stop_names(tokenizer)
            usable = self._usable(tokenizer)
            ids = tuple(usable[name] for name in names if name in usable)
            self._stop_ids[tokenizer.name] = ids
        return self._stop_ids[tokenizer.name]

    def _usable(self, tokenizer: Tokenizer) -> Mapping[str, int]:
        limit = self._vocab_size
        if limit is None or tokenizer.size <= limit:
            return tokenizer.special_ids
        return {name: each for name, each in tokenizer.special_ids.items() if each < limit}

    def _find_stop_names(self, tokenizer: Tokenizer) -> Sequence[str]:
        """The special token that follows a reply in a rendered chat.

        A model that names several end tokens knows its own: in some forms a reply has parts, and
        what follows one of them does not end it.
        """
        if len(tokenizer.eos_ids) > 1:
            return ()
        try:
            text = self.render(_PROBE, add_generation_prompt=False)
        except RequestError:
            return ()
        after = text.partition(str(_PROBE[1].content))[2].lstrip()
        names = [name for name in tokenizer.special_ids if name and after.startswith(name)]
        return sorted(names, key=len)[-1:]

    def _render(
        self,
        given: tuple[list[Message], Sequence[Mapping[str, object]] | None, Mapping[str, object]],
        add_generation_prompt: bool,  # noqa: FBT001  (a step of the two methods above)
        *,
        names: Iterator[str] | Sequence[str] | Mapping[str, int],
    ) -> tuple[Disarmed, str]:
        messages, tools, variables = given
        self._check_variables(variables)
        program = self._tool_program if tools and self._tool_program else self._program
        first_error: RequestError | None = None
        for attempt in _spellings(messages):
            chat = Disarmed([attempt, list(tools) if tools else None, variables], tuple(names))
            copies = chat.values
            assert isinstance(copies, list)
            try:
                return chat, program.render(
                    {
                        **self._token_names,
                        **copies[2],
                        "messages": copies[0],
                        "tools": copies[1],
                        "add_generation_prompt": add_generation_prompt,
                    },
                    size=_MIN_SIZE + _SIZE_PER_CHARACTER * chat.num_characters,
                )
            except RequestError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error

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
) -> ChatTemplate:
    """Find the chat template of a model: the one asked for, else its own, else a built-in form.

    Args:
        directory: Where the model's files are.
        name_or_path: A built-in form, one of the model's named templates, or a file.
        family: What kind of checkpoint the model is.
        tokenizer: The model's.
        vocab_size: Rows of the model's embedding.

    Raises:
        UnknownNameError: ``name_or_path`` is none of them.
        CheckpointError: A file cannot be read, or its template cannot be used.
    """
    own = _read_own(directory) if directory is not None else {}
    names = _token_names(directory, tokenizer)
    if name_or_path is None and "default" in own:
        return ChatTemplate(
            own["default"],
            name="the model's own",
            tool_source=own.get("tool_use"),
            token_names=names,
            vocab_size=vocab_size,
        )
    if name_or_path is None:
        row = CHAT_TEMPLATES["oxidizr" if family == "oxidizr" else "generic"]
        return _built_in(row, tokenizer, vocab_size)
    if name_or_path in CHAT_TEMPLATES:
        return _built_in(CHAT_TEMPLATES[name_or_path], tokenizer, vocab_size)
    source = own.get(name_or_path) or _read_file(name_or_path)
    return ChatTemplate(source, name=name_or_path, token_names=names, vocab_size=vocab_size)


def _built_in(row: BuiltInTemplate, tokenizer: Tokenizer, vocab_size: int | None) -> ChatTemplate:
    return ChatTemplate(
        row.source,
        name=row.name,
        token_names=_token_names(None, tokenizer),
        stop_names=row.stop_names,
        vocab_size=vocab_size,
    )


def _read_own(directory: Path) -> dict[str, str]:
    """The model's templates by name; the usual one is called ``"default"``."""
    own: dict[str, str] = {}
    for file in ("chat_template.json", "tokenizer_config.json"):
        found = sidecars.read_json(directory / file).get("chat_template")
        if isinstance(found, str):
            own["default"] = found
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict) and isinstance(each.get("template"), str):
                own[str(each.get("name"))] = each["template"]
    file_ = directory / "chat_template.jinja"
    if file_.is_file():
        own["default"] = _read_text(file_)
    return own


def _read_file(name: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        try:
            CHAT_TEMPLATES[name]
        except UnknownNameError as error:
            expected = f"{error.expected}, or the path of a .jinja file"
            raise UnknownNameError(error.message, expected=expected, hint=error.hint) from None
    return _read_text(path)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error


def _token_names(directory: Path | None, tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call ``bos_token`` and ``eos_token``: as declared, else as the tokenizer."""
    by_id = {token_id: name for name, token_id in tokenizer.special_ids.items()}
    ids = {"bos_token": tokenizer.bos_id, "eos_token": next(iter(tokenizer.eos_ids), None)}
    names = {role: by_id[each] for role, each in ids.items() if each is not None and each in by_id}
    return names | (sidecars.token_names(directory) if directory is not None else {})


def _spellings(messages: Sequence[Message]) -> Iterator[list[dict[str, object]]]:
    """The ways to write a chat that templates differ in, the most faithful first.

    A null content breaks some templates, which want it empty. The arguments of tool calls are an
    object to most and JSON text to a few.
    """
    has_null = any(message.content is None for message in messages)
    has_calls = any(message.extra and message.extra.get("tool_calls") for message in messages)
    for as_text in (False, True) if has_calls else (False,):
        for null in (None, "") if has_null else (None,):
            yield [_as_dict(message, null, as_text=as_text) for message in messages]


def _as_dict(message: Message, null: str | None, *, as_text: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "role": message.role,
        "content": null if message.content is None else message.content,
    }
    fields |= {**(message.extra or {}), **fields}
    calls = fields.get("tool_calls")
    if isinstance(calls, list | tuple):
        fields["tool_calls"] = [_with_arguments(call, as_text=as_text) for call in calls]
    return fields


def _with_arguments(call: object, *, as_text: bool) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": {**function, "arguments": arguments}}
