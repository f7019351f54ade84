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
        whole_ramp: Whether the ends of YaRN's ramp over channels are whole numbers.
        plain_window: Whether layers with a window are rotated without any scaling.
        window_theta: Base of the rotation in these, where the file names none; 0: as elsewhere.
        still_every: Every so manieth layer is not rotated; 0: all are.
        norm_topk_prob: Whether a token's experts share all of its weight.
        by_sigmoid: Whether a sigmoid scores the experts where the file does not say what does.
        scales_embedding: Whether embedded tokens are multiplied with the root of their size.
        wide_scale_layers: A model of so many layers scales scores by hidden size over heads.
        swiglu: Steepness and limit of the clamped activation of its experts.
    """

    hybrid: bool = False
    rotation: Literal["always", "never", "told"] = "always"
    rotates_pairs: bool = False
    norms: Literal["before", "behind", "both"] = "before"
    norm_kind: Literal["rms", "layer"] = "rms"
    activation: str = "silu"
    full_every: int = 0
    whole_ramp: bool = True
    plain_window: bool = False
    window_theta: float = 0.0
    still_every: int = 0
    norm_topk_prob: bool = True
    by_sigmoid: bool = False
    scales_embedding: bool = False
    wide_scale_layers: int = 0
    swiglu: tuple[float, float] | None = None


_GELU = "gelu_tanh"
_PAIRS = Architecture(rotates_pairs=True)
_UNWEIGHED = Architecture(norm_topk_prob=False)
_HYBRID = Architecture(hybrid=True)
_NEMOTRON = Architecture(hybrid=True, rotation="never", activation="relu2", by_sigmoid=True)
# llama is Mistral and Mixtral, too.
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": _PAIRS,
        "granite": _PAIRS,
        "granitemoe": _PAIRS,
        "smollm3": Architecture(rotates_pairs=True, still_every=4),
        "chatglm": _PAIRS,
        "qwen2": Architecture(),
        "qwen2moe": _UNWEIGHED,
        "olmoe": _UNWEIGHED,
        "qwen3": Architecture(),
        "qwen3moe": Architecture(),
        "phi3": Architecture(),
        "olmo2": Architecture(norms="behind", full_every=4, plain_window=True),
        "glm4": Architecture(rotates_pairs=True, norms="both"),
        "glm4moe": Architecture(norm_topk_prob=False, by_sigmoid=True),
        "gpt-oss": Architecture(full_every=2, whole_ramp=False, swiglu=(1.702, 7.0)),
        "deepseek2": Architecture(rotates_pairs=True, norm_topk_prob=False),
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
            plain_window=True,
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
        "lfm2moe": Architecture(hybrid=True, by_sigmoid=True),
        "qwen3next": _HYBRID,
        "qwen35": _HYBRID,
        "qwen35moe": _HYBRID,
    }
)
