"""Tiny models with random weights, named and stored as oxidizr or Hugging Face do.

Written from the format's description, not from the loader: names and shapes are stated here again,
and the files are written with the safetensors library.

    tiny.save(tiny.Tiny(layers=("Mamba2", "MlaWithMoe")), directory)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from tests.support.seeds import run_seed

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Sizes of a tiny model; the layer types are those of config files, and ``GqaWithMoe``."""

    layers: tuple[str, ...] = ("Mamba2", "MlaWithMoe")
    vocab_size: int = 61
    hidden_size: int = 32
    max_seq_len: int = 256
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    intermediate_size: int = 48
    ssm_heads: int = 8
    ssm_head_dim: int = 8
    state_size: int = 8
    num_groups: int = 1
    conv_kernel: int = 4
    complex_rope: bool = True
    use_conv: bool = False
    mimo_rank: int = 0
    kv_latent: int = 16
    q_latent: int = 12
    rope_dim: int = 4
    num_experts: int = 4
    experts_per_tok: int = 2
    shared_expert: bool = True
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def inner_size(self) -> int:
        return self.ssm_heads * self.ssm_head_dim


def shapes(model: Tiny, prefix: str = "") -> Shapes:
    """Every tensor's shape by name."""
    hidden = model.hidden_size
    found: Shapes = {
        f"{prefix}embed_tokens.weight": (model.vocab_size, hidden),
        f"{prefix}norm.weight": (hidden,),
    }
    if not model.tied:
        found["lm_head.weight"] = (model.vocab_size, hidden)
    for index, kind in enumerate(model.layers):
        names = _mamba(model, kind) if kind.startswith("Mamba") else _attention(model, kind)
        found |= {f"{prefix}layers.{index}.{name}": shape for name, shape in names.items()}
    return found


def _mamba(model: Tiny, kind: str) -> Shapes:
    hidden, inner, kernel = model.hidden_size, model.inner_size, model.conv_kernel
    if kind == "Mamba1":
        wide, states = 2 * hidden, 16
        return {
            "norm.weight": (hidden,),
            "mamba.in_proj.weight": (2 * wide, hidden),
            "mamba.conv1d.weight": (wide, 1, kernel),
            "mamba.conv1d.bias": (wide,),
            "mamba.x_proj.weight": (wide + 2 * states, wide),
            "mamba.dt_proj.weight": (wide, wide),
            "mamba.dt_proj.bias": (wide,),
            "mamba.a_log": (wide, states),
            "mamba.d": (wide,),
            "mamba.out_proj.weight": (hidden, wide),
        }
    heads, maps = model.ssm_heads, 2 * model.num_groups * model.state_size
    names: Shapes = {
        "in_proj.weight": (2 * inner + maps + heads, hidden),
        "in_proj.bias": (2 * inner + maps + heads,),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (heads,),
        "norm.weight": (inner,),
        "out_proj.weight": (hidden, inner),
        "out_proj.bias": (hidden,),
    }
    if kind == "Mamba2" or model.use_conv:
        names |= {"conv1d.weight": (inner + maps, 1, kernel), "conv1d.bias": (inner + maps,)}
    if kind == "Mamba3":
        names |= _mamba3(model)
    at = kind.lower()
    return {f"{at}.norm.weight": (hidden,), f"{at}.norm.bias": (hidden,)} | {
        f"{at}.mixer.{name}": shape for name, shape in names.items()
    }


def _mamba3(model: Tiny) -> Shapes:
    hidden, heads, states = model.hidden_size, model.ssm_heads, model.state_size
    dim, wide = model.ssm_head_dim, model.ssm_head_dim * model.mimo_rank
    names: Shapes = {
        "lambda_proj.weight": (heads, hidden),
        "lambda_proj.bias": (heads,),
        "b_bias": (heads, states),
        "c_bias": (heads, states),
        "bc_norm.weight": (states,),
    }
    if model.complex_rope:
        rows = heads * states // 2
        names |= {"theta_proj.weight": (rows, hidden), "theta_proj.bias": (rows,)}
    if wide:
        names |= {
            "mimo_x_up.weight": (wide, dim),
            "mimo_x_up.bias": (wide,),
            "mimo_x_down.weight": (dim, wide),
            "mimo_x_down.bias": (dim,),
        }
    return names


def _attention(model: Tiny, kind: str) -> Shapes:
    hidden, heads, dim = model.hidden_size, model.num_heads, model.head_dim
    query, key = heads * dim, model.num_kv_heads * dim
    names: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if kind.startswith("Mla"):
        sizes = {
            "w_dkv": (model.kv_latent, hidden),
            "w_dq": (model.q_latent, hidden),
            "w_uq": (query, model.q_latent),
            "w_uk": (query, model.kv_latent),
            "w_uv": (query, model.kv_latent),
            "w_qr": (heads * model.rope_dim, hidden),
            "w_kr": (model.rope_dim, hidden),
            "o_proj": (hidden, query),
        }
    else:
        sizes = {
            "q_proj": (query, hidden),
            "k_proj": (key, hidden),
            "v_proj": (key, hidden),
            "o_proj": (hidden, query),
        }
        if model.qkv_bias:
            rows = {"q": query, "k": key, "v": key}
            names |= {f"self_attn.{p}_proj.bias": (size,) for p, size in rows.items()}
        if model.qk_norm:
            names |= {f"self_attn.{p}_norm.weight": (dim,) for p in "qk"}
    names |= {f"self_attn.{name}.weight": shape for name, shape in sizes.items()}
    return names | _feed_forward(model, has_moe=kind.endswith("Moe"))


def _feed_forward(model: Tiny, *, has_moe: bool) -> Shapes:
    hidden, inner = model.hidden_size, model.intermediate_size
    gated: Shapes = {
        "gate_proj.weight": (inner, hidden),
        "up_proj.weight": (inner, hidden),
        "down_proj.weight": (hidden, inner),
    }
    if not has_moe:
        return {f"mlp.{name}": shape for name, shape in gated.items()}
    owners = [f"moe.experts.{expert}." for expert in range(model.num_experts)]
    owners += ["moe.shared_expert."] if model.shared_expert else []
    router: Shapes = {"moe.router.gate.weight": (model.num_experts, hidden)}
    return router | {owner + name: shape for owner in owners for name, shape in gated.items()}


def tensors(
    model: Tiny, *, seed: int = 0, dtype: torch.dtype = torch.float32, prefix: str = ""
) -> dict[str, Tensor]:
    """Random weights, the same for the same seed, at scales that keep every part at work."""
    generator = torch.Generator().manual_seed(run_seed(seed))

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith(("norm.weight", "layernorm.weight", "b_bias", "c_bias")):
            return 1 + 0.2 * noise
        if name.endswith("dt_bias"):
            return noise - 3  # steps between the clamps
        if name.endswith(("A_log", "a_log")):
            return noise.abs()
        return noise if len(shape) == 1 or "embed" in name else noise * shape[-1] ** -0.5

    return {n: draw(n, shape).to(dtype) for n, shape in shapes(model, prefix).items()}


def config(model: Tiny) -> dict[str, object]:
    """config.json as oxidizr writes it: no groups, no key/value heads, no layer types."""
    has_ssm = any(kind in {"Mamba2", "Mamba3"} for kind in model.layers)
    has_mla = any(kind.startswith("Mla") for kind in model.layers)
    has_moe = any(kind.endswith("Moe") for kind in model.layers)
    found: dict[str, object] = {
        "hidden_size": model.hidden_size,
        "num_layers": len(model.layers),
        "vocab_size": model.vocab_size,
        "max_seq_len": model.max_seq_len,
        "num_attention_heads": model.num_heads,
        "rms_norm_eps": 1e-5,
        "intermediate_size": model.intermediate_size,
    }
    if has_ssm:
        found |= {
            "mamba2_num_heads": model.ssm_heads,
            "mamba2_head_dim": model.ssm_head_dim,
            "mamba2_state_size": model.state_size,
            "mamba2_chunk_size": 8,
            "mamba2_conv_kernel": model.conv_kernel,
        }
        if model.inner_size % model.hidden_size == 0:
            found["mamba2_expand"] = model.inner_size // model.hidden_size
    if "Mamba3" in model.layers:
        found |= {
            "mamba3_enabled": True,
            "mamba3_complex_rope": model.complex_rope,
            "mamba3_mimo_rank": model.mimo_rank,
            "mamba3_use_conv": model.use_conv,
        }
    if has_mla:
        found |= {
            "kv_latent_dim": model.kv_latent,
            "q_latent_dim": model.q_latent,
            "d_rope": model.rope_dim,
        }
    if has_moe:
        found |= {
            "num_experts": model.num_experts,
            "experts_per_tok": model.experts_per_tok,
            "shared_expert_enabled": model.shared_expert,
        }
    mamba = [i for i, kind in enumerate(model.layers) if kind.startswith("Mamba")]
    return found | ({"mamba_layers": mamba} if mamba else {})


def hf_config(model: Tiny, model_type: str = "llama") -> dict[str, object]:
    """config.json as Hugging Face writes it for Llama and its relatives."""
    return {
        "model_type": model_type,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": len(model.layers),
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_seq_len,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
    }


def save(
    model: Tiny,
    directory: Path,
    *,
    layout: str = "oxidizr",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    changes: dict[str, object] | None = None,
) -> Path:
    """Write a model as a directory of model.safetensors and config.json.

    Args:
        model: Its sizes.
        directory: Where to; made if need be.
        layout: ``"oxidizr"``, ``"hf"`` (all layers StandardTransformer), or ``"bare"`` for oxidizr
            without config.json.
        seed: Of the weights.
        dtype: Of all weights.
        changes: Keys to set in config.json; None as a value takes the key away.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    prefix = "model." if layout == "hf" else ""
    save_file(
        tensors(model, seed=seed, dtype=dtype, prefix=prefix), directory / "model.safetensors"
    )
    if layout != "bare":
        written = (hf_config(model) if layout == "hf" else config(model)) | (changes or {})
        kept = {key: value for key, value in written.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(kept, indent=2))
    return directory


def checkpoint(
    model: Tiny, written: dict[str, object] | None = None, *, prefix: str = ""
) -> Checkpoint:
    """The same as a Checkpoint of headers alone, without files.

    Args:
        model: Its sizes.
        written: The contents of config.json, or None for no such file.
        prefix: What stands before all names but the head's.
    """
    return from_shapes(shapes(model, prefix), written)


def from_shapes(wanted: Shapes, written: dict[str, object] | None = None) -> Checkpoint:
    """Headers alone, of float32 tensors with these shapes."""
    file, position, found = Path("model.safetensors"), 0, {}
    for name, shape in wanted.items():
        end = position + 4 * math.prod(shape)
        found[name] = TensorInfo(name, "F32", shape, file, position, end)
        position = end
    return Checkpoint(path=file, files={file: position}, tensors=found, config=written or {})
