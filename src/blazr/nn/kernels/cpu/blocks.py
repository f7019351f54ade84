"""Blocks of GGUF files: ``csrc/pack.hpp`` and ``csrc/encode.hpp`` behind their references."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.device import zero_bytes
from blazr.nn.kernels.cpu.compiled import Call
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure
from blazr.nn.operands.codebooks import CODEBOOK_OF, codebook
from blazr.nn.operands.packing import GROUP, PACKINGS

_Q4_K_BYTES = 144  # of a block


@structure
class _Pack(Call, entry="pack"):
    """``Pack`` of kernels.hpp."""

    blocks: Pointer
    zeros: Pointer
    codebook: Pointer
    out: Pointer
    packing: Int64
    rows: Int64
    supers: Int64


def pack(blocks: Tensor, name: str, supers: int, zeros: Tensor | None) -> Tensor:
    """See ``blazr.nn.quant.packed.pack``; the same bits as its reference."""
    packing = PACKINGS[name]
    rows = len(blocks)
    blocks = blocks.contiguous()
    zeros = None if zeros is None else zeros.contiguous()
    book = codebook(CODEBOOK_OF[name], blocks.device) if name in CODEBOOK_OF else None
    out = zero_bytes(torch.Size((-(-rows // GROUP), supers, packing.nbytes)))
    _Pack(
        blocks.data_ptr(),
        None if zeros is None else zeros.data_ptr(),
        None if book is None else book.data_ptr(),
        out.data_ptr(),
        packing.number,
        rows,
        supers,
    ).run()
    return out


@structure
class _Encode(Call, entry="encode_q4_k"):
    """``Encode`` of kernels.hpp."""

    x: Pointer
    out: Pointer
    blocks: Int64


def encode_q4_k(blocks: Tensor) -> Tensor:
    """See ``blazr.nn.quant.gguf.kquantize``; sums are rounded in another order there."""
    blocks = blocks.contiguous()
    out = torch.empty(len(blocks), _Q4_K_BYTES, dtype=torch.uint8)
    _Encode(blocks.data_ptr(), out.data_ptr(), len(blocks)).run()
    return out
