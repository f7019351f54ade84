"""Multi-head latent attention over what is remembered: a latent and a rotated key per token."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.attention import LatentRows, Latents, Rotation
from blazr.nn.operands.kv_dtype import read_pages
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.attention import (
    attention,
    decode_attention,
    paged_attention,
    prefilling,
    read_group,
    scale_queries,
)
from blazr.nn.ops.matmul import linear_heads
from blazr.nn.ops.op import op
from blazr.nn.ops.rope import rotate_and_store


@op
def latent_attention(
    q: Tensor, rows: LatentRows, memory: Latents, rotation: Rotation, table: StepTable
) -> Tensor:
    """Remember the tokens' latents and rotated keys, and attend to all in memory.

    Replies attend to the latents themselves, with the upward matrices applied to queries and
    results; prompts to keys and values that are expanded from them, which is less arithmetic
    [arXiv:2405.04434, section 2.1]. A kernel may take either form.

    Args:
        q: The queries' parts that are not rotated, (T, H, D).
        rows: What else follows from the tokens.
        memory: Latents and keys of all tokens before these; written.
        rotation: How they are rotated, and where they go.
        table: The step.

    Returns:
        (T, H, E), in the dtype of q.
    """
    # one key for all heads, and the latent in the place of its values
    pages = memory.keys.unsqueeze(2), memory.latents.unsqueeze(2)
    latent = rows.latent.unsqueeze(1)
    if memory.k_loras is not None or memory.v_loras is not None:
        return _absorbed(q, rows, memory, rotation, table)
    rotated = rotate_and_store.reference(rows.q_rope, rows.k_rope, latent, rotation, *pages)
    queries = torch.cat((q, rotated), -1)
    params = memory.params
    out = q.new_empty(*q.shape[:2], memory.v_up.shape[1])
    if table.num_decodes:
        (own,) = table.groups[0].split(queries)
        own = scale_queries(own, params.temperature, table.groups[0].positions)[:, 0]
        size = q.shape[-1]
        for some in table.decode_groups:
            plain, own_rotated = own[some.rows].split((size, own.shape[-1] - size), -1)
            latents = read_pages(memory.latents, some.pages, q.dtype)  # (b, S, R)
            keys = torch.cat((latents, read_pages(memory.keys, some.pages, q.dtype)), -1)
            mixed = decode_attention(
                torch.cat((torch.einsum("bhd,hrd->bhr", plain, memory.k_up), own_rotated), -1),
                keys.unsqueeze(2),
                latents.unsqueeze(2),
                some.visible,
                params,
            )
            out[some.rows] = torch.einsum("bhr,her->bhe", mixed.to(q.dtype), memory.v_up)
    for group in prefilling(table):
        (own,) = group.split(queries)
        latents = read_group(memory.latents, table, group, q.dtype)  # (B, S, R)
        k = torch.einsum("bsr,hrd->bshd", latents, memory.k_up)
        shared = read_group(memory.keys, table, group, q.dtype)
        shared = shared.unsqueeze(2).expand(*k.shape[:-1], -1)
        found = attention(
            scale_queries(own, params.temperature, group.positions),
            torch.cat((k, shared), -1),
            torch.einsum("bsr,her->bshe", latents, memory.v_up),
            params,
        )
        out[group.rows] = found.flatten(0, 1)
    return out


def _absorbed(
    q: Tensor, rows: LatentRows, memory: Latents, rotation: Rotation, table: StepTable
) -> Tensor:
    """The same with adapters of the upward matrices, applied to queries and results alone."""
    pages = memory.pages
    stored = memory.keys.unsqueeze(2), pages.keys
    rotated = rotate_and_store.reference(
        rows.q_rope, rows.k_rope, rows.latent.unsqueeze(1), rotation, *stored
    )
    absorbed = linear_heads.reference(q, memory.k_up, None, memory.k_loras)
    mixed = paged_attention.reference(torch.cat((absorbed, rotated), -1), pages, table)
    return linear_heads.reference(mixed.to(q.dtype), memory.v_up, None, memory.v_loras)
