"""The small JSON files beside a tokenizer: which tokens begin and end a text, and the template."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.files import open_regular

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_LARGEST_BYTES = 64 * 2**20
# A token with an id this far behind the others is an error, and would cost memory to believe.
LARGEST_GAP = 2**16
_DIGITS = re.compile(r"[0-9]{1,7}")


def read_json(file: Path) -> dict[str, object]:
    """The object in a JSON file; an empty one where there is no file.

    Raises:
        CheckpointError: The file cannot be opened, or holds no JSON object.
    """
    if not os.path.lexists(file):
        return {}
    try:
        value = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{file.name} is wrong.", found=type(value).__name__, expected="a JSON object"
        )
    return value


def read_bytes(file: Path) -> bytes:
    """The bytes of a file.

    Raises:
        CheckpointError: It cannot be read, or is larger than any vocabulary.
    """
    with open_regular(file) as opened:
        data = opened.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise CheckpointError(
            f"{file.name} is too large.", expected=f"at most {_LARGEST_BYTES} bytes"
        )
    return data


def token_names(directory: Path) -> dict[str, str]:
    """The names of the tokens with a role: ``{"bos_token": "<s>", …}``, those that are declared."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        declared = read_json(directory / file)
        for role in _ROLES:
            text = _text(declared.get(role))
            if text:
                names[role] = text
    return names


def more_special_names(directory: Path) -> list[str]:
    """The names of other tokens that are declared special."""
    listed = read_json(directory / "tokenizer_config.json").get("additional_special_tokens")
    names = [_text(each) for each in listed] if isinstance(listed, list) else []
    return [name for name in names if name]


def added_tokens(directory: Path, *, num_tokens: int) -> dict[int, tuple[str, bool]]:
    """Tokens declared beside a vocabulary's file: their names by id, and which are special.

    Args:
        directory: Where the files are.
        num_tokens: How many tokens the vocabulary has without them.

    Raises:
        CheckpointError: A file cannot be read, or an id lies far behind the others.
    """
    found: dict[int, tuple[str, bool]] = {}
    for name, token_id in read_json(directory / "added_tokens.json").items():
        if type(token_id) is int and token_id >= 0 and _text(name):
            found[token_id] = (name, False)
    listed = read_json(directory / "tokenizer_config.json").get("added_tokens_decoder")
    for key, token in listed.items() if isinstance(listed, Mapping) else ():
        text = _text(token)
        if text and isinstance(token, Mapping) and _DIGITS.fullmatch(key):
            found[int(key)] = (text, token.get("special") is True)
    last = max(found, default=0)
    if last > num_tokens + LARGEST_GAP:
        raise CheckpointError(
            f"a token is declared far behind the {num_tokens} others.",
            found=f"{found[last][0]!r} with the id {last}"[:100],
        )
    return found


def eos_ids(directory: Path) -> list[int]:
    """The ids that end a text, by generation_config.json, else by config.json."""
    for file in ("generation_config.json", "config.json"):
        value = read_json(directory / file).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = [each for each in ids if type(each) is int and each >= 0]
        if found:
            return found
    return []


def own_templates(directory: Path) -> dict[str, str]:
    """The model's chat templates by name; the usual one is called ``"default"``.

    Raises:
        CheckpointError: A file cannot be read.
    """
    own: dict[str, str] = {}
    for file in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(directory / file).get("chat_template")
        if isinstance(found, str):
            own["default"] = found
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict) and isinstance(each.get("template"), str):
                own[str(each.get("name"))] = each["template"]
    main = directory / "chat_template.jinja"
    if os.path.lexists(main):
        own["default"] = read_text(main)
    others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    return {each.stem: read_text(each) for each in others} | own


def read_text(file: Path) -> str:
    """The text in a file.

    Raises:
        CheckpointError: It cannot be read, or is none.
    """
    try:
        return TextIOWrapper(BytesIO(read_bytes(file)), encoding="utf-8").read()
    except ValueError as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error


def _text(token: object) -> str | None:
    """A token's name, written as a string or as an object with its ``content``."""
    if isinstance(token, Mapping):
        token = token.get("content")
    # half a surrogate pair, which JSON can spell, is no character
    is_name = isinstance(token, str) and not any("\ud800" <= each <= "\udfff" for each in token)
    return str(token) if is_name else None
