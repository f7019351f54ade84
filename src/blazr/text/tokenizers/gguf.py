"""The tokenizer in a GGUF file: its ``tokenizer.ggml.*`` metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value, read_gguf_header
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.gguf_entries import (
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE,
    Entries,
)
from blazr.text.tokenizers.gguf_kinds import KINDS
from blazr.text.tokenizers.hf import MARKER

_SPACES = " \t\n\v\f\r"  # as C has them
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Files often name one token that ends a text, where the model writes several.
_END_NAMES = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<|repo_name|>",  # noqa: RUF001
    "<|file_sep|>", "<turn|>", "<|tool_response>",
)  # fmt: skip
# In the Harmony form this one ends a part of a reply only.
_HARMONY = {"<|return|>", "<|call|>"}
_PART_END = "<|end|>"


def load(path: str) -> Tokenizer:
    """Load the tokenizer of a GGUF file, with tensors in it or without.

    Raises:
        CheckpointError: The file cannot be read, or its tokenizer is of an unknown kind.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            metadata = read_gguf_header(stream).metadata
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error
    return from_metadata(metadata, name=file.stem)


def has_tokenizer(metadata: Mapping[str, Value]) -> bool:
    """Whether a file's metadata hold a tokenizer."""
    return metadata.get(KEY + "model", "none") not in ("none", "no_vocab")


def from_metadata(metadata: Mapping[str, Value], *, name: str) -> Tokenizer:
    """Build the tokenizer that metadata describe.

    Raises:
        CheckpointError: They describe none, or one of an unknown kind.
    """
    entries = Entries(metadata)
    kind = entries.text("model")
    if kind not in KINDS:
        raise CheckpointError(
            "the tokenizer in the GGUF file is of an unknown kind."
            if kind
            else "the GGUF file holds no tokenizer.",
            found=repr(kind)[:100],
            expected=", ".join(KINDS),
            hint="name a tokenizer.json of the same model with --vocab",
        )
    return GgufTokenizer(entries, name=name, kind=kind)


class GgufTokenizer(Tokenizer):
    """A vocabulary with one of llama.cpp's ways to encode.

    Special are control tokens and those spelled ``<|so|>``; other tokens that the file calls
    user-defined are found in any text before the rest of it is encoded.
    """

    def __init__(self, entries: Entries, *, name: str, kind: str) -> None:
        tokens = entries.tokens
        types = entries.types
        ends = _end_ids(entries)
        special_ids: dict[str, int] = {}
        for token_id in reversed(range(len(tokens))):  # of two of one name, the first
            text = tokens[token_id]
            is_special = types[token_id] in {UNKNOWN, CONTROL} or token_id in ends
            if types[token_id] in {USER_DEFINED, WHOLE} and MARKER.fullmatch(text):
                is_special = True
            if text and is_special:
                special_ids[text] = token_id
        special = frozenset(special_ids.values())
        self._encode_part, to_bytes, adds_bos = KINDS[kind](entries, special)
        self._bytes = [
            text.encode()
            if token_id in special
            else b""
            if each == UNUSED
            else to_bytes(text, each)
            for token_id, (text, each) in enumerate(zip(tokens, types, strict=False))
        ]
        super().__init__(
            name=name,
            size=len(tokens),
            special_ids=special_ids,
            gaps=[token_id for token_id, each in enumerate(self._bytes) if not each],
            eos_ids=ends,
            bos_id=entries.token_id("bos_token_id")
            if entries.flag("add_bos_token", adds_bos)
            else None,
            strips_leading_space=kind == "bert"
            or (kind in {"llama", "t5"} and entries.flag("add_space_prefix", default=True)),
        )
        plain = {tokens[i]: i for i in range(self.size) if types[i] == USER_DEFINED and tokens[i]}
        self._found_in_text = _by_length({each: i for each, i in plain.items() if i not in special})
        self._all_found = _by_length({**plain, **special_ids})
        eats_space = "phi-3" in entries.model_name or "phi3" in entries.model_name
        keeps_space = {"<unk>", "<s>", "<|endoftext|>"}
        self._eating = {
            token_id for name, token_id in self._all_found if eats_space and name not in keeps_space
        }

    @override
    def _bytes_of(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    @override
    def _takes_space(self, token_id: int) -> tuple[bool, bool]:
        return False, token_id in self._eating

    @override
    def _encode(self, text: str, *, allow_special: bool, continues: bool) -> list[int]:
        """Encode what lies between the tokens that are found by their names, longest first."""
        names = self._all_found if allow_special else self._found_in_text
        parts: list[str | int] = [text]
        for name, token_id in names:
            if name not in text:
                continue
            eats_space = self._takes_space(token_id)[1]
            pieces: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    pieces.append(part)
                    continue
                first, *others = part.split(name)
                pieces.append(first)
                for each in others:
                    pieces += (token_id, each.lstrip(_SPACES) if eats_space else each)
            parts = pieces
        found: list[int] = []
        for at, part in enumerate(parts):
            if isinstance(part, int):
                found.append(part)
            elif part:
                found += self._encode_part(part, at == 0 and not continues)
        return found


def _by_length(ids: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(ids.items(), key=lambda item: len(item[0].encode()), reverse=True)


def _end_ids(entries: Entries) -> list[int]:
    """Every token that ends a text, the one that the file names first."""
    named = [entries.token_id(key) for key in END_KEYS]
    ids = {text: token_id for token_id, text in enumerate(entries.tokens)}
    ends = [token_id for token_id in named if token_id is not None]
    ends += entries.token_ids("eos_token_ids")
    names = set(_END_NAMES)
    if ends and entries.types[ids.get("</s>", 0)] == NORMAL:
        names.remove("</s>")  # to Gemma it is struck out text in HTML
    if ids.keys() >= _HARMONY:
        names.remove(_PART_END)
        ends = [token_id for token_id in ends if entries.tokens[token_id] != _PART_END]
    ends += [ids[name] for name in _END_NAMES if name in names and name in ids]
    return list(dict.fromkeys(ends))
