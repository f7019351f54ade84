"""`GgufTexts`: texts as ids for the encoder in a GGUF file, with its marks around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from blazr.core.errors import CheckpointError
from blazr.text.tokenizers.gguf import from_metadata
from blazr.text.tokenizers.gguf_entries import Entries

if TYPE_CHECKING:
    from blazr.core.gguf_header import Value

# The separator's key is misspelt in the format.
_FIRST_KEYS = ("bos_token_id", "cls_token_id")
_LAST_KEYS = ("eos_token_id", "seperator_token_id", "separator_token_id")
_CLS, _SEP = "[CLS]", "[SEP]"


class GgufTexts:
    """The tokenizer of a GGUF file, called as those of transformers are.

    Args:
        metadata: The file's.
        name: What to call it.
        max_tokens: The longest text.
        num_types: How many types of tokens the network tells apart.
        pad_id: What stands behind shorter texts.

    Attributes:
        truncation_side: Which end of a text that is too long is cut off.

    Raises:
        CheckpointError: The file has no tokenizer, or not the marks that it wants around texts.
    """

    def __init__(
        self,
        metadata: Mapping[str, Value],
        *,
        name: str,
        max_tokens: int,
        num_types: int,
        pad_id: int,
    ) -> None:
        self._tokenizer = from_metadata(metadata, name=name)
        entries = Entries(metadata)
        self._spellings = entries.tokens
        kind = entries.text("model")
        is_bert = kind == "bert"  # whose texts llama.cpp has between marks, whatever keys say
        first = _role(entries, _FIRST_KEYS, _CLS if is_bert else "")
        last = _role(entries, reversed(_LAST_KEYS) if is_bert else _LAST_KEYS, _SEP)
        has_first = is_bert or self._tokenizer.bos_id is not None
        has_last = is_bert or entries.flag("add_eos_token", default=kind == "t5")
        if (has_first and first is None) or (has_last and last is None):
            raise CheckpointError(
                "the GGUF file names no token for the beginning or the end of a text.",
                expected=f"tokenizer.ggml.{_FIRST_KEYS[0]} and {_LAST_KEYS[0]}",
                hint="the file is of an old or foreign converter: convert the model again",
            )
        self._first = [first] if has_first and first is not None else []
        self._last = [last] if has_last and last is not None else []
        # BERT and its like have one mark between two texts, RoBERTa and its like two.
        is_single = last is not None and entries.tokens[last] == _SEP
        self._between = self._last if is_single else self._last * 2
        self._has_types = is_bert and num_types > 1
        self.model_max_length = max_tokens
        self.pad_token_id = pad_id
        self.pad_token_type_id = 0
        self.sep_token_id = self.eos_token_id = last
        self.truncation_side: Literal["left", "right"] = "right"

    def __call__(
        self,
        first: str,
        second: str | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_attention_mask: bool = True,
        add_special_tokens: bool = True,
    ) -> dict[str, list[int]]:
        """The inputs of a text, or of two as one.

        Args:
            first: A text.
            second: Another one.
            truncation: Whether to cut what is too long, of two texts the longer one first.
            max_length: How many tokens that leaves; None are those of the longest text.
            return_attention_mask: Whether to say what attention sees, which is all.
            add_special_tokens: Whether one text gets its marks.

        Raises:
            ValueError: The marks alone are more.
        """
        ids = self._tokenizer.encode(first)
        others = None if second is None else self._tokenizer.encode(second)
        if truncation:
            num_marks = len(self._first) + len(self._last)
            num_marks += 0 if others is None else len(self._between)
            room = (max_length or self.model_max_length) - num_marks
            if room < 0:
                raise ValueError(f"{num_marks} marks, and room for {num_marks + room} tokens")
            kept = _shares(len(ids), len(others or ()), room)
            ids, others = self._cut(ids, kept[0]), others and self._cut(others, kept[1])
        types: list[int] = []
        if not add_special_tokens:
            row = ids
        elif others is None:
            row = [*self._first, *ids, *self._last]
        else:
            head = [*self._first, *ids, *self._between]
            tail = [*others, *self._last]
            row, types = [*head, *tail], [0] * len(head) + [1] * len(tail)
        found = {"input_ids": row}
        if types and self._has_types:
            found["token_type_ids"] = types
        if return_attention_mask:
            found["attention_mask"] = [1] * len(row)
        return found

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self._spellings)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """How the file spells tokens."""
        return [self._spellings[each] for each in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens as a text, with the marks."""
        return self._tokenizer.decode(ids, skip_special=False)

    def _cut(self, ids: list[int], most: int) -> list[int]:
        return ids[:most] if self.truncation_side == "right" else ids[len(ids) - most :]


def _role(entries: Entries, keys: Iterable[str], name: str) -> int | None:
    """The token that the first of some keys names, else that of a usual name."""
    found = next((each for key in keys if (each := entries.token_id(key)) is not None), None)
    if found is None and name in entries.tokens:
        return entries.tokens.index(name)
    return found


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two texts keep: the longer one is cut to the other's length, and then both.

    As the tokenizers library has it where it cuts the longest first.
    """
    if first + second <= room:
        return first, second
    short, long = sorted((first, second))
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (short, long) if first <= second else (long, short)
