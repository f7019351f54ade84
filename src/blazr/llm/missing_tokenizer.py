"""The tokenizer of a model without a vocabulary: token ids work, text is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from blazr.core.errors import RequestError


class MissingTokenizer:
    """A tokenizer that refuses to encode and decodes to nothing; the protocol's arguments rest."""

    name = "none"
    size = 0
    special_ids: Mapping[str, int] = MappingProxyType({})
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    strips_leading_space = False

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:  # noqa: ARG002
        """Refuse, with a RequestError."""
        hint = "name the vocabulary: --vocab llama3"
        raise RequestError("this model has no known vocabulary.", param="prompt", hint=hint)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:  # noqa: ARG002
        """No text, whatever the ids."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        """No bytes."""
        return b""

    def is_special(self, token_id: int) -> bool:  # noqa: ARG002
        """No id is special."""
        return False

    def unassigned(self, vocab_size: int) -> list[int]:  # noqa: ARG002
        """No id is known to mean nothing."""
        return []
