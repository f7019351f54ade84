"""Faster forms of operations. Each row may stand in for an op's reference, and must agree with it.

Kernels know tensors and their own libraries; only ``blazr.nn.ops`` calls them.
"""

from __future__ import annotations

import torch

from blazr.core.table import Table
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel

_ALL, _WIDE = tuple(compiled.DTYPES), (torch.float32,)

KERNELS: Table[Kernel] = Table(
    "kernel",
    {
        f"{row.device}.{row.op}": row
        for row in (
            Kernel(op, "cpu", dtypes, target, compiled.missing, compiled.in_use)
            for dtypes, op, target in (
                (_WIDE, "rotary_tables", "blazr.nn.kernels.cpu.rows:rotary_tables"),
                (_ALL, "linear", "blazr.nn.kernels.cpu.matmul:linear"),
                (_ALL, "gated_linear", "blazr.nn.kernels.cpu.matmul:gated_linear"),
                (_ALL, "packed_linear", "blazr.nn.kernels.cpu.matmul_q:packed_linear"),
                (_ALL, "packed_gated_linear", "blazr.nn.kernels.cpu.matmul_q:packed_gated_linear"),
                (_ALL, "packed_rows", "blazr.nn.kernels.cpu.matmul_q:packed_rows"),
                *(
                    (_ALL, name, f"blazr.nn.kernels.cpu.pointwise:{name}")
                    for name in ("add", "scale", "widen", "activate", "sigmoid_gate", "embedding")
                ),
                (_ALL, "rms_norm", "blazr.nn.kernels.cpu.rows:rms_norm"),
                (_ALL, "layer_norm", "blazr.nn.kernels.cpu.rows:layer_norm"),
                (_ALL, "rotate_and_store", "blazr.nn.kernels.cpu.rows:rotate_and_store"),
                (_ALL, "mamba2", "blazr.nn.kernels.cpu.sequence:mamba2"),
                (_ALL, "paged_attention", "blazr.nn.kernels.cpu.sequence:paged_attention"),
                ((torch.uint8,), "pack", "blazr.nn.kernels.cpu.blocks:pack"),
                (_WIDE, "encode_q4_k", "blazr.nn.kernels.cpu.blocks:encode_q4_k"),
            )
        )
    },
)
