"""Images for models that run through transformers whole: what its processor makes of a chat's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from blazr.core.errors import RequestError
from blazr.pipelines.images import open_image
from blazr.pipelines.media import MediaPrompt, MediaTokens, check_packages, find_marks
from blazr.pipelines.network import loading_errors
from blazr.pipelines.tower_encoder import load_processor

TYPE_IDS = "token_type_ids"  # how names of inputs end that tell tokens of images from text
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedImage(MediaTokens):
    """An image whose vectors the network itself will make.

    Args:
        pixels: The image, of pillow.
        types: Of each of its tokens, by the name of the input, what kind it is.
    """

    pixels: Any
    types: Mapping[str, tuple[int, ...]]


class FallbackImageEncoder:
    """Images of a model that runs through transformers whole, whose own network has the tower.

    Args:
        directory: Where the model lies.
        network: Its network.

    Attributes:
        kinds: See `MediaEncoder`.
        has_bidirectional_prompts: See `MediaEncoder`; here the network itself knows which tokens
            attend to which.
    """

    kinds: ClassVar = frozenset({"image"})
    has_bidirectional_prompts: ClassVar = False

    def __init__(self, directory: Path, network: torch.nn.Module) -> None:
        self._directory = directory
        self._network: Any = network

    def unload(self) -> None:
        """Nothing is kept but the processor, which has no weights."""

    @cached_property
    def _processor(self) -> Any:
        with loading_errors(
            f"the processor of {self._directory.name} cannot be loaded.",
            hint="see whether preprocessor_config.json is there, and what it needs installed",
        ):
            return load_processor(self._directory, self._network.config)

    def encode(self, media: Sequence[bytes]) -> list[MediaTokens]:
        """The images of a chat, and the tokens that stand for each.

        Raises:
            RequestError: One is no image that can be read, or a package is not installed.
            CheckpointError: There is no processor.
        """
        check_packages(("PIL",), "an image", "pip install 'blazr[vision]'")
        return [self._open(data) for data in media]

    def _open(self, data: bytes) -> MediaTokens:
        pixels = open_image(data)
        batch = self._process([pixels])
        mark = self._processor.tokenizer.convert_tokens_to_ids(self._processor.image_token)
        types = {name: tuple(batch[name][0].tolist()) for name in batch if name.endswith(TYPE_IDS)}
        return OpenedImage(tuple(batch["input_ids"][0].tolist()), (), mark, pixels, types)

    def insert(self, token_ids: Sequence[int], media: Sequence[MediaTokens]) -> MediaPrompt:
        """A prompt with images in the place of their marks, and what the network takes besides.

        Args:
            token_ids: With one mark for each image.
            media: In order, as `encode` gives them.

        Raises:
            RequestError: There are not as many marks as images, or the model does not take these
                together.
        """
        opened = [each for each in media if isinstance(each, OpenedImage)]
        if not opened:
            return MediaPrompt(list(token_ids))
        places = find_marks(token_ids, opened)
        prompt = _spliced(token_ids, places, [each.token_ids for each in opened])
        batch = self._process([each.pixels for each in opened])
        if batch["input_ids"].shape[1] != sum(len(each.token_ids) for each in opened):
            raise RequestError(
                "this model sees several images otherwise than one after the other.",
                param="messages",
                found=f"{len(opened)} images",
                expected="one",
            )
        inputs = {k: v for k, v in batch.items() if k not in {"input_ids", "attention_mask"}}
        for name in opened[0].types:
            rows = [0] * len(token_ids)
            inputs[name] = torch.tensor([_spliced(rows, places, [e.types[name] for e in opened])])
        return MediaPrompt(prompt, places=places, inputs=inputs)

    def _process(self, images: Sequence[Any]) -> dict[str, Tensor]:
        """What the processor makes of images with nothing between them.

        Raises:
            RequestError: It fails.
        """
        processor = self._processor
        try:
            found = processor(
                images=[list(images)],
                text=[processor.image_token * len(images)],
                add_special_tokens=False,
                return_tensors="pt",
            )
        # the library fails in many ways at images that are very small, or much longer than wide
        except Exception as error:
            _log.warning("images were not taken", exc_info=error)
            raise RequestError(
                "this model cannot take these images.",
                param="messages",
                found=f"{len(images)} images; {type(error).__name__}: {str(error)[:100]}",
                hint="scale them, or send one",
            ) from error
        return dict(found)


def _spliced(
    row: Sequence[int], places: Sequence[int], parts: Sequence[Sequence[int]]
) -> list[int]:
    """A row with parts in the place of some of its elements."""
    found: list[int] = []
    done = 0
    for place, part in zip(places, parts, strict=True):
        found += [*row[done:place], *part]
        done = place + 1
    return [*found, *row[done:]]
