"""GGUF models: llama.cpp's names and metadata keys, and what its architectures compute.

Written from llama.cpp's ``src/models`` and the comments of its converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from blazr.bench.reference.attention import AttentionSizes, attention
from blazr.bench.reference.convolution import short_convolution
from blazr.bench.reference.delta import DeltaSizes, gated_delta, kimi_delta
from blazr.bench.reference.experts import Router, clamped_expert, expert_mlp, mixture, route
from blazr.bench.reference.gemma import gguf_gemma
from blazr.bench.reference.latent import LatentSizes, deepseek_attention
from blazr.bench.reference.mamba1 import mamba1
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mlp import XIELU, mlp, xielu
from blazr.bench.reference.model import (
    Function,
    Half,
    Layer,
    ReferenceModel,
    layer_of,
    model_of,
    norm_of,
    parallel_layer,
)
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.rotation import Rotation, fixed, mscale, plain, yarn
from blazr.bench.reference.settings import Setting, Settings, T, as_like, number
from blazr.bench.reference.weights import Weights, linear

_KNOWN = frozenset(
    [
        "llama",
        "mistral3",
        "granite",
        "granitemoe",
        "smollm3",
        "chatglm",
        "qwen2",
        "qwen2moe",
        "olmoe",
        "qwen3",
        "qwen3moe",
        "phi3",
        "olmo2",
        "glm4",
        "glm4moe",
        "gpt-oss",
        "deepseek2",
        "starcoder2",
        "gemma",
        "gemma2",
        "gemma3",
        "mamba",
        "mamba2",
        "jamba",
        "granitehybrid",
        "nemotron_h",
        "nemotron_h_moe",
        "falcon-h1",
        "lfm2",
        "lfm2moe",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "kimi-linear",
        "mellum",
        "hy_v3",
        "mistral4",
        "minicpm3",
        "jais2",
        "granite_swa",
        "apertus",
        "cohere2moe",
        "falcon",
        "laguna",
        "llama4",
        "mimo2",
        "phimoe",
    ]
)
# Rows of queries and keys are laid out so that neighbours are rotated together, by the model itself
# or by the converter.
_INTERLEAVED = frozenset(
    [
        "llama",
        "mistral3",
        "granite",
        "granitemoe",
        "granitehybrid",
        "granite_swa",
        "smollm3",
        "chatglm",
        "glm4",
        "deepseek2",
        "mistral4",
        "cohere2moe",
        "llama4",
    ]
)
_NEVER_ROTATED = frozenset(["jamba", "nemotron_h", "nemotron_h_moe", "kimi-linear"])
# The norm before a feed-forward is called as one after attention is elsewhere.
_LATE_NORM = frozenset(["glm4moe", "gpt-oss", "qwen3next", "qwen35", "qwen35moe"])
# Both halves of a layer see its input.
_PARALLEL = frozenset(["falcon", "cohere2moe"])
_BY_SIGMOID = frozenset(
    [
        "glm4moe",
        "nemotron_h_moe",
        "lfm2moe",
        "kimi-linear",
        "hy_v3",
        "cohere2moe",
        "laguna",
        "llama4",
        "mimo2",
    ]
)
_UNNORMALISED = frozenset(
    [
        "qwen2moe",
        "olmoe",
        "glm4moe",
        "deepseek2",
        "jamba",
        "mistral4",
        "hy_v3",
        "cohere2moe",
        "laguna",
        "llama4",
    ]
)
_PHIMOE_JITTER = 0.01  # of the releases; the metadata have no key for it
# Every so many layers one sees everything, where the file does not list them.
_FULL_EVERY = {
    **dict.fromkeys(("olmo2", "mellum", "cohere2moe", "laguna", "llama4"), 4),
    **dict.fromkeys(("gpt-oss", "gemma2"), 2),
    "gemma3": 6,
}
# Of these the first layer is such a one.
_FULL_FIRST = frozenset(("cohere2moe", "laguna"))
# Layers with a window are rotated without scaling.
_PLAIN_WINDOW = frozenset(("olmo2", "gemma3", "mellum", "laguna", "mimo2"))
# Every fourth layer has no rotation.
_STILL_FOURTH = frozenset(("smollm3", "llama4"))
_GEMMAS = frozenset(("gemma", "gemma2", "gemma3"))
# Values that the first files of an architecture leave out.
_LEFT_OUT: Mapping[str, Settings] = {
    "gemma2": {
        "gemma2.attention.sliding_window": 4096,
        "gemma2.attn_logit_softcapping": 50.0,
        "gemma2.final_logit_softcapping": 30.0,
    },
    "llama4": {"llama4.attention.sliding_window": 8192},  # chunks, which llama.cpp has in its code
}
_LLAMA4_GROWTH = (0.1, 8192.0)
_BARE_EXPERTS = 128  # Maverick's, whose queries and keys have no norms
_GELU = frozenset((*_GEMMAS, "starcoder2"))
_RELU2 = frozenset(("nemotron_h", "nemotron_h_moe", "jais2"))
_WIDE_SCALE = {"gemma2": 46, "gemma3": 62}  # the largest models scale by hidden size over heads
_GEMMA3_LONG = 131_072
_GEMMA3_FACTOR = 8.0
_NAMES: Mapping[str, str] = {
    **{f"{name}_proj": f"attn_{name}" for name in ("q", "k", "v", "qkv")},
    "o_proj": "attn_output",
    "g_proj": "attn_gate",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks.weight",
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "kv_b_proj": "attn_kv_b",
    "k_b": "attn_k_b",
    "v_b": "attn_v_b",
    **{f"{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
_MAMBA: Mapping[str, str] = {
    **{f"{name}_proj": f"ssm_{name}" for name in ("in", "x", "dt", "out")},
    **{f"{name}_layernorm": f"ssm_{name}_norm" for name in ("dt", "b", "c")},
    "conv1d": "ssm_conv1d",
    "A": "ssm_a",
    "D": "ssm_d",
    "dt_bias": "ssm_dt.bias",
    "norm": "ssm_norm",
}
_DELTA: Mapping[str, str] = {
    **_MAMBA,
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_ba": "ssm_ba",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
}
_KIMI: Mapping[str, str] = {
    **_NAMES,
    **{f"{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"},
    **{f"{name}_proj": f"ssm_{name}" for name in ("f_a", "f_b", "g_a", "g_b")},
    "b_proj": "ssm_beta",
    "A": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "o_norm": "ssm_norm",
}
_CONVOLUTION: Mapping[str, str] = {
    "in_proj": "shortconv.in_proj",
    "out_proj": "shortconv.out_proj",
    "conv": "shortconv.conv",
}


class _File:
    """What is said of the network, under the words of its architecture."""

    def __init__(self, w: Weights, metadata: Settings) -> None:
        self.w = w
        self.kind = str(metadata.get("general.architecture"))
        self.metadata = {**_LEFT_OUT.get(self.kind, {}), **metadata}
        self.hidden = w.shape("token_embd.weight")[1]
        if self.kind == "minicpm3":  # llama.cpp has the values of the one release in its code
            depth = 1.4 / self.need("block_count") ** 0.5
            scales = {"embedding": 12.0, "residual": depth, "logit": self.hidden / 256}
            self.metadata |= {f"minicpm3.{name}_scale": each for name, each in scales.items()}
        self.count = self.need("block_count") - self.get("nextn_predict_layers", 0)
        first, second = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
        usual = 1e-6 if self.kind == "gemma3" else 1e-5
        own = (second, first) if self.kind == "starcoder2" else (first, second)
        self.eps = self.number(own[0]) or self.number(own[1]) or usual
        self.centred = self.kind == "cohere2moe" and not self.number(first)

    def norm(self, w: Weights, name: str) -> Function:
        """A norm of the residual stream."""
        return norm_of(w, name, self.eps, centred=self.centred)

    def _found(self, key: str, layer: int) -> Setting:
        # the keys of Apertus's activation do not begin with the architecture
        found = self.metadata.get(f"{self.kind}.{key}", self.metadata.get(key))
        return found[layer] if isinstance(found, list) else found

    def get(self, key: str, default: T, *, layer: int = 0) -> T:
        """A value of the default's type, that of one layer where there is one for each."""
        found = self._found(key, layer)
        return default if found is None else as_like(found, default, key)

    def number(self, key: str, *, layer: int = 0) -> float | None:
        """A number, or None where nothing is said."""
        return number(self._found(key, layer), key)

    def need(self, key: str, *, layer: int = 0) -> int:
        """An integer that must be there.

        Raises:
            NoReferenceError: It is not.
        """
        found = self._found(key, layer)
        if found is None:
            raise NoReferenceError(f"GGUF files without {self.kind}.{key}")
        return as_like(found, 0, key)


def gguf_model(w: Weights, metadata: Settings) -> ReferenceModel:
    """The model of a GGUF file.

    Args:
        w: Its tensors.
        metadata: Its metadata.

    Raises:
        NoReferenceError: It is of an architecture that nobody has written here.
    """
    kind = metadata.get("general.architecture")
    if kind in {"gemma3n", "gemma4"}:
        file = _File(w, metadata)
        theta = file.number("rope.freq_base") or 1e6
        return gguf_gemma(w, metadata, lambda dim: Rotation(*_scaled(file, dim, theta)))
    if kind not in _KNOWN:
        raise NoReferenceError(f"GGUF files of architecture {str(kind)[:60]!r}")
    file = _File(w, metadata)
    norm = "token_embd_norm" if kind in ("lfm2", "lfm2moe") else "output_norm"
    usual = file.hidden**0.5 if kind in _GEMMAS else 1.0
    scale = file.number("logit_scale") or 1.0
    return model_of(
        f"GGUF's {kind}",
        [_layer(file, index) for index in range(file.count)],
        w,
        embedding="token_embd.weight",
        norm=file.norm(w, norm if f"{norm}.weight" in w else "output_norm"),
        head="output.weight",
        embedding_scale=file.number("embedding_scale") or usual,
        logits_scale=scale if kind == "cohere2moe" else 1 / scale,
        softcap=file.number("final_logit_softcapping") or None,
    )


def _layer(file: _File, index: int) -> Layer:
    w = file.w.under(f"blk.{index}.")
    scale = file.number("residual_scale") or 1.0
    halves = []
    mixer = _mixer(file, w, index)
    feed = _feed_forward(file, w, index)
    is_parallel = file.kind in _PARALLEL
    late = file.kind in _LATE_NORM

    def norm(name: str) -> Function | None:
        return file.norm(w, name) if f"{name}.weight" in w else None

    if mixer is not None:
        own = "attn_norm_2" if "attn_norm_2.weight" in w else "attn_norm"  # Falcon's larger ones
        after = None if late else norm("post_attention_norm")
        halves.append(Half(inner=mixer, before=norm(own), after=after, scale=scale))
    if feed is not None:
        name = "post_attention_norm" if late else "ffn_norm"
        alone = (mixer is None or is_parallel) and f"{name}.weight" not in w
        before = norm("attn_norm" if alone else name)
        if file.kind == "falcon-h1" and "ffn_norm" in w:  # without an ending in some files
            before = file.norm(w.under("", {"norm.weight": "ffn_norm"}), "norm")
        halves.append(Half(inner=feed, before=before, after=norm("post_ffw_norm"), scale=scale))
    return parallel_layer(*halves) if is_parallel else layer_of(*halves)


def _mixer(file: _File, layer: Weights, index: int) -> Function | None:
    """By the tensors that only one kind of mixer has."""
    eps = file.eps
    w = layer.under("", _NAMES)
    if "ssm_conv1d_q.weight" in layer:
        dim = file.need("kda.head_dim")
        heads = layer.shape("ssm_dt.bias")[0] // dim
        sizes = DeltaSizes(key_heads=heads, heads=heads, key_dim=dim, eps=eps)
        return lambda x: kimi_delta(x, layer.under("", _KIMI), sizes)
    if "attn_gate.weight" in layer and "ssm_a" in layer:
        grouped = "ssm_ba.weight" in layer
        delta = DeltaSizes(
            key_heads=file.need("ssm.group_count"),
            heads=math.prod(layer.shape("ssm_a")),
            key_dim=file.need("ssm.state_size"),
            eps=eps,
            tiled=file.get("ssm.v_head_reordered", not grouped),
        )
        return lambda x: gated_delta(x, layer.under("", _DELTA), delta)
    mixers: list[Function] = []
    if "ssm_x.weight" in layer:
        inner = file.number("ssm.dt_b_c_rms_epsilon") or eps
        has_norms = "ssm_dt_norm.weight" in layer or file.number("ssm.dt_b_c_rms")
        at = layer.under("", _MAMBA)
        mixers.append(lambda x: mamba1(x, at, inner_eps=inner if has_norms else None))
    elif "ssm_in.weight" in layer:
        states = layer.under("", _MAMBA)
        groups = file.get("ssm.group_count", 1)
        ssm = Mamba2Sizes(
            states=file.need("ssm.state_size"), groups=groups, eps=eps, norm_groups=groups
        )
        mixers.append(lambda x: mamba2(x, states, ssm, states["A"].flatten()))
    if "shortconv.in_proj.weight" in layer:
        mixers.append(lambda x: short_convolution(x, layer.under("", _CONVOLUTION)))
    if "attn_kv_a_mqa.weight" in layer:
        latent = _latent(file, layer)
        mixers.append(lambda x: deepseek_attention(x, w, latent))
    elif "attn_q.weight" in layer or "attn_qkv.weight" in layer:
        sizes_of = _attention(file, w, index)
        mixers.append(lambda x: attention(x, w, sizes_of))
    return (lambda x: sum((mix(x) for mix in mixers[1:]), mixers[0](x))) if mixers else None


def _attention(file: _File, w: Weights, index: int) -> AttentionSizes:
    heads = file.need("attention.head_count", layer=index)
    kv_heads = file.get("attention.head_count_kv", heads, layer=index)
    dim = file.get("attention.key_length", file.hidden // heads)
    window = file.get("attention.sliding_window", 0) or None
    told = file.number("attention.sliding_window_pattern", layer=index)
    every = _FULL_EVERY.get(file.kind)
    pattern = file.metadata.get(f"{file.kind}.attention.sliding_window_pattern")
    if isinstance(pattern, list | bool):
        window = window if told else None
        every = None
    elif told is not None:
        every = int(told)
    if every and (index + (file.kind not in _FULL_FIRST)) % every == 0:
        window = None
    is_still = _is_still(file, index, has_window=bool(window))
    is_llama4 = file.kind == "llama4"
    scale = file.number("attention.scale") or None
    if _WIDE_SCALE.get(file.kind) == file.count:
        scale = (file.hidden / heads) ** -0.5
    rows = 0 if "qkv_proj.weight" in w else w.shape("q_proj.weight")[0]
    return AttentionSizes(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        rotation=None if is_still else _rotation(file, dim, has_window=bool(window)),
        scale=scale,
        window=None if is_llama4 else window,
        softcap=file.number("attn_logit_softcapping") or None,
        eps=file.eps,
        gated=rows == 2 * heads * dim,
        bare_norm=is_llama4 and not is_still and file.get("expert_count", 0) != _BARE_EXPERTS,
        chunk=window if is_llama4 else None,
        growth=_LLAMA4_GROWTH if is_llama4 and is_still else None,
        v_dim=file.get("attention.value_length", dim),
        v_scale=file.number("attention.value_scale") or 1.0,
        softplus_gate=file.kind == "laguna",
    )


def _is_still(file: _File, index: int, *, has_window: bool) -> bool:
    """Whether a layer has no rotation."""
    if file.kind == "cohere2moe":
        return not has_window and index >= file.get("leading_dense_block_count", 0)
    if file.kind in _STILL_FOURTH:
        return (index + 1) % 4 == 0
    return not file.get("attention.rope_pattern", True, layer=index)


def _rotation(file: _File, head_dim: int, *, has_window: bool = False) -> Rotation | None:
    kind = file.kind
    is_still = kind == "granitehybrid" and file.number("rope.scaling.finetuned") is False
    if kind in _NEVER_ROTATED or is_still:
        return None
    dim = file.get("rope.dimension_count", head_dim)
    theta = file.number("rope.freq_base") or (1e6 if kind == "gemma3" else 10_000.0)
    if has_window and kind in _PLAIN_WINDOW:
        own = 10_000.0 if kind == "gemma3" else theta
        dim = file.get("rope.dimension_count_swa", dim)
        speeds = plain(dim, file.number("rope.freq_base_swa") or own)
        return Rotation(fixed(speeds))
    frequencies, scale = _scaled(file, dim, theta)
    beta = file.number("attention.temperature_scale")
    lengths = ("attention.temperature_length", "rope.scaling.original_context_length")
    known = (file.number(key) for key in (*lengths, "context_length"))
    temperature = (beta, next(filter(None, known), 1)) if beta else None
    if kind == "granitehybrid" and dim < head_dim:  # whole heads were made pairs all the same
        order = torch.arange(head_dim).view(-1, 2).T.flatten()
        return Rotation(frequencies, scale, order=order)
    return Rotation(frequencies, scale, kind in _INTERLEAVED, temperature=temperature)


def _scaled(file: _File, dim: int, theta: float) -> tuple[Callable[[int], Tensor], float]:
    """Frequencies, and what cosines and sines are multiplied with."""
    trained = file.number("rope.scaling.original_context_length") or 0
    stretched = file.number("rope.scaling.attn_factor") or 1.0

    def over(name: str) -> Tensor:
        return plain(dim, theta, file.w[name].double())

    if "rope_factors_long.weight" in file.w:
        short, long = over("rope_factors_short.weight"), over("rope_factors_long.weight")
        limit = trained or file.number("context_length")
        return lambda length: long if length > limit else short, stretched
    own: Tensor | float = 1.0
    if "rope_freqs.weight" in file.w:
        own = file.w["rope_freqs.weight"].double()
    kind = file.get("rope.scaling.type", "linear")
    factor = file.number("rope.scaling.factor") or file.number("rope.scale_linear") or 1.0
    is_long = file.get("context_length", 0) >= _GEMMA3_LONG and not file.number("rope.freq_base")
    if file.kind == "gemma3" and is_long and factor == 1:
        factor = _GEMMA3_FACTOR
    if kind in ("none", "", "default") or factor == 1:
        speeds = plain(dim, theta, own)
        return fixed(speeds), 1.0
    if kind == "linear":
        speeds = plain(dim, theta, factor * own)
        return fixed(speeds), 1.0
    if kind != "yarn" or not trained or isinstance(own, Tensor):
        raise NoReferenceError(f"GGUF files with RoPE scaling {kind!r}")
    speeds = yarn(
        dim,
        theta,
        factor,
        trained,
        fast=file.number("rope.scaling.yarn_beta_fast") or 32.0,
        slow=file.number("rope.scaling.yarn_beta_slow") or 1.0,
        whole=file.kind != "gpt-oss",
    )
    # llama.cpp multiplies by the usual factor itself, which OLMo 3's files hold already
    usual = 1.0 if file.number("rope.scaling.yarn_log_multiplier") else mscale(factor)
    scale = stretched if math.isclose(stretched, usual, rel_tol=1e-6) else stretched * usual
    own = file.number("rope.scaling.yarn_attn_factor") or 1.0
    return fixed(speeds), own if own != 1 and own > 0 else scale


def _latent(file: _File, layer: Weights) -> LatentSizes:
    apart = "attn_k_b.weight" in layer
    ending = "_mla" if apart else ""
    whole = file.need(f"attention.key_length{ending}")
    rotated = file.need("rope.dimension_count")
    stretch = 1.0
    if file.get("rope.scaling.type", "") == "yarn":
        weight = file.number("rope.scaling.yarn_log_multiplier") or 0.0
        stretch = 1 + weight * math.log(max(file.number("rope.scaling.factor") or 1.0, 1.0))
    return LatentSizes(
        heads=file.need("attention.head_count"),
        plain=whole - rotated,
        rotated=rotated,
        latent=file.need("attention.kv_lora_rank"),
        values=file.get(
            f"attention.value_length{ending}",
            layer.shape("attn_output.weight")[1] // file.need("attention.head_count"),
        ),
        rotation=_rotation(file, rotated),
        scale=whole**-0.5 * stretch**2,
    )


def _feed_forward(file: _File, layer: Weights, index: int) -> Function | None:
    activation = "silu"
    if file.kind in _GELU:
        activation = "gelu_tanh"
    elif file.kind == "falcon":
        activation = "gelu"
    elif file.kind in _RELU2:
        activation = "relu2"
    if "ffn_gate_inp.weight" in layer:
        return _experts(file, layer, activation)
    if "ffn_down.weight" not in layer:
        return None
    w = layer.under("", _mlp_names(layer, ""))
    if file.kind == "apertus":
        learned = [file.get(f"xielu.{name}", 0.0, layer=index) for name in XIELU]
        return lambda x: linear(xielu(linear(x, w, "up_proj"), *learned), w, "down_proj")
    return lambda x: mlp(x, w, activation)


def _mlp_names(w: Weights, ending: str) -> dict[str, str]:
    """Those of an MLP, whose gate may lie above the rows of what it opens."""
    up, down = f"ffn_up{ending}", f"ffn_down{ending}"
    if w.shape(f"{up}.weight")[0] == 2 * w.shape(f"{down}.weight")[1]:
        return {"gate_up_proj": up, "down_proj": down}
    return {f"{name}_proj": f"ffn_{name}{ending}" for name in ("gate", "up", "down")}


def _experts(file: _File, w: Weights, activation: str) -> Function:
    said = file.number("expert_gating_func") or 0
    sigmoid = said == 2 if said else file.kind in _BY_SIGMOID
    groups = file.get("expert_group_count", 0) or 1
    kept = file.get("expert_group_used_count", 0) or groups
    router = Router(
        chosen=min(file.need("expert_used_count"), w.shape("ffn_gate_inp.weight")[0]),
        scoring="sigmoid" if sigmoid else "softmax",
        normalise=said == 3 or file.get("expert_weights_norm", file.kind not in _UNNORMALISED),
        scale=file.number("expert_weights_scale") or 1.0,
        groups=(groups, kept, 2 if sigmoid else 1) if kept < groups else None,
        jitter=_PHIMOE_JITTER if file.kind == "phimoe" else None,
    )

    def matrix(name: str, e: int, part: str = "weight") -> Tensor | None:
        stacked = f"ffn_{name}_exps.{part}"
        single = f"ffn_{name}.{e}.{part}"
        if stacked in w:
            return w.rows(stacked, slice(e, e + 1))[0]
        if name != "down" and "ffn_gate_up_exps.weight" in w:
            both = w.rows("ffn_gate_up_exps.weight", slice(e, e + 1))[0]
            return both.chunk(2)[name == "up"]
        return w.get(single)

    def expert(e: int, x: Tensor) -> Tensor:
        gate, up, down = (matrix(name, e) for name in ("gate", "up", "down"))
        assert up is not None
        assert down is not None
        if file.kind != "gpt-oss":
            return expert_mlp(x, gate, up, down, activation)
        assert gate is not None
        biases = [matrix(name, e, "bias") for name in ("gate", "up", "down")]
        both = (x @ gate.T + biases[0], x @ up.T + biases[1])  # type: ignore[operator]  # are there
        return clamped_expert(*both, 1.702, 7.0) @ down.T + biases[2]  # type: ignore[operator]

    def apply(x: Tensor) -> Tensor:
        seen = linear(x, w, "ffn_latent_down") if "ffn_latent_down.weight" in w else x
        weights = route(linear(x, w, "ffn_gate_inp"), router, w.get("exp_probs_b.bias"))
        y = mixture(seen, weights, expert, weighs_input=file.kind == "llama4")
        y = linear(y, w, "ffn_latent_up") if seen is not x else y
        if "ffn_down_shexp.weight" not in w:
            return y
        shared = mlp(x, w.under("", _mlp_names(w, "_shexp")), activation)
        gate = w.get("ffn_gate_inp_shexp.weight")
        y = y + (shared if gate is None else torch.sigmoid(x @ gate.reshape(-1, 1)) * shared)
        return y / 2 if file.kind == "cohere2moe" else y

    return apply
