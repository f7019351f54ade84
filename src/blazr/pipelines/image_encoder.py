"""Images and videos to what a language model reads in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from blazr.pipelines.images import open_frames, open_image
from blazr.pipelines.media import MediaTokens, check_packages
from blazr.pipelines.tower_encoder import EncoderParts, TowerEncoder
from blazr.text.images import Video

# Those that look at an image in parts where it is alone in its chat, and else at the whole of each.
_TILING_LONE_IMAGES = {"llava_onevision"}


class ImageEncoder(TowerEncoder):
    """The vision encoder of a model."""

    medium: ClassVar = "image"
    noun: ClassVar = "an image"
    auto: ClassVar = "AutoModelForImageTextToText"
    extra: ClassVar = "vision"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "PIL")

    @override
    def _check_packages(self, media: Sequence[bytes]) -> None:
        super()._check_packages(media)
        if any(isinstance(each, Video) for each in media):
            hint = "install the torchvision that is built for the installed torch"
            check_packages(("torchvision",), "a video", hint)

    @override
    def _num_copies(self, media: Sequence[bytes]) -> int:
        num_images = sum(not isinstance(each, Video) for each in media)
        return 2 if num_images > 1 and self._family in _TILING_LONE_IMAGES else 1

    @override
    def _open(self, data: bytes) -> tuple[Any, str]:
        if isinstance(data, Video):
            frames = open_frames(data)
            size = f"{len(frames)} frames of {frames[0].width} by {frames[0].height} pixels"
            return frames, size
        pixels = open_image(data)
        return pixels, f"{pixels.width} by {pixels.height} pixels"

    @override
    @torch.inference_mode()
    def _run(self, parts: EncoderParts, opened: Any, digest: bytes, num_copies: int) -> MediaTokens:
        if isinstance(opened, list):
            return self._run_video(parts, opened, digest)
        copies = [opened] * num_copies
        if self.has_bidirectional_prompts:
            # the whole processor also writes what stands behind the last image
            batch = parts.processor.image_processor(images=copies, return_tensors="pt")
            batch["input_ids"] = torch.full((1, parts.processor.image_seq_length), parts.token_id)
        else:
            batch = parts.processor(
                images=[copies],
                text=[parts.processor.image_token * len(copies)],
                add_special_tokens=False,
                return_mm_token_type_ids=False,
                return_tensors="pt",
            )
        token_ids: list[int] = batch["input_ids"][0].tolist()
        del token_ids[len(token_ids) // len(copies) :]
        vectors = self._features(parts, batch, "image", copies=len(copies))
        size = _grid(parts, batch.get("image_grid_thw"))
        return self._tokens_of(parts, token_ids, vectors, digest, size=size)

    def _run_video(self, parts: EncoderParts, frames: Sequence[Any], digest: bytes) -> MediaTokens:
        """Make tokens and vectors of a video.

        Args:
            parts: The processor and the tower.
            frames: Its images, one a second.
            digest: What the prefix cache knows it by.
        """
        count = len(frames)
        second = {"total_num_frames": count, "fps": 1.0, "duration": float(count)}
        batch = parts.processor(
            videos=[list(frames)],
            text=[parts.processor.video_token],
            video_metadata=[{**second, "frames_indices": [*range(count)]}],
            do_sample_frames=False,
            add_special_tokens=False,
            return_mm_token_type_ids=False,
            return_tensors="pt",
        )
        token_ids: list[int] = batch["input_ids"][0].tolist()
        per_second = getattr(parts.tower.config.vision_config, "tokens_per_second", None)
        marker = parts.processor.tokenizer.convert_tokens_to_ids(parts.processor.video_token)
        return self._tokens_of(
            replace(
                parts, token_id=marker if marker in token_ids else parts.token_id, marker=marker
            ),
            token_ids,
            self._features(parts, batch, "video"),
            digest,
            size=_grid(parts, batch.get("video_grid_thw")),
            interval=float(batch["second_per_grid_ts"][0]) * per_second if per_second else 1.0,
        )

    def _features(
        self, parts: EncoderParts, batch: Mapping[str, Any], medium: str, *, copies: int = 1
    ) -> Tensor:
        """What the tower makes of pixels, (1 + L, N, C): for embeddings, then for layers.

        Args:
            parts: The processor and the tower.
            batch: What its processor made.
            medium: What that shows.
            copies: How often it is there, of which the first one counts.
        """
        features = getattr(parts.tower.model, f"get_{medium}_features")
        wanted = signature(features).parameters
        inputs = self._placed(
            {name: value for name, value in batch.items() if name in wanted and value is not None}
        )
        found = features(**inputs, return_dict=True)
        pooled = found.pooler_output
        added = getattr(found, "deepstack_features", None) or ()
        first = _joined(pooled[: len(pooled) // copies]) * parts.scale
        return torch.stack([first, *map(_joined, added)])


def _grid(parts: EncoderParts, patches: Tensor | None) -> tuple[int, int, int] | None:
    """How many images there are, their rows and their columns of tokens.

    Args:
        parts: The processor and the tower.
        patches: The same in patches, (1, 3), some of which, side by side, make a token.
    """
    if patches is None:
        return None
    side = parts.tower.config.vision_config.spatial_merge_size
    length, height, width = patches[0].tolist()
    return length, height // side, width // side


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Vectors of the parts of an image, one behind the other, (N, C)."""
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
