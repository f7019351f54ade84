"""Zamba2: Mamba-2 layers, some behind a transformer block that they share [arXiv:2411.15242]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.hf_config import Config, rotation_of
from blazr.bench.reference.mamba2 import Mamba2Sizes, mamba2
from blazr.bench.reference.mlp import activate
from blazr.bench.reference.model import Layer, ReferenceModel, model_of, norm_of
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
    }
}
_GATED_EPS = 1e-5


@dataclass(frozen=True)
class Shared:
    """A layer's use of a shared block.

    Args:
        w: The block's tensors.
        user: The layer's number among those that use such blocks.
        config: The model's config.
    """

    w: Weights
    user: int
    config: Config

    def __call__(self, x: Tensor, embedded: Tensor) -> Tensor:
        """(T, C) and (T, C) to (T, C)."""
        config = self.config
        eps = config.get("rms_norm_eps", default=1e-5)
        both = norm_of(self.w, "input_layernorm", eps)(torch.cat((x, embedded), -1))
        w = self.w.under("self_attn.")
        dim = both.shape[1] // config.size("num_attention_heads")
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
        gate, up = self._adapted(mixed, w, "gate_up_proj", "gate_up_proj_adapter_list").chunk(2, -1)
        return linear(activate(gate, config.word("hidden_act")) * up, w, "down_proj")

    def _adapted(self, x: Tensor, w: Weights, name: str, adapters: str) -> Tensor:
        """A product with the user's correction of low rank, where there is one."""
        y = linear(x, w, name)
        at = f"{adapters}.{self.user}"
        return linear(linear(x, w, f"{at}.0"), w, f"{at}.1") + y if f"{at}.0.weight" in w else y


def zamba2(w: Weights, kind: str, config: Config) -> ReferenceModel:
    """A model of ``model_type`` ``zamba2``."""
    eps = config.get("rms_norm_eps", default=1e-5)
    count = config.size("num_hidden_layers")
    hybrids = [i for i in range(count) if f"model.layers.{i}.linear.weight" in w]
    block = "model.layers.{}.shared_transformer."
    owners = [i for i in hybrids if block.format(i) + "input_layernorm.weight" in w]
    groups = config.size("mamba_ngroups")
    sizes = Mamba2Sizes(
        states=config.size("mamba_d_state"),
        groups=groups,
        limits=(config.get("time_step_min", default=0.001), math.inf),
        eps=_GATED_EPS,
        norm_groups=groups,
    )
    blocks = config.size("num_mem_blocks")
    if not config.get("tie_word_embeddings", default=True):  # then transformers 5 ties no blocks
        blocks = max(blocks, len(owners))

    def layer(index: int) -> Layer:
        at = w.under(f"model.layers.{index}.")
        decoder = at.under("mamba_decoder.") if index in hybrids else at
        mixer = decoder.under("mamba.")
        shared = None
        if index in hybrids:
            user = hybrids.index(index)
            owner = w.under(block.format(hybrids[user % blocks]))
            shared = Shared(owner, user, config)

        def apply(x: Tensor, embedded: Tensor) -> Tensor:
            more = linear(shared(x, embedded), at, "linear") if shared else 0
            seen = norm_of(decoder, "input_layernorm", eps)(x + more)
            return x + mamba2(seen, mixer, sizes, -mixer["A_log"].exp())

        return apply

    return model_of(
        f"transformers' {kind}",
        [layer(index) for index in range(count)],
        w,
        embedding="model.embed_tokens.weight",
        norm=norm_of(w.under("model."), "final_layernorm", eps),
        head="lm_head.weight",
    )
