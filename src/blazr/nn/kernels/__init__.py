"""Faster forms of operations. Each row may stand in for an op's reference, and must agree with it.

Kernels know tensors and their own libraries; only ``blazr.nn.ops`` calls them.
"""

from __future__ import annotations

from blazr.core.table import Table
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel

KERNELS: Table[Kernel] = Table(
    "kernel",
    {
        f"{row.device}.{row.op}": row
        for row in (
            Kernel(op, "cpu", tuple(compiled.DTYPES), target, compiled.missing, compiled.in_use)
            for op, target in (
                ("linear", "blazr.nn.kernels.cpu.matmul:linear"),
                ("wide_linear", "blazr.nn.kernels.cpu.matmul:wide_linear"),
                ("gated_linear", "blazr.nn.kernels.cpu.matmul:gated_linear"),
                ("packed_linear", "blazr.nn.kernels.cpu.matmul_q:packed_linear"),
                ("packed_gated_linear", "blazr.nn.kernels.cpu.matmul_q:packed_gated_linear"),
                ("packed_rows", "blazr.nn.kernels.cpu.matmul_q:packed_rows"),
                *(
                    (name, f"blazr.nn.kernels.cpu.pointwise:{name}")
                    for name in ("add", "scale", "widen", "activate", "sigmoid_gate", "embedding")
                ),
                ("choose_experts", "blazr.nn.kernels.cpu.moe:choose_experts"),
                ("experts", "blazr.nn.kernels.cpu.moe:experts"),
                ("rms_norm", "blazr.nn.kernels.cpu.rows:rms_norm"),
                ("layer_norm", "blazr.nn.kernels.cpu.rows:layer_norm"),
                ("rotate_and_store", "blazr.nn.kernels.cpu.rows:rotate_and_store"),
                ("mamba2", "blazr.nn.kernels.cpu.sequence:mamba2"),
                ("paged_attention", "blazr.nn.kernels.cpu.sequence:paged_attention"),
            )
        )
    },
)
