"""Kernels on a sequence's memory: ``csrc/mamba2.hpp`` and ``csrc/attention.hpp``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.compiled import DTYPES, fields, run
from blazr.nn.kernels.cpu.recurrent import ORDERS, Sequences, sequences
from blazr.nn.kernels.steps import Mamba2Memory, Mamba2Weights, Pages, StepTable

_POINTER, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Mamba2(ctypes.Structure):
    """``Mamba2`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "proj post y dt out"),
        *fields(_POINTER, "conv_weight conv_bias dt_bias a d norm_weight multipliers"),
        *fields(_POINTER, "states conv_states log_raw log_xb log_dt"),
        ("sequences", Sequences),
        *fields(_INT64, "heads head_dim state_size groups taps"),
        *fields(_INT64, "state_stride conv_state_stride dtype norm norm_groups"),
        *fields(_FLOAT, "dt_min dt_max eps"),
    )


class _Attention(ctypes.Structure):
    """``Attention`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "q keys more_keys values out sinks block_tables spans"),
        *fields(_INT64, "key_size more_key_size value_size table_stride"),
        *fields(_INT64, "key_stride more_key_stride value_stride"),
        *fields(_INT64, "num_spans longest heads kv_heads window dtype temperature_length"),
        *fields(_FLOAT, "scale softcap temperature"),
    )


def mamba2(proj: Tensor, weights: Mamba2Weights, memory: Mamba2Memory, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.sequence.mamba2``."""
    tokens, heads, norm = len(proj), weights.heads, weights.norm
    conv, inner = weights.conv_bias.shape[0], heads * weights.head_dim
    post, out = proj.new_empty(tokens, conv), proj.new_empty(tokens, inner)
    y = torch.empty(tokens, inner + heads)  # the second part holds the step sizes
    call = _Mamba2(
        proj.data_ptr(),
        post.data_ptr(),
        y.data_ptr(),
        y.data_ptr() + 4 * tokens * inner,
        out.data_ptr(),
        weights.conv_weight.data_ptr(),
        weights.conv_bias.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        None if norm.weight is None else norm.weight.data_ptr(),
        None if weights.multipliers is None else weights.multipliers.data_ptr(),
        memory.states.data_ptr(),
        memory.conv_states.data_ptr(),
        memory.log_raw.data_ptr(),
        memory.log_xb.data_ptr(),
        memory.log_dt.data_ptr(),
        sequences(table, tokens),
        heads,
        weights.head_dim,
        weights.state_size,
        weights.groups,
        len(weights.conv_weight),
        memory.states.stride(0),
        memory.conv_states.stride(0),
        DTYPES[proj.dtype],
        ORDERS.index(norm.order),
        norm.groups,
        weights.dt_min,
        weights.dt_max,
        norm.eps,
    )
    run("mamba2", call)
    return out


def paged_attention(q: Tensor, pages: Pages, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.sequence.paged_attention``."""
    keys, more, values = pages.keys, pages.more_keys, pages.values
    growth = pages.temperature
    q = q.contiguous()
    out = q.new_empty(*q.shape[:2], values.shape[-1])
    call = _Attention(
        q.data_ptr(),
        keys.data_ptr(),
        None if more is None else more.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        None if pages.sinks is None else pages.sinks.data_ptr(),
        table.block_tables.data_ptr(),
        table.spans.data_ptr(),
        keys.shape[-1],
        0 if more is None else more.shape[-1],
        values.shape[-1],
        table.block_tables.shape[1],
        keys.stride(0),
        0 if more is None else more.stride(0),
        values.stride(0),
        len(table.spans),
        table.longest,
        q.shape[1],
        keys.shape[2],
        pages.window or 0,
        DTYPES[q.dtype],
        1 if growth is None else growth.length,
        pages.scale,
        pages.softcap or 0.0,
        0.0 if growth is None else growth.scale,
    )
    run("attention", call)
    return out
