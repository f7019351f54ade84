"""Zamba [arXiv:2405.16712] and Zamba2 [arXiv:2411.15242]: Mamba, and a block that layers share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.attention import attend
from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.hf_config import Config, rotation_of
from blazr.bench.reference.mamba1 import selective_scan
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mlp import activate
from blazr.bench.reference.model import Function, Layer, ReferenceModel, model_of, norm_of
from blazr.bench.reference.norms import silu
from blazr.bench.reference.rotation import rotate
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Weights, linear

DEFAULTS: Mapping[str, Settings] = {
    "zamba2": {
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "mamba_d_state": 64,
        "mamba_ngroups": 1,
        "time_step_min": 0.001,
        "num_mem_blocks": 1,
    },
    "zamba": {"rms_norm_eps": 1e-5, "hidden_act": "gelu", "n_mamba_heads": 2},
}
_GATED_EPS = 1e-5


@dataclass(frozen=True)
class Shared:
    """A layer's use of a shared block.

    Args:
        w: The block's tensors.
        user: The layer's number among those that use such blocks.
        config: The model's config.
        is_first: Whether it is Zamba's, and not Zamba2's.
    """

    w: Weights
    user: int
    config: Config
    is_first: bool = False

    def __call__(self, x: Tensor, embedded: Tensor) -> Tensor:
        """(T, C) and (T, C) to (T, C)."""
        config = self.config
        eps = config.get("rms_norm_eps", default=1e-5)
        both = norm_of(self.w, "input_layernorm", eps)(torch.cat((x, embedded), -1))
        w = self.w.under("self_attn.")
        usual = both.shape[1] // config.size("num_attention_heads")
        dim = config.get("attention_head_dim", default=usual) if self.is_first else usual
        q, k, v = (
            self._adapted(both, w, f"{n}_proj", f"linear_{n}_adapter_list").unflatten(-1, (-1, dim))
            for n in "qkv"
        )
        if config.get("use_mem_rope", default=False):
            rotation = rotation_of(config, dim)
            q, k = rotate(q, rotation), rotate(k, rotation)
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        attended = linear(attend(q, k, v, (dim / 2) ** -0.5).flatten(1), w, "o_proj")
        mixed = norm_of(self.w, "pre_ff_layernorm", eps)(attended)
        w = self.w.under("feed_forward.")
        if "gate_proj.weight" in w:
            gate, up = linear(mixed, w, "gate_proj"), linear(mixed, w, "up_proj")
        else:
            both = self._adapted(mixed, w, "gate_up_proj", "gate_up_proj_adapter_list")
            gate, up = both.chunk(2, -1)
        return linear(activate(gate, config.word("hidden_act")) * up, w, "down_proj")

    def _adapted(self, x: Tensor, w: Weights, name: str, adapters: str) -> Tensor:
        """A product with the user's correction of low rank, where there is one."""
        y = linear(x, w, name)
        at = f"{adapters}.{self.user}"
        return linear(linear(x, w, f"{at}.0"), w, f"{at}.1") + y if f"{at}.0.weight" in w else y


def zamba(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``zamba`` or ``zamba2``."""
    eps = config.get("rms_norm_eps", default=1e-5)
    is_first = kind == "zamba"
    count = config.size("num_hidden_layers")
    hybrids = [i for i in range(count) if f"model.layers.{i}.linear.weight" in w]
    block = "model.layers.{}.shared_transf." if is_first else "model.layers.{}.shared_transformer."
    owners = [i for i in hybrids if block.format(i) + "input_layernorm.weight" in w]
    mixer_of = _first_mixer if is_first else _mixer
    blocks = 1 if is_first else config.size("num_mem_blocks")
    if not config.get("tie_word_embeddings", default=True):  # then transformers 5 ties no blocks
        blocks = max(blocks, len(owners))

    def layer(index: int) -> Layer:
        at = w.under(f"model.layers.{index}.")
        decoder = at.under("mamba_decoder.") if index in hybrids else at
        mixer = mixer_of(decoder.under("mamba."), config)
        shared = None
        if index in hybrids:
            user = hybrids.index(index)
            owner = w.under(block.format(hybrids[user % blocks]))
            shared = Shared(owner, user, config, is_first)

        def apply(x: Tensor, embedded: Tensor) -> Tensor:
            more = linear(shared(x, embedded), at, "linear") if shared else 0
            seen = norm_of(decoder, "input_layernorm", eps)(x + more)
            return x + mixer(seen)

        return apply

    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(count)],
        w,
        embedding="model.embed_tokens.weight",
        norm=norm_of(w.under("model."), "final_layernorm", eps),
        head="lm_head.weight",
    )


def _mixer(w: Weights, config: Config) -> Function:
    groups = config.size("mamba_ngroups")
    sizes = Mamba2Sizes(
        states=config.size("mamba_d_state"),
        groups=groups,
        limits=(config.get("time_step_min", default=0.001), math.inf),
        eps=_GATED_EPS,
        norm_groups=groups,
    )
    return lambda x: mamba2(x, w, sizes, -w["A_log"].exp())


def _first_mixer(w: Weights, config: Config) -> Function:
    """Each head is a Mamba-1 by itself, and each channel's gate lies beside it."""
    heads = config.size("n_mamba_heads")

    def apply(x: Tensor) -> Tensor:
        raw, gate = linear(x, w, "in_proj").unflatten(-1, (-1, 2)).unbind(-1)
        u = silu(causal_convolution(raw, w)).unflatten(-1, (heads, -1))
        rates, rank = -w["A_log"].exp(), w.shape("dt_proj_weight")[2]
        outputs = []
        for head in range(heads):
            own = u[:, head]
            made = own @ w["x_proj_weight"][head].T
            steps, b, c = made.split((rank, rates.shape[-1], rates.shape[-1]), -1)
            steps = steps @ w["dt_proj_weight"][head].T + w["dt_proj_bias"][head]
            y = selective_scan(own, softplus(steps, threshold=1e9), b, c, rates[head])
            outputs.append(y + w["D"][head] * own)
        return linear(torch.cat(outputs, -1) * silu(gate), w, "out_proj")

    return apply
