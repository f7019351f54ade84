"""What differs between the architectures that GGUF files name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from blazr.models.families.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a name in ``general.architecture`` stands for, as differences from Llama.

    Args:
        families: Names of FAMILIES that are written as this one, with ``attention`` behind them
            where that is for models of nothing else, ``experts`` for those that have some.
        hybrid: Whether its layers' tensors tell what they are made of.
        own_names: Names of tensors that others do not have.
        late_norm: Whether the norm before a feed-forward is called by what it is behind.
        rotation: Whether attention rotates: always, never, or as ``rope.scaling.finetuned`` says.
        fused_mlp: Whether both upward matrices of an MLP are one.
        rotates_pairs: Whether channels that are rotated together lie side by side.
        pairs_rows: Whether they do so in files alone, rows of queries and keys having been moved.
        norms: Whether norms stand before, behind, or on both sides of a layer's halves.
        norm_kind: RMSNorm or LayerNorm.
        activation: Of its feed-forwards.
        full_every: Every so manieth layer has no window; 0: all have the one there is.
        whole_ramp: Whether the ends of YaRN's ramp over channels are whole numbers.
        plain_window: Whether layers with a window are rotated without any scaling.
        window_theta: Base of the rotation in these, where the file names none; 0: as elsewhere.
        theta: Base of the rotation elsewhere, where the file names none.
        eps: What norms add, where the file does not say.
        long_factor: What positions are divided by in models of 131,072 tokens whose file names
            neither that nor the base, as Ollama's of Gemma 3.
        still_every: Every so manieth layer is not rotated; 0: all are.
        norm_topk_prob: Whether a token's experts share all of its weight.
        by_sigmoid: Whether a sigmoid scores the experts where the file does not say what does.
        scales_embedding: Whether embedded tokens are multiplied with the root of their size.
        wide_scale_layers: A model of so many layers scales scores by hidden size over heads.
        swiglu: Steepness and limit of the clamped activation of its experts.
        is_folded: Whether files have the model's multipliers in its matrices.
        tiled: Whether values of delta networks that share a key lie apart.
        biases: Which files may have: of ``qkv``, ``o`` (the output of attention), ``mlp``, ``ssm``
            (the projections of a state space).
        needs_biases: Whether it wants all of these to be there.
        head: Whether it wants a matrix of the vocabulary's scores of its ``own``, none (``tied``),
            or takes ``either``.
        reads_weights_norm: Whether it looks at ``expert_weights_norm``.
    """

    families: tuple[str, ...] = ()
    hybrid: bool = False
    own_names: tuple[Rule, ...] = ()
    late_norm: bool = False
    fused_mlp: bool = False
    rotation: Literal["always", "never", "told"] = "always"
    rotates_pairs: bool = False
    pairs_rows: bool = False
    norms: Literal["before", "behind", "both"] = "before"
    norm_kind: Literal["rms", "layer"] = "rms"
    activation: str = "silu"
    full_every: int = 0
    whole_ramp: bool = True
    plain_window: bool = False
    window_theta: float = 0.0
    theta: float = 10_000.0
    eps: float = 1e-5
    long_factor: float = 1.0
    still_every: int = 0
    norm_topk_prob: bool = True
    by_sigmoid: bool = False
    scales_embedding: bool = False
    wide_scale_layers: int = 0
    swiglu: tuple[float, float] | None = None
    is_folded: bool = False
    tiled: bool = False
    biases: tuple[str, ...] = ()
    needs_biases: bool = False
    head: Literal["own", "tied", "either"] = "either"
    reads_weights_norm: bool = False


_GELU = "gelu_tanh"
_ALL_BIASES = ("qkv", "o", "mlp", "ssm")
_LFM2_NORM = (Rule("token_embd_norm.weight", "norm.weight"),)
# in files of converters, this one has no ending
_FALCON_NORM = (Rule("blk.{i}.ffn_norm", "layers.{i}.feed_forward_norm.weight"),)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(
            biases=_ALL_BIASES, families=("llama", "mistral", "mixtral"), pairs_rows=True
        ),
        "mistral3": Architecture(
            biases=_ALL_BIASES, families=("mistral3", "ministral3"), pairs_rows=True
        ),
        "granite": Architecture(
            biases=_ALL_BIASES, families=("granite", "granitemoehybrid attention"), pairs_rows=True
        ),
        "granitemoe": Architecture(
            biases=_ALL_BIASES,
            families=("granitemoe", "granitemoehybrid attention experts"),
            pairs_rows=True,
        ),
        "smollm3": Architecture(families=("smollm3",), pairs_rows=True, still_every=4),
        "chatglm": Architecture(
            biases=("qkv",), families=("glm",), fused_mlp=True, rotates_pairs=True
        ),
        "qwen2": Architecture(biases=("qkv",), needs_biases=True, families=("qwen2",)),
        "qwen2moe": Architecture(
            biases=("qkv",),
            needs_biases=True,
            head="own",
            families=("qwen2_moe",),
            norm_topk_prob=False,
        ),
        "olmoe": Architecture(head="own", families=("olmoe",), norm_topk_prob=False),
        "qwen3": Architecture(families=("qwen3",)),
        "qwen3moe": Architecture(families=("qwen3_moe",)),
        "phi3": Architecture(families=("phi3",), fused_mlp=True),
        "olmo2": Architecture(
            head="own", families=("olmo2", "olmo3"), norms="behind", full_every=4, plain_window=True
        ),
        "glm4": Architecture(
            biases=("qkv",), families=("glm4",), fused_mlp=True, rotates_pairs=True, norms="both"
        ),
        "glm4moe": Architecture(
            reads_weights_norm=True,
            biases=("qkv",),
            families=("glm4_moe",),
            late_norm=True,
            norm_topk_prob=False,
            by_sigmoid=True,
        ),
        "gpt-oss": Architecture(
            biases=("qkv", "o"),
            needs_biases=True,
            head="own",
            families=("gpt_oss",),
            late_norm=True,
            full_every=2,
            whole_ramp=False,
            swiglu=(1.702, 7.0),
        ),
        "deepseek2": Architecture(
            reads_weights_norm=True,
            families=("deepseek_v2", "deepseek_v3"),
            rotates_pairs=True,
            norm_topk_prob=False,
        ),
        "starcoder2": Architecture(
            biases=_ALL_BIASES,
            needs_biases=True,
            families=("starcoder2",),
            norm_kind="layer",
            activation=_GELU,
        ),
        "gemma": Architecture(
            head="tied", families=("gemma",), activation=_GELU, scales_embedding=True
        ),
        "gemma2": Architecture(
            head="tied",
            families=("gemma2",),
            norms="both",
            activation=_GELU,
            full_every=2,
            scales_embedding=True,
            wide_scale_layers=46,
        ),
        "gemma3": Architecture(
            families=("gemma3_text", "gemma3"),
            norms="both",
            activation=_GELU,
            full_every=6,
            plain_window=True,
            window_theta=10_000.0,
            theta=1_000_000.0,
            eps=1e-6,
            long_factor=8.0,
            scales_embedding=True,
            wide_scale_layers=62,
        ),
        "mamba": Architecture(biases=("ssm",), families=("mamba", "falcon_mamba"), hybrid=True),
        "mamba2": Architecture(biases=("ssm",), families=("mamba2",), hybrid=True),
        "jamba": Architecture(
            families=("jamba",), hybrid=True, rotation="never", norm_topk_prob=False
        ),
        "granitehybrid": Architecture(
            biases=_ALL_BIASES,
            families=("granitemoehybrid", "bamba"),
            hybrid=True,
            rotation="told",
            pairs_rows=True,
        ),
        "nemotron_h": Architecture(
            biases=_ALL_BIASES,
            families=("nemotron_h",),
            hybrid=True,
            rotation="never",
            activation="relu2",
        ),
        "nemotron_h_moe": Architecture(
            reads_weights_norm=True,
            biases=_ALL_BIASES,
            families=("nemotron_h experts",),
            hybrid=True,
            rotation="never",
            activation="relu2",
            by_sigmoid=True,
        ),
        "falcon-h1": Architecture(
            families=("falcon_h1",), hybrid=True, own_names=_FALCON_NORM, is_folded=True
        ),
        "lfm2": Architecture(families=("lfm2",), hybrid=True, own_names=_LFM2_NORM),
        "lfm2moe": Architecture(
            reads_weights_norm=True,
            families=("lfm2_moe",),
            hybrid=True,
            own_names=_LFM2_NORM,
            by_sigmoid=True,
        ),
        "qwen3next": Architecture(families=("qwen3_next",), hybrid=True, late_norm=True),
        "qwen35": Architecture(
            families=("qwen3_5", "qwen3_5_text"), hybrid=True, late_norm=True, tiled=True
        ),
        "qwen35moe": Architecture(
            families=("qwen3_5_moe", "qwen3_5_moe_text"), hybrid=True, late_norm=True, tiled=True
        ),
        "kimi-linear": Architecture(
            reads_weights_norm=True,
            families=("kimi_linear",),
            hybrid=True,
            rotation="never",
            by_sigmoid=True,
        ),
    }
)
