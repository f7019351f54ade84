"""Networks without a checkpoint: real shapes, random weights. Speed does not ask what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.models.causal_lm import ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, NormConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling

if TYPE_CHECKING:
    from blazr.models.causal_lm import CausalLM
    from blazr.nn.device import Device

# Numbers drawn once and then repeated: drawing a billion takes longer than running them. Prime, so
# that no two rows of a matrix are the same.
_NUM_DRAWN = 1_000_003


def qwen2_half_b() -> ModelConfig:
    """Qwen2-0.5B and Qwen2.5-0.5B: 494 million parameters, attention alone."""
    rope = RopeConfig(64, 1e6)
    attention = AttentionConfig(
        hidden_size=896, num_heads=14, num_kv_heads=2, head_dim=64, rope=rope, qkv_bias=True
    )
    layer = _layer(attention, MlpConfig(hidden_size=896, intermediate_size=4864), eps=1e-6)
    return _model([layer] * 24, vocab_size=151_936, max_seq_len=32_768, tied=True)


def llama_1b() -> ModelConfig:
    """Llama-3.2-1B: 1.24 billion parameters, attention alone."""
    rope = RopeConfig(64, 500_000.0, RopeScaling(kind="llama3", factor=32.0))
    attention = AttentionConfig(
        hidden_size=2048, num_heads=32, num_kv_heads=8, head_dim=64, rope=rope
    )
    layer = _layer(attention, MlpConfig(hidden_size=2048, intermediate_size=8192))
    return _model([layer] * 16, vocab_size=128_256, max_seq_len=131_072, tied=True)


def llama_8b() -> ModelConfig:
    """Llama-3.1-8B: 8.03 billion parameters, attention alone."""
    rope = RopeConfig(128, 500_000.0, RopeScaling(kind="llama3", factor=8.0))
    attention = AttentionConfig(
        hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, rope=rope
    )
    layer = _layer(attention, MlpConfig(hidden_size=4096, intermediate_size=14_336))
    return _model([layer] * 32, vocab_size=128_256, max_seq_len=131_072)


def granite_h_1b() -> ModelConfig:
    """Granite-4.0-H-1B: 36 Mamba-2 of 40 layers, the others attention; 1.46 billion."""
    mamba = Mamba2Config(
        hidden_size=1536, num_heads=48, head_dim=64, state_size=128, in_bias=False, out_bias=False
    )
    attention = AttentionConfig(
        hidden_size=1536, num_heads=12, num_kv_heads=4, head_dim=128, rope=None
    )
    mlp = MlpConfig(hidden_size=1536, intermediate_size=4096)
    kinds = {"M": _layer(mamba, mlp), "A": _layer(attention, mlp)}
    pattern = ["A" if place % 10 == 5 else "M" for place in range(40)]
    layers = [kinds[kind] for kind in pattern]
    return _model(layers, vocab_size=100_352, max_seq_len=131_072, tied=True)


def nemotron_9b() -> ModelConfig:
    """Nemotron Nano 9B v2: 27 Mamba-2, four attention, 25 MLP layers; 8.89 billion.

    Each MLP follows another layer, and so is part of that one here.
    """
    mamba = Mamba2Config(
        hidden_size=4480,
        num_heads=128,
        head_dim=80,
        state_size=128,
        num_groups=8,
        norm_groups=8,
        in_bias=False,
        out_bias=False,
    )
    attention = AttentionConfig(
        hidden_size=4480, num_heads=40, num_kv_heads=8, head_dim=128, rope=None
    )
    mlp = MlpConfig(hidden_size=4480, intermediate_size=15_680, activation="relu2", gated=False)
    norm = NormConfig(4480, 1e-5)
    kinds = {
        "M-": _layer(mamba, mlp),
        "*-": _layer(attention, mlp),
        "M": LayerConfig(mixer=mamba, mixer_norm=norm),
    }
    pattern = (
        "M- M- M- M M- M- M- M *- M- M- M *- M- M- M- M *- M- M- M- M *- M- M M- M- M- M- M- M-"
    )
    layers = [kinds[kind] for kind in pattern.split()]
    return _model(layers, vocab_size=131_072, max_seq_len=131_072)


def hybrid_400m() -> ModelConfig:
    """All kinds: ten Mamba-2, four MLA with experts, two GQA with an MLP; 374 million."""
    mamba = Mamba2Config(hidden_size=1024, num_heads=32, head_dim=64, state_size=128)
    latent = _latent(1024, rope_dim=32, kv_latent=256, q_latent=512)
    rope = RopeConfig(64)
    attention = AttentionConfig(
        hidden_size=1024, num_heads=16, num_kv_heads=4, head_dim=64, rope=rope
    )
    kinds = {
        "M": _mamba(mamba),
        "L": _layer(latent, _experts(1024, intermediate_size=1792, num_experts=8)),
        "G": _layer(attention, MlpConfig(hidden_size=1024, intermediate_size=4096)),
    }
    return _model([kinds[kind] for kind in "MMLMMLMGMMLMMLMG"], vocab_size=32_000)


def hybrid_120m() -> ModelConfig:
    """The shape of oxidizr's nano.yaml: six Mamba-2, two MLA with experts; 123 million."""
    mamba = Mamba2Config(hidden_size=384, num_heads=48, head_dim=16, state_size=64)
    latent = _latent(384, rope_dim=16, kv_latent=192, q_latent=192)
    experts = _experts(384, intermediate_size=1536, num_experts=4)
    kinds = {"M": _mamba(mamba), "L": _layer(latent, experts)}
    return _model([kinds[kind] for kind in "MMMLMMML"], vocab_size=128_354)


def nano() -> ModelConfig:
    """The built-in model's own shape, from its header."""
    from blazr.models.loading.plan import plan_model

    return plan_model("nano").derivation.config


def random_network(config: ModelConfig, *, device: Device, dtype: str) -> CausalLM:
    """A network with random weights; dtype ``"auto"`` is what one stored in bfloat16 would run in.

    Raises:
        UnknownNameError: There is no such dtype.
    """
    import torch

    from blazr.models.causal_lm import CausalLM
    from blazr.models.loading.storage import DTYPES, resolve_dtype

    with torch.device("meta"):
        model = CausalLM(config)
    if dtype == "auto":
        num_parameters = sum(weight.numel() for weight in model.parameters())
        chosen = resolve_dtype(torch.bfloat16, 2 * num_parameters, device, config)
    else:
        chosen = DTYPES[dtype]
    place = device.torch_device
    model = model.to(chosen).to_empty(device=place).requires_grad_(requires_grad=False)
    chance = torch.Generator(place).manual_seed(0)
    drawn = torch.empty(_NUM_DRAWN, device=place).normal_(0, 0.02, generator=chance)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.fill_(1 if name.endswith(("norm.weight", ".d")) else 0)
            continue
        for part in weight.view(-1).split(_NUM_DRAWN):
            part.copy_(drawn[: len(part)])
    return model.eval()


def _mamba(mixer: Mamba2Config) -> LayerConfig:
    return LayerConfig(mixer=mixer, mixer_norm=NormConfig(mixer.hidden_size, 1e-6, "layer"))


def _layer(
    mixer: AttentionConfig | Mamba2Config | MlaConfig,
    feed_forward: FeedForwardConfig,
    *,
    eps: float = 1e-5,
) -> LayerConfig:
    norm = NormConfig(mixer.hidden_size, eps)
    return LayerConfig(
        mixer=mixer, mixer_norm=norm, feed_forward=feed_forward, feed_forward_norm=norm
    )


def _latent(hidden_size: int, *, rope_dim: int, kv_latent: int, q_latent: int) -> MlaConfig:
    return MlaConfig(
        hidden_size=hidden_size,
        num_heads=hidden_size // 64,
        head_dim=64,
        rope_dim=rope_dim,
        kv_latent=kv_latent,
        q_latent=q_latent,
        rope=RopeConfig(rope_dim),
    )


def _experts(hidden_size: int, *, intermediate_size: int, num_experts: int) -> MoeConfig:
    return MoeConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_experts=num_experts,
        experts_per_token=2,
        shared_expert=True,
    )


def _model(
    layers: list[LayerConfig], *, vocab_size: int, max_seq_len: int = 4096, tied: bool = False
) -> ModelConfig:
    norm = layers[-1].mixer_norm
    assert norm is not None
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=norm.size,
        max_seq_len=max_seq_len,
        layers=tuple(layers),
        final_norm=norm,
        tie_word_embeddings=tied,
    )
