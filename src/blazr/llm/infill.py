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


def infill_format(tokenizer: Tokenizer, vocab_size: int) -> InfillFormat | None:
    """Where the special tokens stand; None where the vocabulary has no tokens for it."""
    known = {name for name, i in tokenizer.special_ids.items() if i < vocab_size}
    rows = INFILL_FORMATS.values()
    return next((x for x in rows if known.issuperset((x.before, x.between, x.after))), None)


def encode_infill(tokenizer: Tokenizer, prefix: str, suffix: str, vocab_size: int) -> list[int]:
    """The token ids that ask for what stands between two texts.

    Raises:
        RequestError: The vocabulary has no tokens for it.
    """
    row = infill_format(tokenizer, vocab_size)
    if row is None:
        raise RequestError(
            "this model cannot fill in the middle: its vocabulary has no tokens for it.",
            param="suffix",
            hint="/v1/completions without suffix continues the text before",
        )
    marks = (row.before, row.between, row.after)
    before, between, after = (tokenizer.special_ids[name] for name in marks)
    head, tail = tokenizer.encode(prefix), tokenizer.encode(suffix)
    return [before, *head, between, *tail, after]
