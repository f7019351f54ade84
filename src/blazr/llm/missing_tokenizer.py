"""The tokenizer of a model without a vocabulary: token ids work, text is refused."""

from __future__ import annotations

from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.text.tokenizer import Tokenizer


class MissingTokenizer(Tokenizer):
    """A tokenizer that refuses to encode and decodes to nothing."""

    def __init__(self) -> None:
        super().__init__(name="none", size=0)

    @override
    def unassigned(self, vocab_size: int) -> list[int]:
        """None: no id is known to mean nothing."""
        return []

    @override
    def _encode(self, text: str, *, allow_special: bool, continues: bool) -> list[int]:
        hint = "name the vocabulary: --vocab llama3"
        raise RequestError("this model has no known vocabulary.", param="prompt", hint=hint)

    @override
    def _bytes_of(self, token_id: int) -> bytes:
        return b""
