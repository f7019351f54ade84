"""Images, videos and sounds of a prompt: what makes tokens and vectors of them, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol

from blazr.core.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.engine.request import PromptEmbeddings

_PACKAGES = {"PIL": "pillow"}  # that are called otherwise than they are imported


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


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """The tokens and vectors that stand in a prompt for an image, a video or a sound.

    Args:
        token_ids: Its tokens.
        embeddings: Vectors for some of them, counted from the first.
        marker: Id that a chat template writes for it.
    """

    token_ids: tuple[int, ...]
    embeddings: tuple[PromptEmbeddings, ...]
    marker: int

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tensors = (part for each in self.embeddings for part in (each.vectors, each.added))
        return sum(part.nbytes for part in tensors if part is not None)


class MediaEncoder(Protocol):
    """What makes tokens and vectors of the media in chats, for a language model."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of media that messages may have, as `blazr.text.images.Image.kind` has them."""

    @property
    def has_bidirectional_prompts(self) -> bool:
        """Whether each token of a prompt with images attends to all of it."""

    def encode(self, media: Sequence[bytes]) -> list[MediaTokens]:
        """What stands for the media of a chat, each the bytes of a file.

        Raises:
            RequestError: One cannot be read, or a package is not installed.
            CheckpointError: The encoder cannot be loaded.
        """

    def insert(self, token_ids: Sequence[int], media: Sequence[MediaTokens]) -> MediaPrompt:
        """A prompt with media in the place of their marks.

        Args:
            token_ids: With one mark for each.
            media: In order, as `encode` gives them.

        Raises:
            RequestError: There are not as many marks as media, or the model does not take these
                together.
        """

    def unload(self) -> None:
        """Free what was loaded; the next use loads it again."""


def find_marks(token_ids: Sequence[int], images: Sequence[MediaTokens]) -> list[int]:
    """Where a prompt has the marks of images.

    Raises:
        RequestError: There are not as many as images, or in another order.
    """
    markers = {each.marker for each in images}
    places = [place for place, each in enumerate(token_ids) if each in markers]
    if [token_ids[place] for place in places] != [each.marker for each in images]:
        raise RequestError(
            "the chat template does not write a mark for each image.",
            param="messages",
            found=f"{len(places)} marks for {len(images)} images",
            hint="leave images out of messages of the system and of tools",
        )
    return places


def check_packages(packages: Iterable[str], noun: str, hint: str) -> None:
    """Check that what is needed is installed.

    Args:
        packages: What they are imported as.
        noun: What they are needed for.
        hint: How to install them.

    Raises:
        RequestError: One is not.
    """
    missing = [_PACKAGES.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"this server cannot read {noun}.",
            param="messages",
            found=f"{' and '.join(missing)} not installed",
            hint=hint,
        )
