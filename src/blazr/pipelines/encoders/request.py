"""What texts are to be read, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blazr.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Cut:
    """What becomes of a text that is too long.

    Args:
        most: Tokens it may have; None is what the model reads.
        drops: Where tokens go.
    """

    most: int | None = None
    drops: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Texts to read.

    Args:
        texts: The texts, or pairs of them.
        prompt_name: Of the model's prompts, the one before each text; None is the model's default.
        role: What a text is in a search, where the model has a prompt for that.
        cut: What becomes of those that are too long; None refuses them.
        per_token: Whether the hidden state of each token is wanted, and not what they make
            together.
    """

    texts: Sequence[str | tuple[str, str]]
    prompt_name: str | None = None
    role: Literal["query", "document"] | None = None
    cut: Cut | None = None
    per_token: bool = False


@dataclass(frozen=True, slots=True)
class TextsRead:
    """What came of some texts.

    Args:
        places: Which of the request's, B of them.
        values: Their vectors, or a number for each label, (C,) each, float32; for a request per
            token a text's hidden states, (T, C).
        lengths: How many tokens each of them has.
    """

    places: Sequence[int]
    values: Iterable[NDArray[np.float32]]
    lengths: Sequence[int]


def without_prompts() -> RequestError:
    """An error that says that a model has no prompts of its own, of which one was named."""
    return RequestError("this model has no prompts.", param="prompt_name")


def first_numbers(vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """The first so many numbers of vectors, (B, C); None keeps all.

    Raises:
        RequestError: There are fewer.
    """
    size = vectors.shape[1]
    if dimensions is not None and not 0 < dimensions <= size:
        raise RequestError(
            "dimensions is out of range.",
            param="dimensions",
            found=str(dimensions)[:20],
            expected=f"1 to {size}",
        )
    return vectors[:, :dimensions]


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same vectors with length 1, (B, C)."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: NDArray[np.float32] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return found
