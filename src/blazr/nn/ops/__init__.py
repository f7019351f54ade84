"""Operations on tensors. Each is a plain torch function that favours reading over speed.

They are the definition of what blazr computes: a faster kernel may replace one, and must agree
with it. Norms, softmax, rotary angles, routing and every recurrence run in float32. Operations
that have kernels are rows of OPS; the others are functions of this package's modules.
"""

from __future__ import annotations

from blazr.core.table import Table
from blazr.nn.ops.matmul import gated_linear, linear, linear_heads, wide_linear
from blazr.nn.ops.moe import choose_experts, experts
from blazr.nn.ops.norm import layer_norm, rms_norm
from blazr.nn.ops.op import Op
from blazr.nn.ops.packed import packed_gated_linear, packed_linear, packed_rows
from blazr.nn.ops.pointwise import activate, add, embedding, scale, sigmoid_gate, take_pieces, widen
from blazr.nn.ops.rope import rotary_tables
from blazr.nn.ops.sampling import best, draw, likeliest

OPS: Table[Op[...]] = Table(
    "operation",
    {
        op.name: op
        for op in (
            linear,
            wide_linear,
            gated_linear,
            linear_heads,
            packed_linear,
            packed_gated_linear,
            packed_rows,
            *(choose_experts, experts),
            *(rms_norm, layer_norm, rotary_tables),
            *(add, scale, widen, activate, sigmoid_gate, embedding, take_pieces),
            *(likeliest, best, draw),
        )
    },
)
