"""Networks without a checkpoint: real shapes, random weights. Speed does not ask what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.bench import RANDOM_SHAPES
from blazr.models.config import ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling

if TYPE_CHECKING:
    import torch

    from blazr.models.causal_lm import CausalLM
    from blazr.nn.device import Device

# Numbers drawn at once and then repeated: drawing half a billion would take longer than running.
# Prime, so that no two rows of a matrix are the same.
_DRAWN = 1_000_003
_STD = 0.02
# Below this a network is computed in float32, as a checkpoint of its size is.
_SMALL_BYTES = 64 * 2**20


def qwen2_half_b() -> ModelConfig:
    """Qwen2-0.5B and Qwen2.5-0.5B: 494 million parameters, attention alone."""
    attention = AttentionConfig(
        hidden_size=896,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        rope=RopeConfig(64, 1e6),
        qkv_bias=True,
    )
    mlp = MlpConfig(hidden_size=896, intermediate_size=4864)
    layer = _layer(attention, mlp, eps=1e-6)
    return _model([layer] * 24, vocab_size=151_936, max_seq_len=32_768, tied=True)


def llama_1b() -> ModelConfig:
    """Llama-3.2-1B: 1.24 billion parameters, attention alone."""
    scaling = RopeScaling(kind="llama3", factor=32.0)
    attention = AttentionConfig(
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        rope=RopeConfig(64, 500_000.0, scaling),
    )
    layer = _layer(attention, MlpConfig(hidden_size=2048, intermediate_size=8192))
    return _model([layer] * 16, vocab_size=128_256, max_seq_len=131_072, tied=True)


def hybrid_400m() -> ModelConfig:
    """A hybrid of every kind: ten Mamba-2, four MLA with experts, two GQA with an MLP."""
    mamba = Mamba2Config(hidden_size=1024, num_heads=32, head_dim=64, state_size=128)
    latent = MlaConfig(
        hidden_size=1024,
        num_heads=16,
        head_dim=64,
        rope_dim=32,
        kv_latent=256,
        q_latent=512,
        rope=RopeConfig(32),
    )
    attention = AttentionConfig(
        hidden_size=1024, num_heads=16, num_kv_heads=4, head_dim=64, rope=RopeConfig(64)
    )
    experts = _experts(1024, intermediate_size=1792, num_experts=8)
    layers = {
        "M": _mamba(mamba),
        "L": _layer(latent, experts),
        "G": _layer(attention, MlpConfig(hidden_size=1024, intermediate_size=4096)),
    }
    return _model([layers[kind] for kind in "MMLMMLMGMMLMMLMG"], vocab_size=32_000)


def hybrid_120m() -> ModelConfig:
    """The shape of oxidizr's nano.yaml: six Mamba-2, two MLA with experts, 123 million."""
    mamba = Mamba2Config(hidden_size=384, num_heads=48, head_dim=16, state_size=64)
    latent = MlaConfig(
        hidden_size=384,
        num_heads=6,
        head_dim=64,
        rope_dim=16,
        kv_latent=192,
        q_latent=192,
        rope=RopeConfig(16),
    )
    layers = {
        "M": _mamba(mamba),
        "L": _layer(latent, _experts(384, intermediate_size=1536, num_experts=4)),
    }
    return _model([layers[kind] for kind in "MMMLMMML"], vocab_size=128_354)


def nano() -> ModelConfig:
    """The built-in model's shape: seven layers of three kinds, 2.7 million parameters."""
    mamba = Mamba2Config(hidden_size=192, num_heads=12, head_dim=32, state_size=32)
    latent = MlaConfig(
        hidden_size=192,
        num_heads=6,
        head_dim=32,
        rope_dim=16,
        kv_latent=64,
        q_latent=96,
        rope=RopeConfig(16),
    )
    attention = AttentionConfig(
        hidden_size=192, num_heads=6, num_kv_heads=2, head_dim=32, rope=RopeConfig(32)
    )
    layers = {
        "M": _mamba(mamba),
        "L": _layer(latent, _experts(192, intermediate_size=128, num_experts=4)),
        "G": _layer(attention, MlpConfig(hidden_size=192, intermediate_size=512)),
    }
    kinds = [layers[kind] for kind in "MMLMGML"]
    return _model(kinds, vocab_size=2048, max_seq_len=512, tied=True)


def random_network(name: str, *, device: Device, dtype: str) -> CausalLM:
    """A network of a shape of RANDOM_SHAPES.

    Args:
        name: Of the shape.
        device: Where to.
        dtype: ``"auto"`` is what a checkpoint in bfloat16 would be run in.

    Raises:
        UnknownNameError: There is no such shape or dtype.
    """
    import torch

    from blazr.models.causal_lm import CausalLM
    from blazr.models.loading.weights import DTYPES
    from blazr.models.sizing import size_of

    config = RANDOM_SHAPES[name]()
    if dtype == "auto":
        is_small = 2 * size_of(config, torch.bfloat16).parameters <= _SMALL_BYTES
        fits = device.supports(torch.bfloat16) and not (is_small and device.kind == "cpu")
        chosen = torch.bfloat16 if fits else torch.float32
    else:
        chosen = DTYPES[dtype]
    with torch.device("meta"):
        model = CausalLM(config).to(chosen)
    model.to_empty(device=device.torch_device).requires_grad_(requires_grad=False).eval()
    drawn = torch.empty(_DRAWN, device=device.torch_device)
    drawn.normal_(0, _STD, generator=torch.Generator(device.torch_device).manual_seed(0))
    for path, weight in model.named_parameters():
        _fill(path, weight, drawn.to(chosen))
    return model


def _fill(path: str, weight: torch.Tensor, drawn: torch.Tensor) -> None:
    if weight.dim() == 1:
        weight.fill_(1 if path.endswith(("norm.weight", ".d")) else 0)
        return
    for part in weight.view(-1).split(len(drawn)):
        part.copy_(drawn[: len(part)])


def _mamba(mixer: Mamba2Config) -> LayerConfig:
    return LayerConfig(mixer=mixer, mixer_norm=NormConfig(mixer.hidden_size, 1e-6, "layer"))


def _layer(
    mixer: AttentionConfig | MlaConfig, feed_forward: FeedForwardConfig, *, eps: float = 1e-5
) -> LayerConfig:
    norm = NormConfig(mixer.hidden_size, eps)
    return LayerConfig(
        mixer=mixer, mixer_norm=norm, feed_forward=feed_forward, feed_forward_norm=norm
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
    norm = layers[-1].feed_forward_norm
    assert norm is not None
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=norm.size,
        max_seq_len=max_seq_len,
        layers=tuple(layers),
        final_norm=norm,
        tie_word_embeddings=tied,
    )
