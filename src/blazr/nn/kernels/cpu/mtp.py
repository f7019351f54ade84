"""What multi-token prediction sees: kernels of ``csrc/library.cpp`` behind the ops' signatures."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.compiled import Call
from blazr.nn.kernels.cpu.recurrent import Sequences, sequences
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure
from blazr.nn.operands.step import StepTable


@structure
class _JoinPrevious(Call, entry="join_previous"):
    """``JoinPrevious`` of kernels.hpp."""

    x: Pointer
    hidden: Pointer
    log: Pointer
    out: Pointer
    sequences: Sequences
    bytes: Int64
    x_stride: Int64
    hidden_stride: Int64


@structure
class _KeepLast(Call, entry="keep_last"):
    """``KeepLast`` of kernels.hpp."""

    hidden: Pointer
    log: Pointer
    sequences: Sequences
    bytes: Int64
    hidden_stride: Int64


def join_previous(x: Tensor, hidden: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.mtp.join_previous``."""
    count, channels = x.shape
    size = x.element_size()
    out = torch.empty((count, 2 * channels), dtype=x.dtype)
    _JoinPrevious(
        x.data_ptr(),
        hidden.data_ptr(),
        log.data_ptr(),
        out.data_ptr(),
        sequences(table, count),
        size * channels,
        size * x.stride(0),
        size * hidden.stride(0),
    ).run()
    return out


def keep_last(hidden: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.mtp.keep_last``."""
    size = hidden.element_size()
    _KeepLast(
        hidden.data_ptr(),
        log.data_ptr(),
        sequences(table, len(hidden)),
        size * hidden.shape[1],
        size * hidden.stride(0),
    ).run()
    return log
