"""Which chat template a model gets: the one asked for, its own, or a built-in form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blazr.text import sidecars
from blazr.text.chat_template import ChatTemplate
from blazr.text.response_template import choose_reply_format
from blazr.text.templates import CHAT_TEMPLATES, mistral
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import tekken

# Of families whose models bring none.
_FORMS = {"oxidizr": "oxidizr", "paligemma": "paligemma", "voxtral": "voxtral"}


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
    if directory is not None:
        own = sidecars.own_templates(directory)
    else:
        key = "tokenizer.chat_template"
        texts = {each: text for each, text in (metadata or {}).items() if isinstance(text, str)}
        own = {
            each.removeprefix(f"{key}."): text
            for each, text in texts.items()
            if each.startswith(f"{key}.")
        }
        own |= {"default": texts[key]} if key in texts else {}
    token_names = _token_names(directory, tokenizer)
    stop_names = None
    tool_source = None
    if name_or_path is None and "default" in own:
        name = "the model's own"
        source = own["default"]
        tool_source = own.get("tool_use")
    elif (name := name_or_path or _default_form(directory, family)) in CHAT_TEMPLATES:
        source = CHAT_TEMPLATES[name].source
        stop_names = CHAT_TEMPLATES[name].stop_names
        token_names = _token_names(None, tokenizer)
    elif own.get(name):
        source = own[name]
    else:
        file = Path(name).expanduser()
        if not file.is_file():
            raise CHAT_TEMPLATES.unknown(name, instead="the path of a .jinja file")
        source = sidecars.read_text(file)
    return ChatTemplate(
        source,
        name=name,
        tool_source=tool_source,
        token_names=token_names,
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


def _default_form(directory: Path | None, family: str) -> str:
    """The built-in form for a model that brings none."""
    if family in _FORMS:
        return _FORMS[family]
    version = tekken.version_of(directory / tekken.NAME) if directory is not None else None
    known = [each for each in mistral.VERSIONS if version is not None and each <= version]
    return f"mistral-v{known[-1]}" if known else "generic"


def _token_names(directory: Path | None, tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call ``bos_token`` and ``eos_token``: as declared, else as the tokenizer."""
    by_id = {token_id: name for name, token_id in tokenizer.special_ids.items()}
    ids = {"bos_token": tokenizer.bos_id, "eos_token": next(iter(tokenizer.eos_ids), None)}
    names = {role: by_id[each] for role, each in ids.items() if each is not None and each in by_id}
    return names | (sidecars.token_names(directory) if directory is not None else {})
