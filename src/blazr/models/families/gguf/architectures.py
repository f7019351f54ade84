"""What differs between the architectures that GGUF files name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from blazr.models.families.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a name in ``general.architecture`` stands for, as differences from Llama.

    Args:
        families: Names of FAMILIES that are written as this one, with ``attention`` behind them
            where that is for models of nothing else, ``experts`` for those that have some.
        read_by: The row of FAMILIES that reads its files where that is not the first of these,
            by what is in the file: ``experts``, a ``window``, a ``sigmoid`` for scores; else "".
        implied: Values of config.json that files of this architecture leave out.
        hybrid: Whether its layers' tensors say what they are made of.
        own_names: Names of tensors that others do not have.
        late_norm: Whether the norm before a feed-forward is called by what it is behind.
        rotation: Whether it is the family's, or what ``rope.scaling.finetuned`` says.
        fused_mlp: Whether both upward matrices of an MLP are one.
        fused_qkv: Whether queries, keys and values are one matrix in files that are written; files
            of any architecture may have one.
        pairs_rows: Whether channels that are rotated together are neighbours in files, rows of
            queries and keys having been moved.
        full_every: Every n-th layer has no window; 0 means that all have the one there is.
        whole_ramp: Whether the ends of YaRN's ramp over channels are whole numbers.
        plain_window: Whether layers with a window are rotated without any scaling.
        window_theta: Base of the rotation in these, where the file names none; 0: as elsewhere.
        theta: Base of the rotation elsewhere, where the file names none.
        eps: What norms add, where the file does not say.
        long_factor: What positions are divided by in models of 131,072 tokens whose file names
            neither that nor the base, as Ollama's of Gemma 3.
        norm_topk_prob: Whether a token's experts share all of its weight.
        scales_embedding: Whether embedded tokens are multiplied with the root of their size.
        wide_scale_layers: A model of so many layers scales scores by hidden size over heads.
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
    read_by: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[str, object] = field(default_factory=dict)
    hybrid: bool = False
    own_names: tuple[Rule, ...] = ()
    late_norm: bool = False
    fused_mlp: bool = False
    fused_qkv: bool = False
    rotation: Literal["family", "metadata"] = "family"
    pairs_rows: bool = False
    full_every: int = 0
    whole_ramp: bool = True
    plain_window: bool = False
    window_theta: float = 0.0
    theta: float = 10_000.0
    eps: float = 1e-5
    long_factor: float = 1.0
    norm_topk_prob: bool = True
    scales_embedding: bool = False
    wide_scale_layers: int = 0
    is_folded: bool = False
    tiled: bool = False
    biases: tuple[str, ...] = ()
    needs_biases: bool = False
    head: Literal["own", "tied", "either"] = "either"
    reads_weights_norm: bool = False


_ALL_BIASES = ("qkv", "o", "mlp", "ssm")
_LFM2_NORM = (Rule("token_embd_norm.weight", "norm.weight"),)
# in files of converters, this one has no ending
_FALCON_NORM = (Rule("blk.{i}.ffn_norm", "layers.{i}.feed_forward_norm.weight"),)

# What files of models without experts do not say, though their family may have some.
_NO_EXPERTS = {
    "num_experts": 1,
    "experts_per_tok": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 1,
}
_LLAMA = {"": "mistral", "experts": "mixtral"}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(
            read_by=_LLAMA,
            biases=_ALL_BIASES,
            families=("llama", "mistral", "mixtral"),
            pairs_rows=True,
        ),
        "mistral3": Architecture(
            read_by={"": "mistral"},
            biases=_ALL_BIASES,
            families=("mistral3", "ministral3"),
            pairs_rows=True,
        ),
        "granite": Architecture(
            biases=_ALL_BIASES, families=("granite", "granitemoehybrid attention"), pairs_rows=True
        ),
        "granitemoe": Architecture(
            biases=_ALL_BIASES,
            families=("granitemoe", "granitemoehybrid attention experts"),
            pairs_rows=True,
        ),
        "smollm3": Architecture(
            families=("smollm3",),
            pairs_rows=True,
        ),
        "chatglm": Architecture(
            biases=("qkv",),
            families=("glm",),
            fused_mlp=True,
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
        "phi3": Architecture(families=("phi3",), fused_mlp=True, fused_qkv=True),
        "olmo2": Architecture(
            read_by={"window": "olmo3"},
            head="own",
            families=("olmo2", "olmo3"),
            full_every=4,
            plain_window=True,
        ),
        "glm4": Architecture(
            biases=("qkv",),
            families=("glm4",),
            fused_mlp=True,
        ),
        "glm4moe": Architecture(
            reads_weights_norm=True,
            biases=("qkv",),
            families=("glm4_moe",),
            late_norm=True,
            norm_topk_prob=False,
        ),
        "gpt-oss": Architecture(
            biases=("qkv", "o"),
            needs_biases=True,
            head="own",
            families=("gpt_oss",),
            late_norm=True,
            full_every=2,
            whole_ramp=False,
        ),
        "deepseek2": Architecture(
            read_by={"sigmoid": "deepseek_v3"},
            implied=_NO_EXPERTS,
            reads_weights_norm=True,
            families=("deepseek_v2", "deepseek_v3"),
            norm_topk_prob=False,
        ),
        "starcoder2": Architecture(
            biases=_ALL_BIASES,
            needs_biases=True,
            families=("starcoder2",),
        ),
        "gemma": Architecture(head="tied", families=("gemma",), scales_embedding=True),
        "gemma2": Architecture(
            head="tied",
            families=("gemma2",),
            full_every=2,
            scales_embedding=True,
            wide_scale_layers=46,
        ),
        "gemma3": Architecture(
            families=("gemma3_text", "gemma3"),
            full_every=6,
            plain_window=True,
            window_theta=10_000.0,
            theta=1_000_000.0,
            eps=1e-6,
            long_factor=8.0,
            scales_embedding=True,
            wide_scale_layers=62,
        ),
        "mamba": Architecture(
            read_by={"": "falcon_mamba"},
            biases=("ssm",),
            families=("mamba", "falcon_mamba"),
            hybrid=True,
        ),
        "mamba2": Architecture(biases=("ssm",), families=("mamba2",), hybrid=True),
        "jamba": Architecture(
            implied={"num_experts": 1, "experts_per_tok": 1},
            families=("jamba",),
            hybrid=True,
            norm_topk_prob=False,
        ),
        "granitehybrid": Architecture(
            implied={"num_experts": 0},
            biases=_ALL_BIASES,
            families=("granitemoehybrid", "bamba"),
            hybrid=True,
            rotation="metadata",
            pairs_rows=True,
        ),
        "nemotron_h": Architecture(
            biases=_ALL_BIASES,
            families=("nemotron_h",),
            hybrid=True,
        ),
        "nemotron_h_moe": Architecture(
            read_by={"": "nemotron_h"},
            reads_weights_norm=True,
            biases=_ALL_BIASES,
            families=("nemotron_h experts",),
            hybrid=True,
        ),
        "falcon-h1": Architecture(
            implied={"mamba_norm_before_gate": False},
            families=("falcon_h1",),
            hybrid=True,
            own_names=_FALCON_NORM,
            is_folded=True,
        ),
        "lfm2": Architecture(
            implied={"block_auto_adjust_ff_dim": False},
            families=("lfm2",),
            hybrid=True,
            own_names=_LFM2_NORM,
        ),
        "lfm2moe": Architecture(
            reads_weights_norm=True,
            families=("lfm2_moe",),
            hybrid=True,
            own_names=_LFM2_NORM,
        ),
        "qwen3next": Architecture(families=("qwen3_next",), hybrid=True, late_norm=True),
        "qwen35": Architecture(
            read_by={"": "qwen3_5_text"},
            families=("qwen3_5", "qwen3_5_text"),
            hybrid=True,
            late_norm=True,
            tiled=True,
        ),
        "qwen35moe": Architecture(
            read_by={"": "qwen3_5_moe_text"},
            families=("qwen3_5_moe", "qwen3_5_moe_text"),
            hybrid=True,
            late_norm=True,
            tiled=True,
        ),
        "kimi-linear": Architecture(
            implied=_NO_EXPERTS,
            reads_weights_norm=True,
            families=("kimi_linear",),
            hybrid=True,
        ),
        # Models of other types that are one of the families above but for what is said here.
        "internlm2": Architecture(read_by=_LLAMA, pairs_rows=True),
        "xverse": Architecture(read_by=_LLAMA, pairs_rows=True),
        "exaone": Architecture(read_by=_LLAMA),
        "pangu-embedded": Architecture(read_by=_LLAMA),
        "seed_oss": Architecture(read_by=_LLAMA, late_norm=True),
        "arcee": Architecture(read_by=_LLAMA, pairs_rows=True, implied={"hidden_act": "relu2"}),
        "qwen2vl": Architecture(read_by={"": "qwen2"}),
        "qwen3vl": Architecture(read_by={"": "qwen3"}),
        "qwen3vlmoe": Architecture(read_by={"": "qwen3_moe"}),
        "ernie4_5": Architecture(read_by={"": "glm"}),
        "dots1": Architecture(read_by={"": "glm4_moe"}),
        "minimax-m2": Architecture(read_by={"": "glm4_moe"}),
        "nemotron": Architecture(read_by={"": "starcoder2"}, implied={"hidden_act": "relu2"}),
        "stablelm": Architecture(read_by={"": "starcoder2"}, implied={"hidden_act": "silu"}),
    }
)
