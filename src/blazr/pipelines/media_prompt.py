"""A prompt in which images, videos and sounds have become tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.engine.request import PromptEmbeddings


class MediaPrompt(NamedTuple):
    """A prompt with media in the place of their marks.

    Args:
        token_ids: The prompt.
        embeddings: Vectors that stand for tokens of it.
        places: Where the marks were, before tokens took their place.
        inputs: What another library's network takes beside the tokens.
    """

    token_ids: list[int]
    embeddings: tuple[PromptEmbeddings, ...] = ()
    places: Sequence[int] = ()
    inputs: Mapping[str, Tensor] | None = None
