"""``tekken.json``, the vocabularies of Mistral AI: ranks behind a block of special tokens.

Source: tekken.py of mistral-common.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from blazr.core.errors import CheckpointError
from blazr.text import sidecars
from blazr.text.tokenizer import LARGEST_ID, Tokenizer
from blazr.text.tokenizers.byte_pair import from_ranks

NAME = "tekken.json"
_VERSION = re.compile(r"v([0-9]{1,3})")
# The special tokens of files that list none.
_OLD_NAMES = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip

_Id = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: _Id
    default_num_special_tokens: Annotated[int, msgspec.Meta(ge=len(_OLD_NAMES), le=2**16)]


class _Word(msgspec.Struct):
    rank: _Id
    token_bytes: str


class _Special(msgspec.Struct):
    rank: _Id
    token_str: Annotated[str, msgspec.Meta(min_length=1)]
    is_control: bool = True


class _Versioned(msgspec.Struct):
    version: str


class _Head(msgspec.Struct):
    config: _Versioned


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Word]
    special_tokens: list[_Special] | None = None


def version_of(file: Path) -> int | None:
    """The version of Mistral AI's form of a chat that a file names: ``"v13"`` is 13."""
    try:
        version = msgspec.json.decode(file.read_bytes(), type=_Head).config.version
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None
    found = _VERSION.fullmatch(version)
    return int(found[1]) if found else None


def load(path: str) -> Tokenizer:
    """Load a tekken.json.

    Raises:
        CheckpointError: It cannot be read, or is wrong.
    """
    file = Path(path)
    try:
        stored = msgspec.json.decode(sidecars.read_bytes(file), type=_File)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} cannot be used.", found=str(error)[:100]) from error
    num_special = stored.config.default_num_special_tokens
    num_words = stored.config.default_vocab_size - num_special
    words = (each for each in stored.vocab if each.rank < num_words)
    lines = (f"{each.token_bytes} {each.rank + num_special}" for each in words)
    listed = stored.special_tokens
    if listed is None:
        listed = [_Special(rank, text) for rank, text in enumerate(_OLD_NAMES)]
    names = {i: f"<SPECIAL_{i}>" for i in range(num_special)}
    names |= {each.rank: each.token_str for each in listed}
    ids = {name: token_id for token_id, name in names.items()}
    distinct = {each.rank for each in listed}
    if len(ids) < len(names) or len(distinct) < len(listed) or len(names) > num_special:
        raise CheckpointError(
            f'the "special_tokens" of {file.name} are wrong.',
            expected="different names and ids, which are below default_num_special_tokens",
        )
    return from_ranks(
        "\n".join(lines).encode(errors="replace"),
        stored.config.pattern,
        file=file,
        name=file.parent.resolve().name,
        named_ids=ids,
        plain_names={each.token_str for each in listed if not each.is_control},
        eos_ids=[*([ids["</s>"]] if "</s>" in ids else []), *sidecars.eos_ids(file.parent)],
        bos_id=ids.get("<s>"),
    )
