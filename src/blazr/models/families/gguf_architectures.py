"""What differs between the architectures that GGUF files name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a name in ``general.architecture`` stands for, as differences from Llama.

    Args:
        hybrid: Whether its layers' tensors tell what they are made of.
        rotation: Whether attention rotates: always, never, or as ``rope.scaling.finetuned`` says.
        rotates_pairs: Whether channels that are rotated together lie side by side.
        norms: Whether norms stand before, behind, or on both sides of a layer's halves.
        norm_kind: RMSNorm or LayerNorm.
        activation: Of its feed-forwards.
        full_every: Every so manieth layer has no window; 0: all have the one there is.
        window_theta: Base of the rotation in layers with a window, where that differs.
        norm_topk_prob: Whether a token's experts share all of its weight.
        scales_embedding: Whether embedded tokens are multiplied with the root of their size.
        wide_scale_layers: A model of so many layers scales scores by hidden size over heads.
    """

    hybrid: bool = False
    rotation: Literal["always", "never", "told"] = "always"
    rotates_pairs: bool = False
    norms: Literal["before", "behind", "both"] = "before"
    norm_kind: Literal["rms", "layer"] = "rms"
    activation: str = "silu"
    full_every: int = 0
    window_theta: float | None = None
    norm_topk_prob: bool = True
    scales_embedding: bool = False
    wide_scale_layers: int = 0


_GELU = "gelu_tanh"
_PAIRS = Architecture(rotates_pairs=True)
_HYBRID = Architecture(hybrid=True)
_NEMOTRON = Architecture(hybrid=True, rotation="never", activation="relu2")
# llama is Mistral and Mixtral, too.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": _PAIRS,
        "granite": _PAIRS,
        "granitemoe": _PAIRS,
        "qwen2": Architecture(),
        "qwen3": Architecture(),
        "qwen3moe": Architecture(),
        "phi3": Architecture(),
        "olmo2": Architecture(norms="behind"),
        "glm4": Architecture(rotates_pairs=True, norms="both"),
        "starcoder2": Architecture(norm_kind="layer", activation=_GELU),
        "gemma": Architecture(activation=_GELU, scales_embedding=True),
        "gemma2": Architecture(
            norms="both",
            activation=_GELU,
            full_every=2,
            scales_embedding=True,
            wide_scale_layers=46,
        ),
        "gemma3": Architecture(
            norms="both",
            activation=_GELU,
            full_every=6,
            window_theta=10_000.0,
            scales_embedding=True,
            wide_scale_layers=62,
        ),
        "mamba": _HYBRID,
        "mamba2": _HYBRID,
        "jamba": Architecture(hybrid=True, rotation="never", norm_topk_prob=False),
        "granitehybrid": Architecture(hybrid=True, rotation="told", rotates_pairs=True),
        "nemotron_h": _NEMOTRON,
        "nemotron_h_moe": _NEMOTRON,
        "falcon-h1": _HYBRID,
        "lfm2": _HYBRID,
        "lfm2moe": _HYBRID,
    }
)
