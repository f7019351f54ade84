"""The small model that drafts for a large one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.errors import ConfigError
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer

if TYPE_CHECKING:
    from blazr.models.loading.load import LoadedModel


def check_same_tokens(tokenizer: Tokenizer, small: LoadedModel) -> None:
    """Refuse a small model in whose vocabulary an id stands for another token.

    It may have more tokens than the large one, or fewer.

    Args:
        tokenizer: The large model's.
        small: The small model. Where its tokens are not known, nothing is refused.

    Raises:
        ConfigError: There is such an id.
    """
    other = load_tokenizer(
        find_tokenizer(directory=small.directory, vocab_size=small.vocab_size, metadata=small.gguf)
    )
    if other is None:
        return
    for token_id in range(min(tokenizer.size, other.size)):
        own, found = tokenizer.token_bytes(token_id), other.token_bytes(token_id)
        if own != found and own and found:
            raise ConfigError(
                f"{small.name} cannot draft: its vocabulary is another one.",
                found=f"token {token_id} is {_shown(found)}",
                expected=f"{_shown(own)}, as in the model that it drafts for",
                hint="take a small model of the same family",
            )


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="replace"))[:60]
