"""Small random pipelines of diffusers, with tokenizers of bytes."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.audio_models import byte_characters
from tests.support.seeds import run_seed

NEEDS_IMAGE = [
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("accelerate", "diffusers", "PIL")),
        reason="the image extra is not installed",
    ),
    # of the library itself
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]


def save_stable_diffusion(path: Path, *, width: int = 1, in_channels: int = 4) -> None:
    """Save a random Stable Diffusion that makes images of 64 by 64, so many times as wide."""
    import diffusers
    import transformers

    torch.manual_seed(run_seed())
    unet = diffusers.UNet2DConditionModel(
        in_channels=in_channels,
        block_out_channels=(4 * width, 8 * width),
        layers_per_block=1,
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=2,
    )
    pipe = diffusers.StableDiffusionPipeline(
        vae=_vae(4),
        text_encoder=_clip(transformers.CLIPTextModel),
        tokenizer=_clip_tokenizer(),
        unet=unet,
        scheduler=diffusers.DDIMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.save_pretrained(path)


def save_stable_diffusion_xl(path: Path) -> None:
    """Save a random SDXL that makes images of 64 by 64, with a scheduler that draws."""
    import diffusers
    import transformers

    torch.manual_seed(run_seed())
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=6 * 8 + 16,
        cross_attention_dim=32,
        norm_num_groups=1,
    )
    pipe = diffusers.StableDiffusionXLPipeline(
        vae=_vae(4),
        text_encoder=_clip(transformers.CLIPTextModel),
        text_encoder_2=_clip(transformers.CLIPTextModelWithProjection),
        tokenizer=_clip_tokenizer(),
        tokenizer_2=_clip_tokenizer(),
        unet=unet,
        scheduler=diffusers.EulerAncestralDiscreteScheduler(),
    )
    pipe.save_pretrained(path)


def save_flux(path: Path) -> None:
    """Save a random Flux that makes images of 64 by 64."""
    import diffusers
    import transformers

    torch.manual_seed(run_seed())
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=[4, 4, 8],
    )
    t5 = transformers.T5Config(
        vocab_size=514, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    pipe = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(1, shift_factor=0.1),
        text_encoder=_clip(transformers.CLIPTextModel),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=transformers.T5EncoderModel(t5),
        tokenizer_2=_clip_tokenizer(),
        transformer=transformer,
    )
    pipe.save_pretrained(path)


def save_stable_diffusion_3(path: Path) -> None:
    """Save a random Stable Diffusion 3 that makes images of 64 by 64."""
    import diffusers
    import transformers

    torch.manual_seed(run_seed())
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=1,
        in_channels=16,  # the library paints within images with no other
        out_channels=16,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
    )
    t5 = transformers.T5Config(
        vocab_size=514, d_model=32, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(16, shift_factor=0.1),
        text_encoder=_clip(transformers.CLIPTextModelWithProjection),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip(transformers.CLIPTextModelWithProjection),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=transformers.T5EncoderModel(t5),
        tokenizer_3=_clip_tokenizer(),
    )
    pipe.save_pretrained(path)


def save_qwen_image(path: Path) -> None:
    """Save a random Qwen-Image; it makes images of 256 by 256 unless asked otherwise."""
    import diffusers
    import transformers

    torch.manual_seed(run_seed())
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**sizes, **heads, "vocab_size": 300, "rope_parameters": rope},
        vision_config={"depth": 1, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2}
        | {"intermediate_size": 16},
    )
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    vocab = {each: index for index, each in enumerate(byte_characters())}
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab |= {mark: 256 + index for index, mark in enumerate(marks)}
    pipe = diffusers.QwenImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=transformers.Qwen2_5_VLForConditionalGeneration(config).eval(),
        tokenizer=transformers.Qwen2Tokenizer(vocab=vocab, merges=[]),
        transformer=transformer,
    )
    pipe.save_pretrained(path)


def size_of(data: bytes, form: str = "PNG") -> tuple[int, int]:
    """Width and height of an image file of some form."""
    from PIL import Image

    with Image.open(BytesIO(data), formats=[form]) as image:
        image.load()
        return image.size


def picture(size: tuple[int, int], *, hole: tuple[int, int, int, int] | None = None) -> bytes:
    """A PNG of a gradient, transparent within a box."""
    from PIL import Image

    image = Image.linear_gradient("L").resize(size).convert("RGBA")
    if hole is not None:
        image.paste((0, 0, 0, 0), hole)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _vae(channels: int, **more: float) -> Any:
    import diffusers

    return diffusers.AutoencoderKL(
        block_out_channels=[4, 8],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=channels,
        norm_num_groups=2,
        **more,
    )


def _clip(kind: Any) -> Any:
    import transformers

    return kind(
        transformers.CLIPTextConfig(
            vocab_size=514,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            projection_dim=16,
            bos_token_id=512,
            eos_token_id=513,
            pad_token_id=513,
        )
    ).eval()


def _clip_tokenizer() -> Any:
    import transformers

    letters = [chr(each) for each in range(33, 127)]
    pieces = [*letters, *(f"{each}</w>" for each in letters)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    vocab |= {"<|startoftext|>": 512, "<|endoftext|>": 513}
    return transformers.CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)
