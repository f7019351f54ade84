"""Filling in the middle: a prefix and a suffix as the token ids that a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.core.errors import RequestError
from blazr.core.table import Table
from blazr.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """Where the special tokens stand (prefix, suffix, middle: arXiv:2207.14255).

    Args:
        before: Before the prefix.
        between: Between prefix and suffix.
        after: After the suffix, where the middle begins.
    """

    before: str
    between: str
    after: str


INFILL_FORMATS: Table[InfillFormat] = Table(
    "infill format",
    {
        "qwen": InfillFormat("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        "starcoder": InfillFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        "granite": InfillFormat("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        "codellama": InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>"),
        "deepseek": InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001
    },
)


def encode_infill(tokenizer: Tokenizer, prefix: str, suffix: str, vocab_size: int) -> list[int]:
    """The token ids that ask for what stands between two texts.

    Raises:
        RequestError: The vocabulary has no tokens for it.
    """
    known = {name: i for name, i in tokenizer.special_ids.items() if i < vocab_size}
    for row in INFILL_FORMATS.values():
        marks = (row.before, row.between, row.after)
        if all(name in known for name in marks):
            before, between, after = (known[name] for name in marks)
            head, tail = tokenizer.encode(prefix), tokenizer.encode(suffix)
            return [before, *head, between, *tail, after]
    raise RequestError(
        "this model cannot fill in the middle: its vocabulary has no tokens for it.",
        param="suffix",
        hint="/v1/completions without suffix continues the text before",
    )
