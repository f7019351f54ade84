"""The named vocabularies."""

from __future__ import annotations

from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.byte_pair import BytePairTokenizer
from blazr.text.vocabs import VOCABS


def load(name: str) -> Tokenizer:
    """Load a vocabulary of `VOCABS` by name, 20 to 50 ms.

    Raises:
        UnknownNameError: There is none of that name.
    """
    import splintr

    row = VOCABS[name]
    backend = splintr.Tokenizer.from_pretrained(row.name)
    return BytePairTokenizer(
        backend,
        name=row.name,
        size=row.size,
        special_ids=backend.special_tokens(),
        gaps=[token_id for gap in row.unassigned for token_id in gap],
        eos_ids=row.stop_ids,
        bos_id=row.bos_id,
    )
