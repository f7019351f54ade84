"""What differs between the architectures that GGUF files name, and what their tensors are called.

llama.cpp names the parts of all models alike: one list of names serves for reading and for writing
them. Where a name means one thing in one layer and another in the next, what is in the layer
decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.gguf import NUMBERS, number_name
from blazr.models.families.rules import (
    AS_STORED,
    FEED,
    GATE_UP_DOWN,
    MIXER,
    OURS,
    PARTS,
    Cut,
    DecayLog,
    Pairs,
    Reshape,
    Rule,
    RuleBook,
    Stack,
    TiledColumns,
    TiledHeads,
    Transpose,
    gate_and_up,
    queries_keys_values,
    renamed,
)
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, MixerConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.lightning import LightningConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.parallel import ParallelFeedForwardConfig, ParallelMixerConfig
from blazr.nn.layers.short_conv import ShortConvConfig

_LAYER = "blk.{i}."
_SHARED = FEED + "shared_expert."
LAYER_NORMS = ("mixer_norm", "mixer_post_norm", "feed_forward_norm", "feed_forward_post_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a name in ``general.architecture`` stands for, as differences from Llama.

    Args:
        families: Names of FAMILIES whose models are written as this one: those of attention alone
            where ``attention`` follows the name, those with experts where ``experts`` does.
        read_by: The row of FAMILIES that reads its files, by what these have: ``experts``, a
            ``window``, experts scored by a ``sigmoid``, or under "" any; else the first family.
        defaults: Metadata that its first files leave out.
        required: Metadata without which scores would come out wrong. Some architectures' first
            files leave them out.
        implied: Values of config.json that files of this architecture leave out.
        is_hybrid: Whether layers differ, so that their tensors tell what each is made of.
        own_names: Names of tensors that others do not have.
        has_post_attention_norm: Whether the norm before a feed-forward is called
            ``post_attention_norm``.
        has_swapped_norms: Whether attention's norm is the second where it has one of its own.
        rotation: What says whether attention has rotary embeddings: the family, or the metadata's
            ``rope.scaling.finetuned``.
        has_fused_mlp: Whether the gate and up projections of an MLP are one matrix.
        has_fused_qkv: Whether queries, keys and values are one matrix in files that are written;
            files of any architecture may have one.
        rotating_layers: Only models of so many layers rotate, others have ALiBi; 0 where all do.
        pairs_rows: Whether converters move rows of queries and keys, so that channels that are
            rotated together are neighbours.
        has_neighbours: Whether these are neighbours in the model itself, where its family has them
            apart.
        full_every: Every n-th layer has no window; with 0 all layers have the window, if any.
        full_first: Whether that is the first of them, and not the last.
        chunk_size: Tokens of the chunks that these layers have in the place of a window (Llama 4).
        bare_experts: A model of so many experts has no norms of queries and keys, of which no other
            says whether it has them, as they have no weights (Llama 4).
        truncates_ramp: Whether the ends of YaRN's ramp over channels are whole numbers.
        has_unscaled_window: Whether layers with a window are rotated without any scaling.
        window_theta: Base of the rotation in layers with a window, if the file names none; 0 for
            that of the other layers.
        theta: Base of the rotation in other layers, if the file names none.
        eps: The epsilon of norms, if the file names none.
        long_factor: What positions are divided by in models of 131,072 tokens whose file names
            neither that nor the base, as Ollama's of Gemma 3.
        counts_dense: Whether files say that all layers are dense where no layer has experts.
        norm_topk_prob: Whether the weights of a token's experts are normalised to sum to 1.
        attention_scale: What scores of attention are multiplied with, if the file does not say; 0
            for what the size of a head tells.
        takes_tokens: Whether layers may take a vector of each token and keys of other layers. Files
            then say how large the vectors are, and how many layers share keys, be it 0.
        scales_embedding: Whether embedded tokens are multiplied with the root of their size.
        norm_by_key: Whether the key of the norms' epsilon tells which norms these are.
        multiplies_logits: Whether scores are multiplied with ``logit_scale``, not divided by it.
        says_parallel: Whether the metadata say that both halves of a layer see its input; in other
            files the missing norm of the second does.
        wide_scale_layers: A model of so many layers scales attention's scores by the root of hidden
            size over heads, not of the size of a head.
        has_value_size: Whether values may be shorter than keys, and layers with a window have twice
            as many of both (MiMo-V2).
        is_folded: Whether converters multiply matrices by the model's multipliers.
        has_tiled_values: Whether value heads of delta networks that share a key head lie apart.
        biases: Which biases llama.cpp loads: of ``qkv``, ``o`` (the output of attention), ``mlp``,
            ``ssm`` (the projections of a state space), ``head`` (the output matrix).
        needs_biases: Whether llama.cpp wants all of these to be there.
        head: Whether llama.cpp wants an output head of its ``own``, none (``tied``), or takes
            ``either``.
        reads_weights_norm: Whether llama.cpp reads ``expert_weights_norm``.
        rate_sign: That of the decay rates of delta networks in files.
        lists_blocks: Whether layers may lack a half, and differ in what they have of the other.
        axes: How the channels for the time, row and column of an image's tokens lie (M-RoPE): in
            ``runs``, ``mixed`` (interleaved), or "" for models without them.
    """

    families: tuple[str, ...] = ()
    read_by: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    implied: Mapping[str, object] = field(default_factory=dict)
    is_hybrid: bool = False
    own_names: tuple[Rule, ...] = ()
    has_post_attention_norm: bool = False
    has_swapped_norms: bool = False
    has_fused_mlp: bool = False
    has_fused_qkv: bool = False
    rotation: Literal["family", "metadata"] = "family"
    rotating_layers: int = 0
    pairs_rows: bool = False
    has_neighbours: bool = False
    full_every: int = 0
    full_first: bool = False
    chunk_size: int = 0
    bare_experts: int = 0
    truncates_ramp: bool = True
    has_unscaled_window: bool = False
    window_theta: float = 0.0
    theta: float = 10_000.0
    eps: float = 1e-5
    long_factor: float = 1.0
    counts_dense: bool = False
    norm_topk_prob: bool = True
    attention_scale: float = 0.0
    takes_tokens: bool = False
    scales_embedding: bool = False
    norm_by_key: bool = False
    multiplies_logits: bool = False
    says_parallel: bool = False
    wide_scale_layers: int = 0
    has_value_size: bool = False
    is_folded: bool = False
    has_tiled_values: bool = False
    biases: tuple[str, ...] = ()
    needs_biases: bool = False
    head: Literal["own", "tied", "either"] = "either"
    reads_weights_norm: bool = False
    rate_sign: Literal[1, -1] = -1
    lists_blocks: bool = False
    axes: Literal["", "runs", "mixed"] = ""

    def has_window(self, layer: int, every: int | None = None) -> bool:
        """Whether a layer has the window, where no key lists those that have it.

        Args:
            layer: The layer.
            every: How many layers the metadata say there are for one that has none; None where they
                say nothing.
        """
        every = self.full_every if every is None else every
        return not every or (layer + (not self.full_first)) % every != 0


_ALL_BIASES = ("qkv", "o", "mlp", "ssm")
_LFM2_NORM = (Rule("token_embd_norm.weight", "norm.weight"),)
# in files of converters, this one has no ending
_FALCON_NORM = (Rule("blk.{i}.ffn_norm", "layers.{i}.feed_forward_norm.weight"),)
_GATE_NAME = (Rule(_LAYER + "attn_gate.weight", MIXER + "gate_proj.weight"),)
# Of the vectors that each layer takes of a token.
_TOKEN_INPUTS = (
    Rule("per_layer_token_embd.weight", "per_layer.embed_tokens.weight"),
    Rule("per_layer_model_proj.weight", "per_layer.projection.weight"),
    Rule("per_layer_proj_norm.weight", "per_layer.norm.weight"),
    Rule(_LAYER + "inp_gate.weight", OURS + "token_input.gate.weight"),
    Rule(_LAYER + "proj.weight", OURS + "token_input.projection.weight"),
    Rule(_LAYER + "post_norm.weight", OURS + "token_input.norm.weight"),
)
_STREAMS = (
    Rule("altup_proj.weight", "streams.projections"),
    Rule("altup_unembd_proj.weight", "streams.unembed_projections"),
    *renamed(
        _LAYER,
        OURS,
        {
            "altup_predict_coef": "prediction",
            "altup_correct_coef": "correction",
            "altup_router": "stream_router",
            "altup_router_norm": "router_norm",
            "laurel_l": "laurel_left",
            "laurel_r": "laurel_right",
            "laurel_post_norm": "laurel_norm",
        },
    ),
    Rule(_LAYER + "altup_correct_scale.weight", OURS + "correction_scale"),
)

# What files of models without experts do not say, though their family may have some.
_NO_EXPERTS = {
    "num_experts": 1,
    "experts_per_tok": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 1,
}
_LLAMA = {"": "mistral", "experts": "mixtral"}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        read_by=_LLAMA,
        biases=_ALL_BIASES,
        families=("llama", "mistral", "mixtral", "internlm3", "iquestcoder"),
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
        families=("granitemoe", "granitemoeshared", "granitemoehybrid attention experts"),
        pairs_rows=True,
    ),
    "smollm3": Architecture(
        families=("smollm3",),
        pairs_rows=True,
    ),
    "chatglm": Architecture(
        biases=("qkv",),
        families=("glm",),
        has_fused_mlp=True,
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
    "phi3": Architecture(families=("phi3",), has_fused_mlp=True, has_fused_qkv=True),
    "olmo2": Architecture(
        read_by={"window": "olmo3"},
        head="own",
        families=("olmo2", "olmo3"),
        full_every=4,
        has_unscaled_window=True,
    ),
    "glm4": Architecture(
        biases=("qkv",),
        families=("glm4",),
        has_fused_mlp=True,
    ),
    "glm4moe": Architecture(
        reads_weights_norm=True,
        biases=("qkv",),
        families=("glm4_moe", "solar_open"),
        has_post_attention_norm=True,
        norm_topk_prob=False,
    ),
    "gpt-oss": Architecture(
        biases=("qkv", "o"),
        needs_biases=True,
        head="own",
        families=("gpt_oss",),
        has_post_attention_norm=True,
        full_every=2,
        truncates_ramp=False,
    ),
    "deepseek2": Architecture(
        read_by={"sigmoid": "deepseek_v3"},
        implied=_NO_EXPERTS,
        reads_weights_norm=True,
        counts_dense=True,
        families=("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "sarvam_mla", "youtu"),
        norm_topk_prob=False,
    ),
    "mistral4": Architecture(
        read_by={"": "deepseek_v2"},
        implied=_NO_EXPERTS,
        norm_topk_prob=False,
    ),
    "minicpm3": Architecture(
        # of the one release; llama.cpp has them in its code
        read_by={"": "minicpm3"},
        implied={"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256},
    ),
    "starcoder2": Architecture(
        biases=_ALL_BIASES,
        needs_biases=True,
        families=("starcoder2",),
    ),
    "jais2": Architecture(
        biases=("qkv", "o", "mlp"),
        needs_biases=True,
        families=("jais2",),
    ),
    "apertus": Architecture(
        biases=("qkv", "o"),
        head="own",
        families=("apertus",),
        own_names=tuple(Rule(number_name("{i}", key), FEED + key) for key in NUMBERS["apertus"]),
    ),
    "llama4": Architecture(
        families=("llama4_text", "llama4"),
        implied={
            "no_rope_layer_interval": 4,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        full_every=4,
        chunk_size=8192,
        bare_experts=128,
        norm_topk_prob=False,
    ),
    "phimoe": Architecture(
        biases=("qkv", "o", "head"), needs_biases=True, head="own", families=("phimoe",)
    ),
    "falcon": Architecture(
        families=("falcon",),
        implied={"is_parallel": True},
        has_swapped_norms=True,
        has_fused_qkv=True,
    ),
    "granite_swa": Architecture(
        read_by={"experts": "granitemoe_swa"},
        biases=("qkv", "o", "mlp"),
        families=("granite_swa",),
        pairs_rows=True,
    ),
    "mellum": Architecture(families=("mellum",), full_every=4, has_unscaled_window=True),
    "hy_v3": Architecture(reads_weights_norm=True, families=("hy_v3",), norm_topk_prob=False),
    "cohere2moe": Architecture(
        required=("logit_scale",),
        reads_weights_norm=True,
        families=("cohere2_moe",),
        norm_by_key=True,
        multiplies_logits=True,
        full_every=4,
        full_first=True,
        norm_topk_prob=False,
    ),
    "laguna": Architecture(
        reads_weights_norm=True,
        families=("laguna",),
        own_names=_GATE_NAME,
        full_every=4,
        full_first=True,
        has_unscaled_window=True,
        norm_topk_prob=False,
    ),
    "mimo2": Architecture(
        biases=("qkv",),
        head="own",
        families=("mimo_v2_flash",),
        has_unscaled_window=True,
        has_value_size=True,
    ),
    "gemma": Architecture(head="tied", families=("gemma",), scales_embedding=True),
    "gemma2": Architecture(
        head="tied",
        families=("gemma2",),
        defaults={
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        full_every=2,
        scales_embedding=True,
        wide_scale_layers=46,
    ),
    "gemma3": Architecture(
        families=("gemma3_text", "gemma3"),
        full_every=6,
        has_unscaled_window=True,
        window_theta=10_000.0,
        theta=1_000_000.0,
        eps=1e-6,
        long_factor=8.0,
        scales_embedding=True,
        wide_scale_layers=62,
    ),
    "gemma3n": Architecture(
        families=("gemma3n_text", "gemma3n"),
        own_names=(*_TOKEN_INPUTS, *_STREAMS),
        implied={"altup_correct_scale": True},
        full_every=5,
        has_unscaled_window=True,
        window_theta=10_000.0,
        theta=1_000_000.0,
        eps=1e-6,
        attention_scale=1.0,
        takes_tokens=True,
        scales_embedding=True,
    ),
    "gemma4": Architecture(
        families=("gemma4_text", "gemma4_unified_text", "gemma4", "gemma4_unified"),
        own_names=(
            *_TOKEN_INPUTS,
            Rule(_LAYER + "layer_output_scale.weight", OURS + "output_scale"),
        ),
        full_every=6,
        has_unscaled_window=True,
        window_theta=10_000.0,
        theta=1_000_000.0,
        eps=1e-6,
        attention_scale=1.0,
        takes_tokens=True,
        scales_embedding=True,
    ),
    "mamba": Architecture(
        read_by={"": "falcon_mamba"},
        biases=("ssm",),
        families=("mamba", "falcon_mamba"),
        is_hybrid=True,
    ),
    "mamba2": Architecture(biases=("ssm",), families=("mamba2",), is_hybrid=True),
    "jamba": Architecture(
        implied={"num_experts": 1, "experts_per_tok": 1},
        families=("jamba",),
        is_hybrid=True,
        norm_topk_prob=False,
    ),
    "granitehybrid": Architecture(
        implied={"num_experts": 0},
        biases=_ALL_BIASES,
        families=("granitemoehybrid", "bamba"),
        is_hybrid=True,
        rotation="metadata",
        pairs_rows=True,
    ),
    "nemotron_h": Architecture(
        biases=_ALL_BIASES,
        families=("nemotron_h",),
        is_hybrid=True,
    ),
    "nemotron_h_moe": Architecture(
        read_by={"": "nemotron_h"},
        reads_weights_norm=True,
        biases=_ALL_BIASES,
        families=("nemotron_h experts",),
        is_hybrid=True,
    ),
    "falcon-h1": Architecture(
        implied={"mamba_norm_before_gate": False},
        families=("falcon_h1",),
        is_hybrid=True,
        own_names=_FALCON_NORM,
        is_folded=True,
    ),
    "lfm2": Architecture(
        implied={"block_auto_adjust_ff_dim": False},
        families=("lfm2",),
        is_hybrid=True,
        own_names=_LFM2_NORM,
    ),
    "lfm2moe": Architecture(
        reads_weights_norm=True,
        families=("lfm2_moe",),
        is_hybrid=True,
        own_names=_LFM2_NORM,
    ),
    "qwen3next": Architecture(
        families=("qwen3_next",), is_hybrid=True, has_post_attention_norm=True
    ),
    "qwen35": Architecture(
        read_by={"": "qwen3_5_text"},
        families=("qwen3_5", "qwen3_5_text"),
        is_hybrid=True,
        has_post_attention_norm=True,
        has_tiled_values=True,
    ),
    "qwen35moe": Architecture(
        read_by={"": "qwen3_5_moe_text"},
        families=("qwen3_5_moe", "qwen3_5_moe_text"),
        is_hybrid=True,
        has_post_attention_norm=True,
        has_tiled_values=True,
    ),
    "kimi-linear": Architecture(
        implied=_NO_EXPERTS,
        reads_weights_norm=True,
        families=("kimi_linear",),
        is_hybrid=True,
    ),
    # Models of other types that are one of the families above but for what is said here.
    "internlm2": Architecture(read_by=_LLAMA, pairs_rows=True),
    "xverse": Architecture(read_by=_LLAMA, pairs_rows=True),
    "exaone": Architecture(read_by=_LLAMA),
    "pangu-embedded": Architecture(read_by=_LLAMA),
    "seed_oss": Architecture(read_by={"": "seed_oss"}, has_post_attention_norm=True),
    "arcee": Architecture(read_by={"": "arcee"}, pairs_rows=True),
    "qwen": Architecture(read_by={"": "qwen2"}),
    "qwen2vl": Architecture(read_by={"": "qwen2"}, axes="runs"),
    "qwen3vl": Architecture(read_by={"": "qwen3"}, axes="mixed"),
    "qwen3vlmoe": Architecture(read_by={"": "qwen3_moe"}, axes="mixed"),
    "ernie4_5": Architecture(read_by={"": "ernie4_5"}),
    "ernie4_5-moe": Architecture(read_by={"": "ernie4_5_moe"}),
    "exaone4": Architecture(read_by={"": "exaone4"}, full_every=4),
    "exaone-moe": Architecture(read_by={"": "exaone_moe"}, full_every=4, norm_topk_prob=False),
    "olmo": Architecture(read_by={"": "olmo"}, pairs_rows=True),
    "hunyuan-dense": Architecture(read_by={"": "hunyuan_v1_dense"}),
    "hunyuan-moe": Architecture(read_by={"": "hunyuan_v1_moe"}),
    # whose queries and keys have their norms behind the rotation, too
    "maincoder": Architecture(read_by={"": "hunyuan_v1_dense"}, has_neighbours=True),
    "afmoe": Architecture(
        read_by={"": "afmoe"},
        implied={"mup_enabled": True},
        own_names=_GATE_NAME,
        full_every=4,
        norm_topk_prob=False,
    ),
    "deepseek": Architecture(
        read_by={"": "bailing_moe"}, implied=_NO_EXPERTS, pairs_rows=True, norm_topk_prob=False
    ),
    "bailingmoe": Architecture(
        read_by={"": "bailing_moe"}, implied=_NO_EXPERTS, pairs_rows=True, norm_topk_prob=False
    ),
    "minicpm": Architecture(
        read_by={"": "granite"},
        required=("embedding_scale", "residual_scale", "logit_scale"),
        pairs_rows=True,
    ),
    "baichuan": Architecture(read_by=_LLAMA, pairs_rows=True, rotating_layers=32),
    "orion": Architecture(read_by={"": "stablelm"}),
    "codeshell": Architecture(read_by={"": "starcoder2"}),
    "dots1": Architecture(read_by={"": "dots1"}, norm_topk_prob=False),
    "minimax-m2": Architecture(read_by={"": "minimax_m2"}),
    "bailingmoe2": Architecture(read_by={"": "glm4_moe"}, norm_topk_prob=False),
    "bailingmoe3": Architecture(
        read_by={"": "bailing_hybrid"},
        implied=_NO_EXPERTS,
        is_hybrid=True,
        norm_topk_prob=False,
        rate_sign=1,
    ),
    "minimax-01": Architecture(read_by={"": "minimax"}, is_hybrid=True),
    "nemotron": Architecture(read_by={"": "nemotron"}),
    "deci": Architecture(read_by={"": "nemotron-nas"}, pairs_rows=True, lists_blocks=True),
    "gptneox": Architecture(read_by={"": "gpt_neox"}, says_parallel=True),
    "gpt2": Architecture(read_by={"": "gpt2"}),
    "starcoder": Architecture(read_by={"": "gpt_bigcode"}),
    "phi2": Architecture(read_by={"": "phi"}),
    "command-r": Architecture(
        read_by={"": "cohere"}, required=("logit_scale",), multiplies_logits=True
    ),
    "cohere2": Architecture(
        read_by={"": "cohere2"}, required=("logit_scale",), multiplies_logits=True, full_every=4
    ),
    "stablelm": Architecture(read_by={"": "stablelm"}),
}


def gguf_names(
    row: Architecture,
    layers: Sequence[LayerConfig] = (),
    *,
    has_fused_mlp: bool = False,
    is_tiled: bool = False,
    joins_gates: bool = False,
    has_fused_shared: bool = False,
) -> RuleBook:
    """The names of one file's tensors; of several for one parameter, the first is written.

    Args:
        row: The architecture.
        layers: The model's; without them the names that mean the same in all layers.
        has_fused_mlp: Whether both upward matrices of an MLP are one, under the name of the second.
        is_tiled: Whether heads of values of delta networks that share a key lie apart.
        joins_gates: Whether their projections of decay and beta are one matrix, by key head.
        has_fused_shared: Whether both upward matrices of a shared expert are one.
    """
    is_fused = has_fused_mlp and not row.is_hybrid
    attention = [m for each in layers for m in mixers_of(each) if isinstance(m, AttentionConfig)]
    pairs = None
    if row.pairs_rows and attention:
        dim = attention[0].head_dim
        ropes = [each.rope.dim for each in attention if each.rope is not None]
        # converters of a model whose attention may not rotate put whole heads in pairs
        pairs = Pairs(dim, ropes[0] if ropes and row.rotation != "metadata" else dim // 2 * 2)
    names = {
        "attn_norm": "mixer_norm",
        "post_attention_norm": "feed_forward_norm"
        if row.has_post_attention_norm
        else "mixer_post_norm",
        **({} if row.has_post_attention_norm else {"ffn_norm": "feed_forward_norm"}),
        "post_ffw_norm": "feed_forward_post_norm",
        "attn_q_norm": "mixer.q_norm",
        "attn_k_norm": "mixer.k_norm",
        # latent attention
        "attn_q_a": "mixer.q_down_proj",
        "attn_q_b": "mixer.q_up_proj",
        "attn_kv_a_mqa": "mixer.kv_down_proj",
        "attn_q_a_norm": "mixer.q_norm",
        "attn_kv_a_norm": "mixer.kv_norm",
        # state spaces
        "ssm_conv1d": "mixer.conv1d",
        **{f"ssm_{name}": f"mixer.{name}_proj" for name in ("in", "x", "dt", "out")},
        **{f"ssm_{name}_norm": f"mixer.{name}_norm" for name in ("dt", "b", "c")},
        # MLP and experts
        **{f"ffn_{n}": f"feed_forward.{n}_proj" for n in (("down",) if is_fused else GATE_UP_DOWN)},
        **{
            f"ffn_{n}_shexp": f"feed_forward.shared_expert.{n}_proj"
            for n in (("down",) if has_fused_shared else GATE_UP_DOWN)
        },
        **{f"ffn_latent_{n}": f"feed_forward.latent_{n}_proj" for n in ("down", "up")},
        "ffn_gate_inp": "feed_forward.router",
    }
    experts = FEED + "experts.{p}_proj"
    return RuleBook(
        [
            *row.own_names,
            Rule("token_embd.weight", "embed_tokens.weight"),
            Rule("position_embd.weight", "positions.weight"),
            Rule("output_norm.{p}", "norm.{p}", p=PARTS),
            Rule("output.weight", "lm_head.weight"),
            Rule("output.bias", "head_bias"),
            *renamed(_LAYER, OURS, names),
            *_attention(_LAYER, MIXER, pairs, is_fused=row.has_fused_qkv),
            Rule(_LAYER + "attn_{p}_b.weight", MIXER + "{p}_up", p=("k", "v")),
            Rule(
                _LAYER + "attn_kv_b.weight",  # files before both were written head by head
                (MIXER + "k_up", MIXER + "v_up"),
                (Transpose(), AS_STORED),
                cut=Cut(groups="heads"),
            ),
            Rule(_LAYER + "ssm_a", MIXER + "a_log", DecayLog()),
            Rule(_LAYER + "ssm_d", MIXER + "d"),
            *(
                [Rule(_LAYER + "ffn_up.{p}", gate_and_up(FEED, "_proj.{p}"), p=PARTS)]
                if is_fused
                else ()
            ),
            *(
                [Rule(_LAYER + "ffn_up_shexp.weight", gate_and_up(_SHARED, "_proj.weight"))]
                if has_fused_shared
                else ()
            ),
            Rule(
                _LAYER + "ffn_gate_inp_shexp.weight",
                FEED + "shared_expert_gate.weight",
                Reshape(),
            ),
            Rule(_LAYER + "ffn_{p}_exps.bias", FEED + "experts.{p}_bias", p=GATE_UP_DOWN),
            Rule(_LAYER + "exp_probs_b.bias", FEED + "correction_bias", Reshape()),
            Rule(_LAYER + "ffn_{p}_exps.weight", experts, p=GATE_UP_DOWN),
            Rule(
                _LAYER + "ffn_gate_up_exps.weight",  # as converters write them when asked to
                gate_and_up(FEED + "experts.", "_proj"),
                cut=Cut(1),
            ),
            Rule(_LAYER + "ffn_{p}.{e}.weight", experts, Stack("e"), p=GATE_UP_DOWN),
            *(
                rule
                for index, layer in enumerate(layers)
                for rule in _in_layer(index, layer, row, is_tiled=is_tiled, joins_gates=joins_gates)
            ),
            *(
                rule
                for index, layer in enumerate(layers)
                if isinstance(layer.feed_forward, ParallelFeedForwardConfig)
                for rule in _mlp_and_experts(f"blk.{index}.", f"layers.{index}.feed_forward.")
            ),
        ]
    )


def written_names(row: Architecture, config: ModelConfig) -> RuleBook:
    """The names in files that are written."""
    return gguf_names(
        row,
        config.layers,
        has_fused_mlp=row.has_fused_mlp,
        is_tiled=row.has_tiled_values,
        joins_gates=not row.has_tiled_values,
    )


def mixers_of(layer: LayerConfig) -> tuple[MixerConfig, ...]:
    """The mixers of a layer, side by side or one."""
    if isinstance(layer.mixer, ParallelMixerConfig):
        return tuple(part.mixer for part in layer.mixer.parts)
    return (layer.mixer,)


def _attention(
    at: str, ours: str, pairs: Pairs | None = None, *, is_fused: bool = False
) -> Iterable[Rule]:
    targets = queries_keys_values(ours, "_proj.{p}")
    joined = Rule(f"{at}attn_qkv.{{p}}", targets, p=PARTS)
    single = [
        Rule(f"{at}attn_{name}.{{p}}", target, p=PARTS, cut=None if name == "v" else pairs)
        for name, target in zip("qkv", targets, strict=True)
    ]
    yield from (joined, *single) if is_fused else (*single, joined)
    yield Rule(f"{at}attn_output.{{p}}", f"{ours}o_proj.{{p}}", p=PARTS)
    yield Rule(at + "attn_sinks.weight", ours + "sinks")


def _in_layer(
    index: int, layer: LayerConfig, row: Architecture, *, is_tiled: bool, joins_gates: bool
) -> Iterable[Rule]:
    """Names that mean something else in other layers, or that other layers have in other places."""
    at = f"blk.{index}."
    ours = f"layers.{index}."
    mixers = mixers_of(layer)
    if row.has_swapped_norms and layer.feed_forward_norm is not None:
        norms = {"attn_norm": "feed_forward_norm", "attn_norm_2": "mixer_norm"}
    else:
        norms = {} if mixers else {"attn_norm": "feed_forward_norm"}
    yield from renamed(at, ours, norms)
    mixer = ours + "mixer."
    for each in mixers:
        match each:
            case ShortConvConfig():
                names = {f"shortconv.{name}_proj": f"{name}_proj" for name in ("in", "out")}
                yield from renamed(at, mixer, {**names, "shortconv.conv": "conv1d"})
            case DeepseekMlaConfig():
                names = {"attn_q_a_norm": "q_norm", "attn_gate": "gate_proj"}
                yield from renamed(at, mixer, names)
            case AttentionConfig() if len(mixers) > 1:
                yield from _attention(at, mixer + "parts.attention.")
            case Mamba2Config():
                mamba = mixer + ("parts.mamba." if len(mixers) > 1 else "")
                names = {f"ssm_{name}": f"{name}_proj" for name in ("in", "out")}
                yield from renamed(at, mamba, {**names, "ssm_conv1d": "conv1d"})
                yield from _decay(at, mamba)
                yield Rule(at + "ssm_d", mamba + "d", Reshape())
            case LightningConfig():
                yield from _lightning(at, mixer, each)
            case KimiDeltaConfig():
                yield from _kimi(at, mixer, each, row)
            case GatedDeltaConfig():
                yield from _delta(at, mixer, each, is_tiled=is_tiled, joins_gates=joins_gates)


def _mlp_and_experts(at: str, ours: str) -> Iterable[Rule]:
    """Of Gemma 4, whose router and experts have factors."""
    moe = ours + "parts.moe."
    yield from renamed(at, ours + "parts.mlp.", {f"ffn_{n}": f"{n}_proj" for n in GATE_UP_DOWN})
    names = {"ffn_norm": "norms.mlp", "post_ffw_norm_1": "post_norms.mlp"}
    names |= {"post_ffw_norm_2": "post_norms.moe", "pre_ffw_norm_2": "parts.moe.expert_norm"}
    yield from renamed(at, ours, names)
    yield Rule(at + "ffn_gate_inp.weight", moe + "router.weight")
    yield Rule(at + "ffn_gate_inp.scale", moe + "router_norm.weight")
    yield Rule(at + "ffn_down_exps.scale", moe + "expert_scale")
    yield Rule(at + "ffn_gate_up_exps.weight", gate_and_up(moe + "experts.", "_proj"), cut=Cut(1))
    yield Rule(at + "ffn_{p}_exps.weight", moe + "experts.{p}_proj", p=GATE_UP_DOWN)


def _lightning(at: str, ours: str, mixer: LightningConfig) -> Iterable[Rule]:
    joined = queries_keys_values(ours, "_proj.weight")
    yield Rule(at + "attn_qkv.weight", joined, cut=Cut(groups=mixer.num_heads))
    names = {"attn_gate": "gate_proj", "attn_norm_2": "norm", "attn_output": "out_proj"}
    yield from renamed(at, ours, names)


def _kimi(at: str, ours: str, mixer: KimiDeltaConfig, row: Architecture) -> Iterable[Rule]:
    for n in "qkv":
        yield Rule(f"{at}ssm_conv1d_{n}.weight", f"{ours}{n}_conv1d.weight", Reshape())
    names = {f"ssm_{name}": f"{name}_proj" for name in ("f_a", "f_b", "g_a", "g_b")}
    if not mixer.has_low_rank:
        names = {"ssm_f_a": "f_proj", "ssm_g_a": "g_proj"}
    names |= {"attn_output": "out_proj", "ssm_beta": "b_proj"}
    yield from renamed(at, ours, names)
    yield from _decay(at, ours, sign=row.rate_sign)


def _decay(
    at: str, ours: str, heads: TiledHeads | None = None, sign: Literal[1, -1] = -1
) -> Iterable[Rule]:
    yield Rule(at + "ssm_dt.bias", ours + "dt_bias", cut=heads)
    yield Rule(at + "ssm_a", ours + "a_log", DecayLog(sign), cut=heads)
    yield Rule(at + "ssm_norm.weight", ours + "norm.weight", Reshape())


def _delta(
    at: str, ours: str, mixer: GatedDeltaConfig, *, is_tiled: bool, joins_gates: bool
) -> Iterable[Rule]:
    heads = TiledHeads(mixer.num_key_heads, mixer.num_heads) if is_tiled else None
    wide = None if heads is None else replace(heads, before=2 * mixer.key_size)
    proj = ours + "in_proj_"
    yield Rule(at + "attn_qkv.weight", proj + "qkv.weight", cut=wide)
    yield Rule(at + "ssm_conv1d.weight", ours + "conv1d.weight", cut=wide)
    yield Rule(at + "attn_gate.weight", proj + "z.weight", cut=heads)
    gates = (proj + "b.weight", proj + "a.weight")
    if joins_gates:
        yield Rule(at + "ssm_ba.weight", gates, cut=Cut(groups=mixer.num_key_heads))
    else:
        yield Rule(at + "ssm_beta.weight", gates[0], cut=heads)
        yield Rule(at + "ssm_alpha.weight", gates[1], cut=heads)
    columns = AS_STORED if heads is None else TiledColumns(heads)
    yield Rule(at + "ssm_out.weight", ours + "out_proj.weight", columns)
    yield from _decay(at, ours, heads)
