"""From the latent state of an image that is not finished to its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels
    from torch import Tensor

# By what the names of the library's pipelines begin with. Others arrange latents in ways of their
# own, which the library keeps inside of them.
_PLAIN = (
    "StableDiffusionPipeline",
    "StableDiffusionImg2Img",
    "StableDiffusionInpaint",
    "StableDiffusionXL",
    "StableDiffusion3",
    "LatentConsistencyModel",
)
_PACKED = (
    *("FluxPipeline", "FluxImg2Img", "FluxInpaint", "FluxKontext"),
    *("QwenImagePipeline", "QwenImageImg2Img", "QwenImageInpaint"),
)


def can_preview(pipe: object) -> bool:
    """Whether a pipeline's unfinished images can be shown."""
    return type(pipe).__name__.startswith(_PLAIN + _PACKED)


def preview(pipe: object, latents: Tensor, size: tuple[int, int] | None) -> Pixels:
    """Decode latents as the pipeline does with the last ones.

    Args:
        pipe: A pipeline for which `can_preview` holds.
        latents: After a step, (1, C, H, W), or (1, T, C) of squares of two by two.
        size: Width and height in pixels; None is the pipeline's own.
    """
    own: Any = pipe
    if type(pipe).__name__.startswith(_PACKED):
        side = own.default_sample_size * own.vae_scale_factor
        width, height = size or (side, side)
        latents = own._unpack_latents(latents, height, width, own.vae_scale_factor)
    config = own.vae.config
    if getattr(config, "latents_mean", None) is not None:  # each channel has a scale of its own
        mean, deviation = (
            torch.tensor(each).view(-1, 1, 1, 1).to(latents)
            for each in (config.latents_mean, config.latents_std)
        )
        latents = latents * deviation + mean
        image = own.vae.decode(latents.to(own.vae.dtype), return_dict=False)[0][:, :, 0]
    else:
        latents = latents / config.scaling_factor
        latents = latents + (getattr(config, "shift_factor", None) or 0.0)
        image = own.vae.decode(latents.to(own.vae.dtype), return_dict=False)[0]
    found: Pixels = own.image_processor.postprocess(image, output_type="pil")[0]
    return found
