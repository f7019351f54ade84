"""The values of config.json that a GGUF file was made from.

Most keys only change their names, by one table that is read both ways: llama.cpp has one key for
what Hugging Face's families have several keys for. Where config.json has none, the table has a word
of ours. The functions below have the rest: what the tensors tell better, what depends on the layer,
and rotation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from blazr.core.errors import CheckpointError, ConfigError, ShapeError
from blazr.core.gguf_header import ARCHITECTURE_KEY
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import ConfigReader, value_or
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.families.hf.derive import FULL, LINEAR, SLIDING
from blazr.models.families.hf.llama4 import CHUNKED

LONG_CONTEXT = 131_072
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
ATTENTION, FUSED_ATTENTION, MAMBA = "attn_q.weight", "attn_qkv.weight", "ssm_in.weight"
MAMBA1, DELTA, KIMI = "ssm_x.weight", "attn_gate.weight", "ssm_conv1d_q.weight"
CONV, LATENT = "shortconv.in_proj.weight", "attn_kv_a_mqa.weight"
_LAUREL, _TOKEN_VECTORS = "blk.0.laurel_l.weight", "per_layer_token_embd.weight"
_POSITIONS, _GATE = "position_embd.weight", "blk.0.attn_gate.weight"
_NORM_BESIDE = "blk.0.attn_norm_2.weight"  # of attention; its MLP has the first one then
_ROUTER, _DOWN = "ffn_gate_inp.weight", "ffn_down.weight"
# Types of layers by a tensor of their mixer; of several in one layer the first decides.
_KIND_BY_TENSOR = {
    CONV: "conv",
    LATENT: FULL,  # whose heads may have a gate, too
    DELTA: LINEAR,
    KIMI: LINEAR,
    MAMBA: LINEAR,
    ATTENTION: FULL,
    FUSED_ATTENTION: FULL,
}
# Of DeepSeek-V3, whose experts are scored by a sigmoid, and of V2.
_BY_SIGMOID, _BY_SOFTMAX = "noaux_tc", "group_limited_greedy"

ConfigValues = dict[str, object]
# This key is ours: llama.cpp has one epsilon for all norms.
INNER_EPS = "ssm.dt_b_c_rms_epsilon"
RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
# llama.cpp's numbers for what scores experts; 0 says nothing, the last is over the chosen ones
SOFTMAX, SIGMOID, CHOSEN_SOFTMAX = 1, 2, 3

CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "block_count": ("num_layers",),
    "context_length": ("max_seq_len",),
    "embedding_length": ("hidden_size",),
    "vocab_size": ("vocab_size",),
    "altup.active_idx": ("altup_active_idx",),
    "altup.num_inputs": ("altup_num_inputs",),
    "activation_sparsity_scale": ("sparsity_quantiles",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "feed_forward_length": ("intermediate_size",),
    "nextn_predict_layers": ("num_nextn_predict_layers",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    LAYER_EPS: ("layer_norm_eps",),
    RMS_EPS: ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_kv_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("value_head_dim",),
    "attention.key_length_swa": ("window_head_dim",),
    "attention.value_length_swa": ("window_value_head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.key_length_mla": ("qk_head_dim",),
    "attention.value_length_mla": ("v_head_dim",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.scale": ("attention_multiplier",),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.sliding_window": ("sliding_window",),
    "attention.sliding_window_pattern": ("is_sliding",),
    "attention.recurrent_layers": ("is_recurrent",),
    "attention.temperature_scale": ("llama_4_scaling_beta",),
    "attention.value_scale": ("attention_value_scale",),
    "rope.dimension_count": ("rotary_dim",),
    "rope.dimension_count_swa": ("window_rotary_dim",),
    "rope.dimension_sections": ("mrope_section",),
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_local_base_freq",),
    "rope.scaling.type": ("rope_type",),
    "rope.scaling.factor": ("factor",),
    "rope.scaling.original_context_length": ("original_max_position_embeddings",),
    "rope.scaling.attn_factor": ("attention_factor",),
    "rope.scaling.yarn_beta_fast": ("beta_fast",),
    "rope.scaling.yarn_beta_slow": ("beta_slow",),
    "rope.scaling.yarn_log_multiplier": ("mscale_all_dim",),
    "rope.scaling.finetuned": ("rotates",),
    "expert_count": ("num_experts",),
    "expert_used_count": ("experts_per_tok", "num_experts_per_tok"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "expert_shared_count": ("n_shared_experts",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "expert_gating_func": ("scoring_number",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
    "moe_latent_size": ("moe_latent_size",),
    "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"),
    "ssm.inner_size": ("inner_size",),
    "ssm.state_size": (
        "state_size",
        "ssm_state_size",
        "mamba_d_state",
        "linear_key_head_dim",
    ),
    "ssm.time_step_rank": (
        "time_step_rank",
        "mamba_dt_rank",
        "num_heads",
        "mamba_num_heads",
        "mamba_n_heads",
        "linear_num_value_heads",
    ),
    "ssm.group_count": ("n_groups", "mamba_n_groups", "linear_num_key_heads"),
    "ssm.dt_b_c_rms": ("normalizes_plainly",),
    INNER_EPS: ("mixer_rms_eps",),
    "kda.head_dim": ("linear_head_dim",),
    "kda.gate_lower_bound": ("kda_lower_bound",),
    "shortconv.l_cache": ("conv_L_cache",),
}
# Zero stands for "none" here, in llama.cpp as well; anywhere else it is an error.
_ZERO_IS_NONE = {
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "attention.scale",
    "expert_weights_scale",
    "rope.scaling.factor",
    "rope.scale_linear",
}
METADATA_KEYS: Mapping[str, str] = {
    word: key for key, words in CONFIG_KEYS.items() for word in words
}


class GgufFile:
    """The metadata and the tensors of a file, read under one architecture's names.

    Raises:
        CheckpointError: The embedding is missing.
        ConfigError: The architecture is unknown, or the number of layers does not fit the file.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        name = checkpoint.metadata.get(ARCHITECTURE_KEY)
        row = ARCHITECTURES.get(name) if isinstance(name, str) else None
        if row is None:
            raise ConfigError(
                f"{checkpoint.path}: models of this architecture are not supported in GGUF.",
                found=repr(name)[:100],
                expected=", ".join(ARCHITECTURES),
                hint="where the model is also there as safetensors, try that",
            )
        self.checkpoint = checkpoint
        self.row = row
        self.architecture = str(name)
        self.tensors = checkpoint.tensors
        found: dict[str, object] = {**row.defaults}
        for key, value in checkpoint.metadata.items():
            outer, _, inner = key.partition(".")
            if outer == self.architecture:
                found[inner] = value
        self.metadata = {
            key: value for key, value in found.items() if value != 0 or key not in _ZERO_IS_NONE
        }
        self.reader = self.reader_of({})
        self.hidden_size = self.size("token_embd.weight", 1)
        count = self.integer("block_count")
        if not 1 <= count <= len(self.tensors):
            raise ConfigError(
                f"the metadata's {self.key('block_count')!r} does not fit the file.",
                found=f"{count:,} layers, {len(self.tensors):,} tensors",
                expected="at least one tensor a layer",
            )
        self.num_layers = count - self.integer("nextn_predict_layers", 0)

    def reader_of(self, values: Mapping[str, object]) -> ConfigReader:
        """A reader of config.json's keys: these values, and for other keys the metadata."""
        names = {
            word: (self.key(key),) for word, key in METADATA_KEYS.items() if word not in values
        }
        return ConfigReader({self.architecture: self.metadata, **values}, "the metadata", names)

    def key(self, name: str) -> str:
        """A key of this architecture."""
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.tensors

    def size(self, name: str, dim: int) -> int:
        """A size of a tensor that must be there.

        Raises:
            CheckpointError: It is not, or has fewer dimensions.
        """
        info = self.tensors.get(name)
        if info is None or dim >= len(info.shape):
            raise CheckpointError(
                f"{self.checkpoint.path}: tensor {name} is missing.",
                found=", ".join(each[:40] for each in list(self.tensors)[:4]),
                hint="the file is incomplete, or of a kind that blazr does not know",
            )
        return info.shape[dim]

    def layers_with(self, name: str) -> list[int]:
        """The layers that have a tensor."""
        return [index for index in range(self.num_layers) if self.has(f"blk.{index}.{name}")]

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; of one for each layer, the largest.

        Raises:
            ConfigError: It is missing or something else.
        """
        key = self.key(name)
        values = self.metadata.get(name)
        if isinstance(values, memoryview) and len(values):
            last = key.rpartition(".")[2]
            found = ConfigReader({last: max(values)}, f"the metadata, {key}").integer(last)
        else:
            found = self.reader.integer(key)
        if found is None and default is None:
            raise ConfigError(
                f"the metadata has no {key!r}.",
                expected="a whole number",
                hint="the file is of an old or foreign converter: convert the model again",
            )
        return default or 0 if found is None else found.value

    def number(self, name: str, default: float) -> float:
        """A number above 0.

        Raises:
            ConfigError: It is something else.
        """
        return value_or(self.reader.number(self.key(name), above=0), default)

    def any_number(self, name: str) -> float:
        """A number of which 0 means that there is none; 0 where it is not there.

        Raises:
            ConfigError: It is something else.
        """
        return value_or(self.reader.number(self.key(name)), 0.0)

    def flag(self, name: str) -> bool | None:
        """A boolean; None where there is no such key.

        Raises:
            ConfigError: It is something else.
        """
        found = self.reader.boolean(self.key(name))
        return None if found is None else found.value

    @property
    def eps(self) -> float:
        """What norms add; some converters mix the two keys up."""
        return self.number(RMS_EPS, 0.0) or self.number(LAYER_EPS, self.row.eps)

    @property
    def head_dim(self) -> int:
        """Channels of a head of attention."""
        heads = self.integer("attention.head_count")
        return self.integer("attention.key_length", self.hidden_size // max(1, heads))

    def head_dim_of(self, layer: int) -> int:
        """The same in one layer, as those with a window may have another size."""
        whole = self.head_dim
        return self.integer("attention.key_length_swa", whole) if self.window(layer) else whole

    def integer_of(self, name: str, layer: int) -> int:
        """A whole number that may be one for each layer.

        Raises:
            ConfigError: It is missing or something else.
        """
        values = self.metadata.get(name)
        if isinstance(values, memoryview) and layer < len(values):
            last = name.rpartition(".")[2]
            reader = ConfigReader({last: values[layer]}, f"the metadata, {self.key(name)}")
            return value_or(reader.integer(last), 0)
        return self.integer(name)

    def slides(self, layer: int) -> bool:
        """Whether a layer is of the type that has the window, or chunks."""
        listed = self.metadata.get("attention.sliding_window_pattern")
        slides = self.row.has_window(layer)
        if isinstance(listed, memoryview) and layer < len(listed):
            slides = bool(listed[layer])
        elif isinstance(listed, bool):
            slides = listed
        elif isinstance(listed, int):  # every so many layers one sees all
            slides = self.row.has_window(layer, listed)
        return slides

    def window(self, layer: int) -> int:
        """How many tokens a layer sees; 0 for all, or for its chunk."""
        has_window = self.slides(layer) and not self.row.chunk_size
        return self.integer("attention.sliding_window", 0) if has_window else 0


def family_of(file: GgufFile) -> str:
    """The row of FAMILIES that reads a file of this architecture."""
    row = file.row
    more = file.row.read_by
    if "experts" in more and file.layers_with(_ROUTER):
        return more["experts"]
    if "window" in more and file.integer("attention.sliding_window", 0):
        return more["window"]
    if "sigmoid" in more and file.integer("expert_gating_func", 0) == SIGMOID:
        return more["sigmoid"]
    return more[""] if "" in more else row.families[0]


def config_values(file: GgufFile) -> ConfigValues:
    """Values of config.json by key, where more than a key's name changes."""
    values: ConfigValues = {
        "num_layers": file.num_layers,
        "hidden_size": file.hidden_size,
        "vocab_size": None,
        **_norms(file),
        "use_parallel_residual": _is_parallel(file),
        "has_two_norms": file.has(_NORM_BESIDE),
        **file.row.implied,
        **_feed_forwards(file),
        **_layers(file),
        **_blocks(file),
        **_attention(file),
        **_state_space(file),
        **_token_inputs(file),
    }
    return {word: value for key, value in values.items() for word in CONFIG_KEYS.get(key, (key,))}


# Keys of the values below are those of config.json, or one of llama.cpp's, which stands for all the
# keys of config.json beside it in CONFIG_KEYS.


def _norms(file: GgufFile) -> ConfigValues:
    """The epsilon under the name that tells which norms these are, where both kinds may be."""
    if file.row.norm_by_key and RMS_EPS not in file.metadata:
        return {LAYER_EPS: file.eps}
    return {RMS_EPS: file.eps, LAYER_EPS: file.eps}


def _feed_forwards(file: GgufFile) -> ConfigValues:
    sparse = file.layers_with(_ROUTER)
    dense = file.layers_with(_DOWN)
    first = sparse[0] if sparse else file.num_layers
    kinds = ["sparse" if index in sparse else "dense" for index in range(file.num_layers)]
    values: ConfigValues = {
        "leading_dense_block_count": first,
        "enable_moe_block": bool(sparse),
        "mlp_layer_types": kinds,
    }
    if dense:
        size = file.size(f"blk.{dense[0]}.ffn_down.weight", 1)
        values |= {"intermediate_size": size, "shared_intermediate_size": size}
    if not sparse:
        return values
    at = f"blk.{sparse[0]}."
    stacked = at + "ffn_down_exps.weight"
    shared = at + "ffn_down_shexp.weight"
    one_by_one = at + "ffn_down.0.weight"
    size = file.size(stacked, 2) if file.has(stacked) else file.size(one_by_one, 1)
    experts = file.size(at + _ROUTER, 0)
    wide = file.size(shared, 1) if file.has(shared) else size
    num_shared = max(1, wide // size) if file.has(shared) else 0
    scored = file.integer("expert_gating_func", 0)
    of_softmax = _BY_SOFTMAX if file.layers_with(LATENT) else None
    return {
        **values,
        # that of an MLP is told by its tensors
        "intermediate_size": size,
        "moe_layers": sparse,
        "expert_selection_fn": "softmax" if scored == SOFTMAX else "sigmoid",
        **({"use_qk_norm": experts != file.row.bare_experts} if file.row.bare_experts else {}),
        "moe_intermediate_size": size,
        "num_experts": experts,
        "expert_used_count": min(file.integer("expert_used_count"), experts),
        "expert_shared_feed_forward_length": wide,
        "n_shared_experts": num_shared,
        "num_shared_experts": num_shared,
        "mlp_only_layers": [index for index in range(file.num_layers) if index not in sparse],
        "topk_method": _BY_SIGMOID if scored == SIGMOID else of_softmax,
    }


def _is_parallel(file: GgufFile) -> bool:
    """By the tensors, as converters of StableLM say it of models that are not, too."""
    if file.row.says_parallel:
        return file.flag("use_parallel_residual") is not False
    return not file.has("blk.0.ffn_norm.weight")


def _layers(file: GgufFile) -> ConfigValues:
    """The kinds of layers: by their tensors in hybrids, by their windows elsewhere."""
    if file.row.chunk_size:
        kinds = [CHUNKED if file.slides(index) else FULL for index in range(file.num_layers)]
        return {"layer_types": kinds, "attention_chunk_size": file.row.chunk_size}
    if not file.row.is_hybrid:
        kinds = [SLIDING if file.window(index) else FULL for index in range(file.num_layers)]
        return {"layer_types": kinds, "use_sliding_window": SLIDING in kinds}
    sparse = file.layers_with(_ROUTER)
    kinds = list[str]()
    for index in range(file.num_layers):
        own = [name for name in _KIND_BY_TENSOR if file.has(f"blk.{index}.{name}")]
        otherwise = "moe" if index in sparse else "mlp"
        kinds.append(_KIND_BY_TENSOR[own[0]] if own else otherwise)
    return {"layer_types": kinds, "layers_block_type": kinds}


def _blocks(file: GgufFile) -> ConfigValues:
    """Which halves each layer has, and their sizes, as its tensors have them."""
    if not file.row.lists_blocks:
        return {}
    blocks: ConfigValues = {}
    for index in range(file.num_layers):
        at = f"blk.{index}."
        attends, feeds = file.has(at + ATTENTION), file.has(at + _DOWN)
        attention: ConfigValues = {
            "no_op": not attends,
            "replace_with_linear": file.has(at + "attn_output.weight") and not attends,
        }
        if attends:
            kv_heads = file.integer_of("attention.head_count_kv", index)
            attention["num_key_value_heads"] = kv_heads
        ffn: ConfigValues = {"no_op": not feeds}
        if feeds:
            ffn["intermediate_size"] = file.size(at + _DOWN, 1)
        blocks[str(index)] = {"attention": attention, "ffn": ffn}
    return {"block_configs": blocks}


def _state_space(file: GgufFile) -> ConfigValues:
    """The sizes of the first recurrent layer, as its tensors have them."""
    values: ConfigValues = {}
    short = file.layers_with("shortconv.conv.weight")
    kimi = file.layers_with(KIMI)
    scans = file.layers_with("ssm_a")
    if short:
        values["conv_L_cache"] = file.size(f"blk.{short[0]}.shortconv.conv.weight", 1)
    if kimi:
        inner = file.size(f"blk.{kimi[0]}.ssm_dt.bias", 0)
        dim = file.integer("kda.head_dim")
        if not dim or inner % dim:
            raise ShapeError(
                f"blk.{kimi[0]}.ssm_dt does not fit the metadata.",
                found=f"{inner} channels, heads of {dim}"[:100],
                expected="heads that divide the channels",
            )
        kernel = file.tensors[f"blk.{kimi[0]}.{KIMI}"].shape[-1]
        return values | {"linear_num_heads": inner // dim, "linear_conv_kernel_dim": kernel}
    if not scans:
        return values
    at = f"blk.{scans[0]}."
    kernel = file.size(at + "ssm_conv1d.weight", 1)
    values["ssm.conv_kernel"] = kernel
    if file.has(at + MAMBA1):
        inner = file.size(at + "ssm_a", 0)
        rank = file.size(at + "ssm_dt.weight", 1)
        values |= {
            "ssm.state_size": file.size(at + "ssm_a", 1),
            "time_step_rank": rank,
            "mamba_dt_rank": rank,
            # half a channel more, as the product is cut off to a whole number
            "mamba_expand": (inner + 0.5) / file.hidden_size,
            "mixer_rms_eps": file.eps,
        }
        return values | ({} if file.layers_with(_DOWN) else {"intermediate_size": inner})
    heads = file.size(at + "ssm_a", 0)
    inner = file.size(at + "ssm_out.weight", 1)
    groups = file.integer("ssm.group_count", 1)
    states = file.integer("ssm.state_size")
    fits = heads and inner % heads == 0 and groups and heads % groups == 0 and states
    if not fits:
        raise ShapeError(
            f"{at}ssm_a does not fit the metadata.",
            found=f"{heads} heads, {inner} channels, {groups} groups, {states} states"[:100],
            expected="heads that divide the channels, groups that divide the heads",
        )
    size = inner // heads
    values |= {"ssm.time_step_rank": heads, "ssm.group_count": groups}
    values |= {"mamba_head_dim": size, "mamba_d_head": size, "linear_value_head_dim": size}
    return values | ({} if file.layers_with(ATTENTION) else {"head_dim": size})


def _attention(file: GgufFile) -> ConfigValues:
    latent = file.layers_with(LATENT)
    if latent:
        return _latent(file, f"blk.{latent[0]}.")
    if not file.layers_with(ATTENTION) and not file.layers_with(FUSED_ATTENTION):
        return {}
    heads = file.integer("attention.head_count")
    dim = file.head_dim
    kv_heads = file.integer("attention.head_count_kv", heads)
    if not heads or not kv_heads or not dim or dim % 2 or heads % kv_heads:
        raise ShapeError(
            "the metadata's heads do not fit each other.",
            found=f"{heads} and {kv_heads} heads of {dim}"[:100],
            expected="heads of one even size, key/value heads that divide the query heads",
        )
    value_dim = file.integer("attention.value_length", dim)
    if value_dim != dim and not file.row.has_value_size:
        raise ConfigError(
            f"the metadata's {file.key('attention.value_length')!r} is not supported.",
            found=str(value_dim)[:100],
            expected=f"{dim}, the size of a key",
        )
    values: ConfigValues = {"num_attention_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    values |= _by_layer(file)
    if file.row.has_value_size:
        values["v_head_dim"] = value_dim
    if file.has(_GATE):
        is_one = file.size(_GATE, 0) == file.integer_of("attention.head_count", 0)
        values["gating"] = "per-head" if is_one else "per-element"
    rotated = file.integer("rope.dimension_count", dim)
    if not 0 < rotated <= dim or rotated % 2:
        raise ConfigError(
            f"the metadata's {file.key('rope.dimension_count')!r} does not fit the heads.",
            found=str(rotated)[:100],
            expected=f"an even number up to {dim}",
        )
    has_no_rope = file.row.rotation == "metadata" and file.flag("rope.scaling.finetuned") is False
    told_by = "learned" if file.has(_POSITIONS) else "nope" if has_no_rope else "rope"
    values["position_embedding_type"] = told_by
    # half a channel more, as the product is cut off to a whole number
    share: ConfigValues = {} if rotated == dim else {"partial_rotary_factor": (rotated + 0.5) / dim}
    return values | _rotation(file, rotated, share)


def _by_layer(file: GgufFile) -> ConfigValues:
    """Numbers of heads, and which layers rotate, where the metadata have a list of these."""
    layers = range(file.num_layers)
    values: ConfigValues = {}
    if isinstance(file.metadata.get("attention.head_count"), memoryview):
        heads = [file.integer_of("attention.head_count", index) for index in layers]
        values["num_attention_heads_per_layer"] = heads
    if file.row.has_value_size:
        kv_heads = [file.integer_of("attention.head_count_kv", index) for index in layers]
        wide = [count for index, count in enumerate(kv_heads) if file.window(index)]
        whole = [count for index, count in enumerate(kv_heads) if not file.window(index)]
        # where no layer sees all, those with a window tell: they have twice as many
        values["num_kv_heads"] = whole[0] if whole else wide[0] // 2
        values["swa_num_key_value_heads"] = wide[0] if wide else None
    rotates = file.metadata.get("attention.rope_pattern")
    if isinstance(rotates, memoryview):
        theta = file.number("rope.freq_base", file.row.theta)
        values["layer_rope_theta"] = [theta if each else 0.0 for each in rotates]
    return values


def _token_inputs(file: GgufFile) -> ConfigValues:
    """Of models whose layers take a vector of each token, and where heads differ by layer."""
    values: ConfigValues = {}
    if file.has(_TOKEN_VECTORS):
        values["vocab_size_per_layer_input"] = file.size(_TOKEN_VECTORS, 0)
    if file.has(_LAUREL):
        values["laurel_rank"] = file.size(_LAUREL, 0)
    quantiles = file.metadata.get("activation_sparsity_scale")
    if isinstance(quantiles, memoryview):  # rounded to float32
        shares = [round(NormalDist().cdf(each), 6) for each in quantiles]
        values["activation_sparsity_pattern"] = shares
    if "attention.key_length_swa" in file.metadata:
        values["per_layer_config"] = {
            str(index): {
                "head_dim": file.head_dim_of(index),
                "num_key_value_heads": file.integer_of("attention.head_count_kv", index),
            }
            for index in range(file.num_layers)
        }
    return values


def _latent(file: GgufFile, at: str) -> ConfigValues:
    """Latent attention.

    Files describe it as one head of keys that all queries share, which is how llama.cpp computes
    it. The sizes of the heads that were there before have keys of their own, and are the only ones
    in old files.
    """
    if file.has(ROPE_FACTORS):  # llama.cpp, whose converter never writes it there, refuses it, too
        raise ConfigError(
            f"latent attention does not rotate by tensor {ROPE_FACTORS!r}.",
            found=f"it in a model of architecture {file.architecture!r}",
            expected="frequencies that the metadata's rope.* say",
            hint="take another file of this model: its scores would come out wrong",
        )
    ending = "_mla" if file.has(at + "attn_k_b.weight") else ""
    rotated = file.integer("rope.dimension_count")
    whole = file.integer(f"attention.key_length{ending}")
    heads = file.integer("attention.head_count")
    wide = file.size(at + "attn_output.weight", 1) // max(1, heads)  # MiniCPM 3's have no key
    values = file.integer(f"attention.value_length{ending}", wide)
    if not 0 < rotated < whole or values < 1:
        raise ConfigError(
            "the metadata's sizes of latent attention do not fit each other.",
            found=f"keys of {whole}, {rotated} of them rotated, values of {values}"[:100],
            expected="fewer rotated channels than a key has",
        )
    down = at + "attn_q_a.weight"
    return {
        "num_attention_heads": heads,
        "qk_nope_head_dim": whole - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": values,
        "q_lora_rank": file.size(down, 0) if file.has(down) else None,
        **_rotation(file, rotated, {}),
    }


def _rotation(file: GgufFile, rotated: int, share: ConfigValues) -> ConfigValues:
    row = file.row
    base = file.number("rope.freq_base", 0.0)
    theta = {"rope_theta": base or row.theta}
    scaling = _scaling(file, rotated)
    is_long = row.long_factor != 1 and file.integer("context_length", 0) >= LONG_CONTEXT
    if not base and not scaling and is_long:
        scaling = {"rope_type": "linear", "factor": row.long_factor}
    whole: ConfigValues = {**theta, **share, **scaling}
    sections = file.metadata.get("rope.dimension_sections")
    if row.axes and isinstance(sections, memoryview):
        whole |= {"mrope_section": [*sections][:3], "mrope_interleaved": row.axes == "mixed"}
    values: ConfigValues = {"rope_parameters": whole}
    if "original_max_position_embeddings" in scaling:
        values["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    growth = file.any_number("attention.temperature_scale")
    if growth:  # scores grow with the position: Ministral 3's, and Mistral Large 3's
        lengths = (
            "attention.temperature_length",
            "rope.scaling.original_context_length",
            "context_length",
        )
        length = next(filter(None, (file.integer(key, 0) for key in lengths)), 1)
        whole |= {"llama_4_scaling_beta": growth, "original_max_position_embeddings": length}
        values["model_type"] = "ministral3"  # the only type whose config has it
    # without a window, OLMo 2 is read by a family whose layers are all of one type
    if row.has_unscaled_window and family_of(file) != "olmo2":
        local = file.number("rope.freq_base_swa", row.window_theta or theta["rope_theta"])
        own = {"rope_theta": local, **_window_share(file, rotated)}
        values["rope_parameters"] = {FULL: {"partial_rotary_factor": 1.0, **whole}, SLIDING: own}
    return values


def _window_share(file: GgufFile, rotated: int) -> ConfigValues:
    """The share of channels that layers with a window rotate, whose heads may have another size."""
    whole = file.head_dim
    dim = file.integer("attention.key_length_swa", whole)
    own = file.integer("rope.dimension_count_swa", rotated if dim == whole else dim)
    return {"partial_rotary_factor": 1.0 if own == dim else (own + 0.5) / dim}


def _scaling(file: GgufFile, rotated: int) -> ConfigValues:
    if file.has(ROPE_FACTORS):
        divisors = _factors(file, ROPE_FACTORS, rotated)
        name, factor = _stretch(file)
        if name != "linear":
            raise ConfigError(
                f"tensor {ROPE_FACTORS!r} and scaled rotation do not go together yet.",
                found=f"{file.key('rope.scaling.type')} {name!r:.50}",
                expected="linear, or none",
                hint="take another file of this model: its scores would come out wrong",
            )
        return {"rope_type": "factors", "factors": [factor * each for each in divisors]}
    trained = file.integer("rope.scaling.original_context_length", 0)
    stretch = file.number("rope.scaling.attn_factor", 1.0)
    if file.has(LONG_FACTORS):
        return {
            "rope_type": "longrope",
            "factor": 1.0,
            "short_factor": _factors(file, SHORT_FACTORS, rotated),
            "long_factor": _factors(file, LONG_FACTORS, rotated),
            "original_max_position_embeddings": trained or file.integer("context_length"),
            "attention_factor": stretch,
            **{f"{each}_mscale": stretch for each in ("short", "long")},  # Phi-3.5-MoE's words
        }
    name, factor = _stretch(file)
    if factor == 1:
        return {}
    if name == "linear":
        return {"rope_type": "linear", "factor": factor}
    if name != "yarn" or not trained:
        raise ConfigError(
            f"the metadata's {file.key('rope.scaling.type')!r} is not supported.",
            found=repr(name)[:100],
            expected="linear, yarn with its original_context_length, none, or factors in a tensor",
        )
    blend = value_or(file.reader.number(file.key("rope.scaling.yarn_ext_factor")), 1.0)
    if blend not in {1.0, -1.0}:  # -1 stands for YaRN's own, which is 1
        raise ConfigError(
            f"the metadata's {file.key('rope.scaling.yarn_ext_factor')!r} is not supported.",
            found=f"{blend:g}",
            expected="1",
            hint="take another model: its scores would come out wrong",
        )
    # where queries and keys are stretched by a factor of their own, the tables are not
    weight = file.any_number("rope.scaling.yarn_log_multiplier")
    usual = 1 if weight else 0.1 * math.log(max(factor, 1.0)) + 1
    # OLMo 3's converters do not leave out what this is usually
    is_usual = math.isclose(stretch, usual, rel_tol=1e-6)
    own = file.any_number("rope.scaling.yarn_attn_factor")  # 1 where nothing was said
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": trained,
        "beta_fast": file.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": file.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": own if own > 0 and own != 1 else stretch * (1 if is_usual else usual),
        "mscale_all_dim": 10 * weight,  # a tenth of it is taken
        "truncate": file.row.truncates_ramp,
    }


def _stretch(file: GgufFile) -> tuple[str, float]:
    """How rotation is scaled, and by how much; nothing is linear scaling by 1."""
    # a factor without a type is a linear one, as in llama.cpp
    name = value_or(file.reader.text(file.key("rope.scaling.type")), "linear")
    factor = file.number("rope.scaling.factor", file.number("rope.scale_linear", 1.0))
    is_none = factor == 1 or name in {"none", "", "default"}  # Ollama writes the latter two
    return ("linear", 1.0) if is_none else (name, factor)


def _factors(file: GgufFile, name: str, rotated: int) -> list[float]:
    size = file.size(name, 0)
    info = file.tensors[name]
    if info.dtype != "F32" or info.shape != (rotated // 2,):
        raise ShapeError(
            f"tensor {name} does not fit the heads.",
            found=f"{info.dtype} {size}"[:100],
            expected=f"F32 {rotated // 2}",
        )
    found: list[float] = file.checkpoint.read(name).tolist()
    return found
