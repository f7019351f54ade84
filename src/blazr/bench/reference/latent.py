"""Multi-head latent attention, DeepSeek's [arXiv:2405.04434] and oxidizr's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.bench.reference.attention import attend
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.rotation import Rotation, rotate, temper
from blazr.bench.reference.weights import Weights, linear


@dataclass(frozen=True, kw_only=True)
class LatentSizes:
    """Sizes.

    Args:
        heads: H.
        plain: Channels of a query that are not rotated.
        rotated: Those that are.
        latent: Of the latent of keys and values.
        values: Channels of a value.
        rotation: Of ``rotated`` channels; None leaves them as they are.
        scale: What scores are multiplied with.
        eps: Of the norms of both latents.
    """

    heads: int
    plain: int
    rotated: int
    latent: int
    values: int
    rotation: Rotation | None
    scale: float
    eps: float = 1e-6


def deepseek_attention(x: Tensor, w: Weights, s: LatentSizes) -> Tensor:
    """(T, C) to (T, C)."""
    if "q_a_proj.weight" in w:
        latent = rms_norm(linear(x, w, "q_a_proj"), w["q_a_layernorm.weight"], s.eps)
        q = linear(latent, w, "q_b_proj")
    else:
        q = linear(x, w, "q_proj")
    q_plain, q_moved = q.unflatten(-1, (s.heads, -1)).split((s.plain, s.rotated), -1)
    latent, k_moved = linear(x, w, "kv_a_proj_with_mqa").split((s.latent, s.rotated), -1)
    latent = rms_norm(latent, w["kv_a_layernorm.weight"], s.eps)
    if "k_b.weight" in w:  # GGUF: head by head, that of the keys turned over
        k_plain = torch.einsum("tr,hrd->thd", latent, w["k_b.weight"])
        values = torch.einsum("tr,her->the", latent, w["v_b.weight"])
    elif "embed_q.0.weight" in w:  # mlx-lm: the same
        k_plain, values = (
            torch.stack([latent @ matrix for matrix in matrices], 1)
            for matrices in (
                [w[f"embed_q.{head}.weight"] for head in range(s.heads)],
                [w[f"unembed_out.{head}.weight"].T for head in range(s.heads)],
            )
        )
    else:
        both = linear(latent, w, "kv_b_proj").unflatten(-1, (s.heads, -1))
        k_plain, values = both.split((s.plain, s.values), -1)
    k_moved = rotate(k_moved[:, None], s.rotation).expand(-1, s.heads, -1)
    q = torch.cat((q_plain, rotate(q_moved, s.rotation)), -1)
    k = torch.cat((k_plain, k_moved), -1)
    mixed = attend(temper(q, s.rotation), k, values, s.scale)
    if "g_proj.weight" in w:  # Ling 3
        mixed = mixed * linear(x, w, "g_proj").sigmoid()[..., None]
    return linear(mixed.flatten(1), w, "o_proj")


def oxidizr_attention(
    x: Tensor, w: Weights, rotation: Rotation, window: int | None = None
) -> Tensor:
    """(T, C) to (T, C): rotated parts come from the input, and latents have no norm."""
    rotated = w.shape("w_kr.weight")[0]
    heads = w.shape("w_qr.weight")[0] // rotated
    latent = linear(x, w, "w_dkv")
    q_plain = linear(linear(x, w, "w_dq"), w, "w_uq").unflatten(-1, (heads, -1))
    k_plain = linear(latent, w, "w_uk").unflatten(-1, (heads, -1))
    values = linear(latent, w, "w_uv").unflatten(-1, (heads, -1))
    q_moved = rotate(linear(x, w, "w_qr").unflatten(-1, (heads, -1)), rotation)
    k_moved = rotate(linear(x, w, "w_kr")[:, None], rotation).expand(-1, heads, -1)
    q, k = torch.cat((q_plain, q_moved), -1), torch.cat((k_plain, k_moved), -1)
    mixed = attend(q, k, values, q.shape[-1] ** -0.5, window=window)
    return linear(mixed.flatten(1), w, "o_proj")
