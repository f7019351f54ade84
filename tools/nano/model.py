"""nano's sizes, its first weights, and its weights under oxidizr's names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig

HIDDEN, HEADS, KV_HEADS, VOCAB = 192, 6, 2, 2048
CONTEXT, WINDOW = 8192, 512
PATTERN = "MMLMGML"  # Mamba-2, latent attention + experts, grouped-query attention + MLP
HEAD_DIM = HIDDEN // HEADS
EPS = 1e-5

MLA_NAMES = {
    "kv_down_proj": "w_dkv",
    "q_down_proj": "w_dq",
    "q_up_proj": "w_uq",
    "k_up_proj": "w_uk",
    "v_up_proj": "w_uv",
    "q_rope_proj": "w_qr",
    "k_rope_proj": "w_kr",
}


def nano_config() -> ModelConfig:
    """The network: 2.7 million parameters, seven layers of three kinds."""
    rms, layer = NormConfig(HIDDEN, EPS), NormConfig(HIDDEN, 1e-6, "layer")
    mamba: MixerConfig = Mamba2Config(
        hidden_size=HIDDEN, num_heads=12, head_dim=32, state_size=32, num_groups=1
    )
    mla: MixerConfig = MlaConfig(
        hidden_size=HIDDEN,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        rope_dim=16,
        kv_latent=64,
        q_latent=96,
        rope=RopeConfig(16),
        sliding_window=WINDOW,
    )
    gqa: MixerConfig = AttentionConfig(
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rope=RopeConfig(HEAD_DIM),
        sliding_window=WINDOW,
    )
    moe: FeedForwardConfig = MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_experts=4,
        experts_per_token=2,
        shared_expert=True,
    )
    mlp: FeedForwardConfig = MlpConfig(hidden_size=HIDDEN, intermediate_size=512)
    kinds = {
        "M": LayerConfig(mixer=mamba, mixer_norm=layer),
        "L": LayerConfig(mixer=mla, mixer_norm=rms, feed_forward=moe, feed_forward_norm=rms),
        "G": LayerConfig(mixer=gqa, mixer_norm=rms, feed_forward=mlp, feed_forward_norm=rms),
    }
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        max_seq_len=CONTEXT,
        layers=tuple(kinds[letter] for letter in PATTERN),
        final_norm=rms,
        tie_word_embeddings=True,
    )


@torch.no_grad()
def init_weights(model: nn.Module, *, seed: int) -> None:
    """Small normal matrices, unit norms, and decay rates spread over the heads."""
    generator = torch.Generator().manual_seed(seed)
    outputs = ("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            std = 0.02 if "embed" in name else weight.shape[-1] ** -0.5
            if name.endswith(outputs):
                std /= math.sqrt(2 * len(PATTERN))
            weight.normal_(0, std, generator=generator)
        elif name.endswith(("norm.weight", ".d")):
            weight.fill_(1)
        elif name.endswith("a_log"):
            weight.copy_(torch.linspace(1, 16, len(weight)).log())
        elif name.endswith("dt_bias"):
            steps = torch.logspace(-2.7, -1.1, len(weight))
            weight.copy_(steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step
        else:
            weight.zero_()


def oxidizr_tensors(model: CausalLM) -> dict[str, Tensor]:
    """The weights under oxidizr's names and shapes."""
    tensors: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        parts = name.split(".")
        if parts[0] != "layers":
            tensors[name] = weight.clone()
            continue
        layer, rest = ".".join(parts[:2]), ".".join(parts[2:])
        if PATTERN[int(parts[1])] == "M":
            tensors.update(_mamba_tensors(f"{layer}.mamba2", rest, weight))
        else:
            tensors.update(_attention_tensors(layer, rest, weight))
    return {name: weight.contiguous() for name, weight in tensors.items()}


def save_model(model: CausalLM, folder: Path) -> None:
    """Write ``model.safetensors`` and ``config.json`` as oxidizr would."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(oxidizr_tensors(model), folder / "model.safetensors")
    config = {
        "hidden_size": HIDDEN,
        "num_layers": len(PATTERN),
        "vocab_size": VOCAB,
        "max_seq_len": CONTEXT,
        "sliding_window": WINDOW,
        "num_attention_heads": HEADS,
        "rms_norm_eps": EPS,
        "mamba2_num_heads": 12,
        "mamba2_head_dim": 32,
        "mamba2_state_size": 32,
        "mamba2_chunk_size": 64,
        "mamba2_expand": 2,
        "mamba2_conv_kernel": 4,
        "kv_latent_dim": 64,
        "q_latent_dim": 96,
        "d_rope": 16,
        "num_experts": 4,
        "experts_per_tok": 2,
        "shared_expert_enabled": True,
        "mamba_layers": [i for i, letter in enumerate(PATTERN) if letter == "M"],
    }
    text = json.dumps(config, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _mamba_tensors(prefix: str, rest: str, weight: Tensor) -> dict[str, Tensor]:
    if rest.startswith("mixer_norm."):
        return {f"{prefix}.{rest.removeprefix('mixer_')}": weight}
    rest = rest.replace("a_log", "A_log")
    rest = "mixer.D" if rest == "mixer.d" else rest
    if rest == "mixer.conv1d.weight":
        weight = weight.unsqueeze(1)
    return {f"{prefix}.{rest}": weight}


def _attention_tensors(layer: str, rest: str, weight: Tensor) -> dict[str, Tensor]:
    rest = rest.replace("mixer_norm", "input_layernorm")
    rest = rest.replace("feed_forward_norm", "post_attention_layernorm")
    part, _, tail = rest.partition(".")
    if part == "mixer":
        name, _, end = tail.partition(".")
        return {f"{layer}.self_attn.{MLA_NAMES.get(name, name)}.{end}": weight}
    if part != "feed_forward":
        return {f"{layer}.{rest}": weight}
    if tail.startswith("experts."):
        name = tail.removeprefix("experts.")
        return {f"{layer}.moe.experts.{e}.{name}.weight": w for e, w in enumerate(weight.unbind())}
    if tail.startswith("router"):
        return {f"{layer}.moe.router.gate.weight": weight}
    kind = "moe" if tail.startswith("shared_expert") else "mlp"
    return {f"{layer}.{kind}.{tail}": weight}
