"""``tokenizer.model``, the file of SentencePiece, as the metadata of a GGUF file would have it.

Source: sentencepiece_model.proto, of which the pieces, the kind of model and what is done to a text
beforehand are read; the encoding of Protocol Buffers.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value
from blazr.text import sidecars
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.beside import UnknownKindError, metadata_of
from blazr.text.tokenizers.gguf import from_metadata
from blazr.text.tokenizers.gguf_entries import (
    KEY,
    NORMAL,
    SPACE_PREFIX_ONCE,
    UNKNOWN,
    USER_DEFINED,
    WHOLE,
)

# The fields of a model, by number.
_PIECE = 1
_TRAINER = 2
_NORMALIZER = 3
# Of a piece.
_TEXT = 1
_SCORE = 2
_TYPE = 3
# Of a trainer.
_MODEL_TYPE = 3
_SPACE_IS_SUFFIX = 24
_BOS = 46
_EOS = 47
# Of a normalizer.
_TABLE = 2
_ADDS_SPACE = 3
_REMOVES_SPACES = 4
_MARKS_SPACES = 5
# Models by number; words and characters are the other two.
_MODELS = {1: "t5", 2: "llama"}

# How the encoding writes a field.
_VARINT = 0
_COUNTED = 2
_WIDTHS = {1: 8, 5: 4}

_LARGEST_SIZE = 2**20
_RANKS = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")

_Message = dict[int, int | bytes]


def load(path: str) -> Tokenizer:
    """Load a tokenizer.model and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or holds a kind that is not supported.
    """
    file = Path(path)
    return from_metadata(metadata(file), name=file.parent.resolve().name)


def metadata(file: Path) -> dict[str, Value]:
    """What a GGUF file would say of the tokenizer in a file and of the tokens declared beside it.

    Raises:
        CheckpointError: The file cannot be read, is no model of SentencePiece, or one of a kind
            that is not supported.
    """
    data = sidecars.read_bytes(file)
    if _RANKS.match(data):
        raise UnknownKindError(
            f"{file.name} holds byte-pair ranks, which do not tell how texts are cut.",
            expected="a model of SentencePiece",
            hint="name the vocabulary with --vocab; that of Llama 3 is llama3",
        )
    try:
        return _metadata_of_message(data, file.parent)
    except (ValueError, OverflowError, struct.error) as error:
        raise CheckpointError(
            f"{file.name} cannot be used.",
            found=str(error)[:100],
            expected="a model of SentencePiece",
            hint="name another vocabulary with --vocab",
        ) from error


def _metadata_of_message(data: bytes, directory: Path) -> dict[str, Value]:
    pieces: list[_Message] = []
    trainer: _Message = {}
    normalizer: _Message = {}
    for number, value in _fields(data):
        if number == _PIECE:
            pieces.append(dict(_fields(_bytes(value))))
            if len(pieces) > _LARGEST_SIZE:
                raise ValueError(f"more than {_LARGEST_SIZE} pieces")
        elif number in {_TRAINER, _NORMALIZER}:
            message = trainer if number == _TRAINER else normalizer
            message |= dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("no pieces")
    kinds = [_int(each.get(_TYPE, NORMAL)) for each in pieces]
    scores = (_bytes(each.get(_SCORE, bytes(4))) for each in pieces)
    names = {"bos_token": trainer.get(_BOS, b"<s>"), "eos_token": trainer.get(_EOS, b"</s>")}
    declared = sidecars.read_json(directory / "tokenizer_config.json")
    found = _splitting(trainer, normalizer, declared)
    if UNKNOWN in kinds:
        found[KEY + "unknown_token_id"] = kinds.index(UNKNOWN)
    return found | metadata_of(
        [_text(each.get(_TEXT, b"")) for each in pieces],
        array("i", (WHOLE if each == USER_DEFINED else each for each in kinds)),
        directory,
        roles={role: _text(name) for role, name in names.items()},
        scores=array("f", (struct.unpack("<f", each)[0] for each in scores)),
    )


def _splitting(
    trainer: _Message, normalizer: _Message, declared: Mapping[str, object]
) -> dict[str, Value]:
    """How a text is cut, by the file and by the tokenizer_config.json beside it."""
    kind = _MODELS.get(_int(trainer.get(_MODEL_TYPE, 1)))
    marks_spaces = normalizer.get(_MARKS_SPACES, 1) and not trainer.get(_SPACE_IS_SUFFIX, 0)
    if kind is None or not marks_spaces:
        raise UnknownKindError(
            "the tokenizer.model cuts texts in a way that is not supported.",
            expected="byte pairs or unigrams, with spaces before words",
            hint="name another vocabulary with --vocab",
        )
    is_t5 = str(declared.get("tokenizer_class")).startswith("T5")
    adds_space = bool(normalizer.get(_ADDS_SPACE, 1))
    found: dict[str, Value] = {
        KEY + "model": kind,
        KEY + "pre": "default",
        KEY + "add_space_prefix": adds_space and declared.get("add_prefix_space") is not False,
        KEY + "remove_extra_whitespaces": bool(normalizer.get(_REMOVES_SPACES, 1)),
        KEY + "add_bos_token": declared.get("add_bos_token", not is_t5) is not False,
        KEY + SPACE_PREFIX_ONCE: declared.get("legacy") is False,
    }
    table = _bytes(normalizer.get(_TABLE, b""))
    return found | ({KEY + "precompiled_charsmap": memoryview(table)} if table else {})


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, and what they hold.

    Raises:
        ValueError: It is no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = _varint(data, at) if kind == _COUNTED else (_WIDTHS.get(kind), at)
        if length is None or length > len(data) - at:
            raise ValueError(f"byte {at} belongs to no message")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits to the byte, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # nearly all of them
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"byte {at} ends no number")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"the number {value} stands where text should")  # noqa: TRY004
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode(errors="replace")


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text stands where a number should")  # noqa: TRY004
    return value
