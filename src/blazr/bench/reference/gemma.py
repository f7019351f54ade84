"""Gemma 3n and 4, from transformers' modeling files.

The last layers attend to keys of earlier ones, and every layer takes a vector of each token. A
model keeps both from its embedding to its last layer, so its layers run in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.experts import Router, expert_mlp, mixture, route
from blazr.bench.reference.hf_config import FULL, SLIDING, Config, rotation_of
from blazr.bench.reference.mlp import activate, mlp
from blazr.bench.reference.model import Function, Layer, ReferenceModel, norm_of
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.rotation import Rotation, fixed, plain, rotate
from blazr.bench.reference.settings import Setting, Settings
from blazr.bench.reference.weights import Renamed, Weights, linear

# GGUF's names.
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "altup_proj.weight": "model.altup_projections.weight",
    "altup_unembd_proj.weight": "model.altup_unembed_projections.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_INNER = {
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    **{f"post_ffw_norm_{n}": f"post_feedforward_layernorm_{n}" for n in (1, 2)},
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    **{f"ffn_{n}_exps.weight": f"experts.{n}_proj" for n in ("gate", "up", "down", "gate_up")},
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale.weight": "layer_scalar",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_ROOTS = ("model.", "language_model.model.", "model.language_model.")
_GEMMA4: Settings = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}
DEFAULTS: Mapping[str, Settings] = {
    "gemma3n_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 15,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {
        **_GEMMA4,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
}


def _theirs(name: str) -> str:
    """Transformers' name of a tensor of a GGUF file."""
    if not name.startswith("blk."):
        return _OUTER.get(name, name)
    _, index, own = name.split(".", 2)
    stem, _, ending = own.rpartition(".")
    found = _INNER.get(own) or f"{_INNER.get(stem, stem)}.{ending}"
    return f"model.layers.{index}.{found}"


class _Gemma4:
    """A model, and what it keeps of the tokens that it reads.

    Args:
        w: Its tensors.
        config: Its config.
        whole: The rotation of layers without a window, by the size of their heads; None is that
            of the config.
    """

    full_every = 6  # where the config lists no types of layers
    ends_whole = True  # the last layer sees everything, whatever is listed

    def __init__(
        self, w: Weights, config: Config, whole: Callable[[int], Rotation] | None = None
    ) -> None:
        self.w = w
        self.whole = whole
        self.config = config
        self.eps = config.get("rms_norm_eps", default=1e-6)
        self.activation = config.word("hidden_activation")
        count = config.size("num_hidden_layers")
        self.kinds = [
            config.layer_type(index) or (FULL if (index + 1) % self.full_every == 0 else SLIDING)
            for index in range(count)
        ]
        if self.ends_whole:
            self.kinds[-1] = FULL
        self.first_sharing = count - config.get("num_kv_shared_layers", default=0)
        self.keys: dict[str, tuple[Tensor, Tensor]] = {}
        self.vectors = torch.empty(0)

    def norm(self, w: Weights, name: str) -> Function:
        """A norm by its name."""
        return norm_of(w, name, self.eps)

    def embed(self, ids: Tensor) -> Tensor:
        """(T) to (T, C); each layer's vectors of these tokens are kept."""
        width = self.config.size("hidden_size")
        x = self.w.rows("embed_tokens.weight", ids) * width**0.5
        size = self.config.get("hidden_size_per_layer_input", default=0)
        if size:
            known = self.w.shape("embed_tokens_per_layer.weight")[0]
            own = self.w.rows("embed_tokens_per_layer.weight", ids.where(ids < known, 0))
            made = linear(x, self.w, "per_layer_model_projection") * width**-0.5
            normed = self.norm(self.w, "per_layer_projection_norm")(made.unflatten(-1, (-1, size)))
            self.vectors = (normed + own.unflatten(-1, (-1, size)) * size**0.5) * 0.5**0.5
        return x

    def layer(self, index: int) -> Layer:
        """A layer."""
        w = self.w.under(f"layers.{index}.")
        attention = self.attention(w.under("self_attn."), index)
        feed = self.feed_forward(w)
        names = ("input", "post_attention", "post_feedforward")
        before, behind, last = (self.norm(w, f"{name}_layernorm") for name in names)

        def apply(x: Tensor, embedded: Tensor) -> Tensor:
            del embedded
            x = x + behind(attention(before(x)))
            x = x + last(feed(x))
            if "per_layer_input_gate.weight" in w:
                inner = activate(linear(x, w, "per_layer_input_gate"), self.activation)
                added = linear(inner * self.vectors[:, index], w, "per_layer_projection")
                x = x + self.norm(w, "post_per_layer_input_norm")(added)
            scalar = w.get("layer_scalar")
            return x if scalar is None else x * scalar

        return apply

    def head_dim(self, index: int) -> int:
        """Channels of a layer's heads."""
        config = self.config
        own = config.section("per_layer_config").section(str(index))
        if not config.says("per_layer_config") and self.kinds[index] == FULL:
            return config.get("global_head_dim", default=512)
        return own.get("head_dim", default=config.size("head_dim"))

    def rotation(self, kind: str, dim: int) -> Rotation:
        """That of layers of one type, by the config."""
        return _rotation(self.config, kind, dim)

    def attention(self, w: Weights, index: int) -> Function:
        """A layer's attention, whose keys and values may be those of an earlier one."""
        config, kind = self.config, self.kinds[index]
        dim = self.head_dim(index)
        whole = None if kind == SLIDING else self.whole
        rotation = self.rotation(kind, dim) if whole is None else whole(dim)
        window = config.window() if kind == SLIDING else None

        def heads(x: Tensor, name: str) -> Tensor:
            return linear(x, w, f"{name}_proj").unflatten(-1, (-1, dim))

        def apply(x: Tensor) -> Tensor:
            q = rotate(self.norm(w, "q_norm")(heads(x, "q")), rotation)
            if index < self.first_sharing:
                k = heads(x, "k")
                v = heads(x, "v") if "v_proj.weight" in w else k
                k = rotate(self.norm(w, "k_norm")(k), rotation)
                self.keys[kind] = k, rms_norm(v, None, self.eps)
            pair = self.keys[kind]
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in pair)
            return linear(attend(q, k, v, 1.0, window=window).flatten(1), w, "o_proj")

        return apply

    def feed_forward(self, w: Weights) -> Function:
        """An MLP, and perhaps experts beside it."""
        before, inner = self.norm(w, "pre_feedforward_layernorm"), w.under("mlp.")
        if "router.proj.weight" not in w:
            return lambda x: mlp(before(x), inner, self.activation)
        router = Router(chosen=self.config.size("top_k_experts"))

        def expert(e: int, rows: Tensor) -> Tensor:
            if f"experts.{e}.up_proj.weight" in w:  # by mlx-lm
                own = w.under(f"experts.{e}.")
                gate, up, down = (own[f"{n}_proj.weight"] for n in ("gate", "up", "down"))
                return expert_mlp(rows, gate, up, down, self.activation)
            only = slice(e, e + 1)
            if "experts.gate_up_proj" in w:
                gate, up = w.rows("experts.gate_up_proj", only)[0].chunk(2)
            else:
                gate, up = (w.rows(f"experts.{name}_proj", only)[0] for name in ("gate", "up"))
            down = w.rows("experts.down_proj", only)[0]
            return expert_mlp(rows, gate, up, down, self.activation)

        def apply(x: Tensor) -> Tensor:
            dense = mlp(before(x), inner, self.activation)
            seen = rms_norm(x, w["router.scale"], self.eps) * x.shape[-1] ** -0.5
            weights = route(linear(seen, w, "router.proj"), router) * w["router.per_expert_scale"]
            sparse = mixture(self.norm(w, "pre_feedforward_layernorm_2")(x), weights, expert)
            first = self.norm(w, "post_feedforward_layernorm_1")(dense)
            return first + self.norm(w, "post_feedforward_layernorm_2")(sparse)

        return apply


class _Gemma3n(_Gemma4):
    """Several residual streams, of which a layer computes one."""

    full_every = 5
    ends_whole = False

    def head_dim(self, index: int) -> int:
        """The same in all layers."""
        del index
        return self.config.size("head_dim")

    def rotation(self, kind: str, dim: int) -> Rotation:
        """Without scaling where there is a window."""
        config = self.config
        theta = 1e4 if kind == SLIDING else 1e6
        if config.says("rope_parameters"):
            own = config.rope(kind).own
            return rotation_of(config, dim, Config({"rope_theta": theta, **own}, {}))
        if kind == SLIDING:
            return Rotation(fixed(plain(dim, config.get("rope_local_base_freq", default=theta))))
        theta = config.get("rope_theta", default=theta)
        return rotation_of(config, dim, Config({"rope_theta": theta, **config.rope().own}, {}))

    def as_large(self, other: Tensor, first: Tensor) -> Tensor:
        """A vector of another stream with the magnitude of the first."""
        wanted, found = (each.square().mean(-1, keepdim=True) for each in (first, other))
        return other * wanted.sqrt() / found.clamp(min=1e-5).sqrt()

    def to_stream(self, x: Tensor, name: str, number: int) -> Tensor:
        """What a matrix of one stream makes; those of GGUF files are one tensor."""
        if f"{name}.weight" in self.w:
            return x @ self.w.rows(f"{name}.weight", slice(number, number + 1))[0].T
        return linear(x, self.w, f"{name}.{number}")

    def split(self, x: Tensor) -> Tensor:
        """(T, C) to (T, N, C)."""
        others = range(self.config.get("altup_num_inputs", default=4) - 1)
        made = [self.as_large(self.to_stream(x, "altup_projections", n), x) for n in others]
        return torch.stack((x, *made), 1)

    def join(self, x: Tensor) -> Tensor:
        """(T, N, C) to (T, C)."""
        first, *others = x.unbind(1)
        made = [
            self.as_large(self.to_stream(other, "altup_unembed_projections", n), first)
            for n, other in enumerate(others)
        ]
        return torch.stack((first, *made)).mean(0)

    def layer(self, index: int) -> Layer:
        """A layer."""
        w = self.w.under(f"layers.{index}.")
        altup, laurel = w.under("altup."), w.under("laurel.")
        attention = self.attention(w.under("self_attn."), index)
        feed = self.sparse_mlp(w, index)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        before, behind, between, last = (self.norm(w, f"{name}_layernorm") for name in names)
        active = self.config.get("altup_active_idx", default=0)
        is_scaled = self.config.get("altup_correct_scale", default=True)

        def modalities(x: Tensor) -> Tensor:
            seen = self.norm(altup, "router_norm")(x) / x.shape[-1]
            return torch.tanh(linear(seen, altup, "modality_router"))

        def apply(x: Tensor, embedded: Tensor) -> Tensor:
            del embedded
            maps = linear(modalities(x[:, active]), altup, "prediction_coefs")
            predicted = x + maps.unflatten(-1, (x.shape[1], -1)) @ x
            own = predicted[:, active]
            seen = before(own)
            low = linear(linear(seen, laurel, "linear_left"), laurel, "linear_right")
            beside = seen + self.norm(laurel, "post_laurel_norm")(low)
            y = (own + behind(attention(seen)) + beside) * 0.5**0.5
            y = y + last(feed(between(y)))
            shares = linear(modalities(y), altup, "correction_coefs") + 1
            corrected = predicted + shares[..., None] * (y - own)[:, None]
            first = corrected[:, active]
            first = first * altup["correct_output_scale"] if is_scaled else first
            inner = activate(linear(first, w, "per_layer_input_gate"), self.activation)
            added = linear(inner * self.vectors[:, index], w, "per_layer_projection")
            added = self.norm(w, "post_per_layer_input_norm")(added)[:, None]
            return torch.cat((corrected[:, :1], corrected[:, 1:] + added), 1)

        return apply

    def sparse_mlp(self, layer: Weights, index: int) -> Function:
        """An MLP whose small gates are cut off."""
        w = layer.under("mlp.")
        usual = [0.95 * (len(self.kinds) > 10 > each) for each in range(len(self.kinds))]
        pattern: Sequence[float] = self.config.get("activation_sparsity_pattern", default=usual)

        def apply(x: Tensor) -> Tensor:
            gate = linear(x, w, "gate_proj")
            if pattern[index]:
                quantile = NormalDist().inv_cdf(pattern[index])
                deviation = gate.var(-1, keepdim=True, correction=0).sqrt()
                gate = (gate - gate.mean(-1, keepdim=True) - quantile * deviation).clamp(min=0)
            return linear(activate(gate, self.activation) * linear(x, w, "up_proj"), w, "down_proj")

        return apply


def gemma3n(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    root = next((r for r in _ROOTS if f"{r}embed_tokens.weight" in w), _ROOTS[0])
    return _of_streams(f"transformers' {kind}", w, root, _Gemma3n(w.under(root), config))


def _of_streams(kind: str, w: Weights, root: str, model: _Gemma3n) -> ReferenceModel:
    made = _model(kind, w, root, model)
    return replace(made, split=model.split, logits=lambda x: made.logits(model.join(x)))


def gemma4(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``kind``."""
    root = next((r for r in _ROOTS if f"{r}embed_tokens.weight" in w), _ROOTS[0])
    return _model(f"transformers' {kind}", w, root, _Gemma4(w.under(root), config))


def gguf_gemma(
    w: Weights, metadata: Settings, rotation: Callable[[int], Rotation]
) -> ReferenceModel:
    """The model of a GGUF file, from llama.cpp's src/models/gemma3n.cpp and gemma4.cpp.

    Args:
        w: Its tensors.
        metadata: Its metadata.
        rotation: That of layers without a window, by the size of their heads.
    """
    own = Weights(Renamed(w.source, {_theirs(name): name for name in w.names}), w.dtype)
    said = {key.partition(".")[2]: value for key, value in metadata.items()}
    gguf = Config(said, {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4})
    slides: Sequence[Setting] = gguf.get("attention.sliding_window_pattern", default=())
    whole = gguf.size("attention.key_length")
    dims = {True: gguf.get("attention.key_length_swa", default=whole), False: whole}
    quantiles: Sequence[float] = gguf.get("activation_sparsity_scale", default=())
    config: Settings = {
        "hidden_size": gguf.size("embedding_length"),
        "num_hidden_layers": gguf.size("block_count"),
        "num_kv_shared_layers": gguf.get("attention.shared_kv_layers", default=0),
        "hidden_size_per_layer_input": gguf.get("embedding_length_per_layer_input", default=0),
        "layer_types": [SLIDING if each else FULL for each in slides],
        "per_layer_config": {str(i): {"head_dim": dims[bool(e)]} for i, e in enumerate(slides)},
        "head_dim": dims[True],
        "sliding_window": gguf.size("attention.sliding_window"),
        "rms_norm_eps": gguf.get("attention.layer_norm_rms_epsilon", default=1e-6),
        "top_k_experts": gguf.get("expert_used_count", default=0),
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": gguf.number("final_logit_softcapping") or None,
        "rope_parameters": {
            SLIDING: {"rope_theta": gguf.get("rope.freq_base_swa", default=1e4)},
        },
    }
    if metadata["general.architecture"] == "gemma3n":
        more: Settings = {
            "altup_num_inputs": gguf.size("altup.num_inputs"),
            "altup_active_idx": gguf.get("altup.active_idx", default=0),
            "activation_sparsity_pattern": [round(NormalDist().cdf(q), 6) for q in quantiles],
        }
        streams = _Gemma3n(own.under("model."), Config({**config, **more}, {}), rotation)
        return _of_streams("GGUF's gemma3n", own, "model.", streams)
    model = _Gemma4(own.under("model."), Config(config, {}), rotation)
    return _model("GGUF's gemma4", own, "model.", model)


def _model(kind: str, w: Weights, root: str, model: _Gemma4) -> ReferenceModel:
    cap = model.config.number("final_logit_softcapping")
    heads = ("lm_head.weight", "language_model.lm_head.weight", f"{root}embed_tokens.weight")
    head = next(name for name in heads if name in w)

    def logits(hidden: Tensor) -> Tensor:
        scores = model.norm(model.w, "norm")(hidden) @ w[head].T
        return scores if cap is None else cap * torch.tanh(scores / cap)

    return ReferenceModel(
        kind=kind,
        embed=model.embed,
        layers=[model.layer(index) for index in range(len(model.kinds))],
        logits=logits,
    )


def _rotation(config: Config, kind: str, dim: int) -> Rotation:
    parameters = config.rope(kind)
    if parameters.text("rope_type") != "proportional":
        return rotation_of(config, dim, parameters)
    theta = parameters.get("rope_theta", default=10_000.0)
    share = parameters.get("partial_rotary_factor", default=1.0)
    speeds = plain(dim, theta, parameters.get("factor", default=1.0))
    speeds[int(share * dim // 2) :] = 0
    return Rotation(fixed(speeds))
