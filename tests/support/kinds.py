"""Networks by kind, for what must hold of all: layers of every mix, weights in every packing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.embedding import Embedding
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import Experts, MoeConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.quant.packed import PackedWeight
from tests.support.examples import LENGTH_MIXES, MIXES, STORED_MIXES
from tests.support.networks import CONTEXT, VOCAB, build_network
from tests.support.op_samples import random_packed
from tests.support.seeds import run_seed

WIDE = 256  # a superblock


def wide_network(names: tuple[str, ...], dtype: torch.dtype) -> CausalLM:
    """Attention, experts and Mamba-2, whose matrices take turns with these packings, if any."""
    torch.manual_seed(run_seed(2))
    norm = NormConfig(WIDE, 1e-5)
    attention = AttentionConfig(
        hidden_size=WIDE, num_heads=4, num_kv_heads=2, head_dim=64, rope=RopeConfig(64)
    )
    mamba = Mamba2Config(hidden_size=WIDE, num_heads=4, head_dim=64, state_size=16)
    mlp = MlpConfig(hidden_size=WIDE, intermediate_size=WIDE)
    moe = MoeConfig(hidden_size=WIDE, intermediate_size=WIDE, num_experts=4, experts_per_token=2)
    layers = tuple(
        LayerConfig(mixer=mixer, mixer_norm=norm, feed_forward=feed, feed_forward_norm=norm)
        for mixer, feed in ((attention, mlp), (mamba, moe))
    )
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=WIDE, max_seq_len=CONTEXT, layers=layers, final_norm=norm
    )
    model = CausalLM(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.1)
    model = model.to(dtype).eval().requires_grad_(requires_grad=False)
    count = 0
    for module in list(model.modules()):
        kinds = {Linear: ("weight",), Embedding: ("weight",), Experts: tuple(module._parameters)}
        for name in kinds.get(type(module), ()):
            if names:
                _pack(module, name, names[count // 3 % len(names)])
                count += 1
    return model


def _pack(module: nn.Module, name: str, packing: str) -> None:
    plain: Tensor = getattr(module, name)
    *stack, rows, columns = plain.shape
    kind = PACKINGS[packing]
    packed = random_packed(kind, rows, columns // kind.columns, *stack)
    weight = PackedWeight(kind, packed.blocks, rows, plain.dtype, row_scales=packed.row_scales)
    delattr(module, name)
    setattr(module, name, weight)


KINDS: dict[str, Callable[[torch.dtype], CausalLM]] = {
    **{
        name: lambda dtype, mix=mix: build_network(mix, seed=4).to(dtype)
        for name, mix in (MIXES | LENGTH_MIXES).items()
    },
    **{
        f"packed, {name}": partial(wide_network, (name,))
        for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "int8", "int4 by 64")
    },
    "plain and wide": partial(wide_network, ()),
    "packed in turns": partial(wide_network, tuple(PACKINGS)),
    "wide in q8_0": partial(wide_network, ()),
    "wide in fp8": partial(wide_network, ()),
    "wide with states in bfloat16": partial(wide_network, ()),
    **{
        name: lambda dtype, mix=mix: build_network(MIXES[mix], seed=4).to(dtype)
        for name, (mix, _) in STORED_MIXES.items()
    },
}
# What keys, values, latents and states are stored in, where it is not as they are computed.
STORED: dict[str, dict[str, str]] = {
    "wide in q8_0": {"kv_dtype": "q8_0"},
    "wide in fp8": {"kv_dtype": "fp8_e4m3"},
    "wide with states in bfloat16": {"state_dtype": "bfloat16"},
    **{name: stored for name, (_, stored) in STORED_MIXES.items()},
}
