"""Latent attention in GGUF: DeepSeek's."""

from __future__ import annotations

import math
from collections.abc import Callable

from blazr.core.errors import ConfigError
from blazr.models.families.gguf.model import GgufModel
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.rope import RopeConfig


def read_latent(
    model: GgufModel, layer: int, rope: Callable[[int], RopeConfig | None]
) -> DeepseekMlaConfig:
    """A layer's attention.

    Files tell it as one head of keys that all queries share, which is how llama.cpp computes it;
    what the heads were before has keys of its own, and in old files is all there is.

    Args:
        model: The file.
        layer: Which layer.
        rope: The rotation of so many channels.

    Raises:
        ConfigError: The sizes do not fit each other.
    """
    at = f"blk.{layer}."
    apart, rotated = model.has(at + "attn_k_b.weight"), model.integer("rope.dimension_count")
    whole = model.integer("attention.key_length_mla" if apart else "attention.key_length")
    values = model.integer("attention.value_length_mla" if apart else "attention.value_length")
    if not 0 < rotated < whole or values < 1:
        raise ConfigError(
            "the metadata's sizes of latent attention do not fit each other.",
            found=f"keys of {whole}, {rotated} of them rotated, values of {values}"[:100],
            expected="fewer rotated channels than a key has",
        )
    rotation = rope(rotated)
    has_latent = model.has(at + "attn_q_a.weight")
    return DeepseekMlaConfig(
        hidden_size=model.hidden_size,
        num_heads=model.integer("attention.head_count"),
        head_dim=whole - rotated,
        rope_dim=rotated,
        kv_latent=model.integer("attention.kv_lora_rank"),
        q_latent=model.size(at + "attn_q_a.weight", 0) if has_latent else None,
        rope=rotation,
        v_head_dim=values,
        bias=model.has(at + "attn_kv_a_mqa.bias"),
        attention_multiplier=whole**-0.5 * _stretch(model, rotation) ** 2,
        apart=apart,
    )


def _stretch(model: GgufModel, rope: RopeConfig | None) -> float:
    """What YaRN multiplies queries and keys with."""
    if rope is None or rope.scaling is None or rope.scaling.kind != "yarn":
        return 1.0
    weight = model.number("rope.scaling.yarn_log_multiplier", 0.0)
    return 1 + weight * math.log(max(rope.scaling.factor, 1.0))
