"""Operations on tensors. Each is a plain torch function that favours reading over speed.

They are the definition of what blazr computes: a faster kernel may replace one, and must agree
with it. Norms, softmax, rotary angles, routing and every recurrence run in float32. Operations
that have kernels are rows of OPS; the others are functions of this package's modules.
"""

from __future__ import annotations

from blazr.core.table import Table
from blazr.nn.ops.attention import paged_attention
from blazr.nn.ops.convolution import convolve
from blazr.nn.ops.gated_delta import gated_delta
from blazr.nn.ops.latent_attention import latent_attention
from blazr.nn.ops.mamba1 import mamba1
from blazr.nn.ops.mamba2 import mamba2
from blazr.nn.ops.mamba3 import mamba3
from blazr.nn.ops.matmul import gated_linear, linear, linear_heads, wide_linear
from blazr.nn.ops.moe import choose_experts, experts
from blazr.nn.ops.norm import gated_norm, layer_norm, rms_norm
from blazr.nn.ops.op import Op
from blazr.nn.ops.packed import packed_gated_linear, packed_linear, packed_rows
from blazr.nn.ops.pointwise import (
    activate,
    add,
    embedding,
    scale,
    sigmoid_gate,
    take_columns,
    widen,
)
from blazr.nn.ops.rope import rotary_tables, rotate_and_store
from blazr.nn.ops.sampling import best, draw, likeliest
from blazr.nn.ops.sequences import log_rows

_OPS: tuple[Op[...], ...] = (
    linear,
    wide_linear,
    gated_linear,
    linear_heads,
    packed_linear,
    packed_gated_linear,
    packed_rows,
    choose_experts,
    experts,
    rms_norm,
    layer_norm,
    gated_norm,
    rotary_tables,
    rotate_and_store,
    paged_attention,
    latent_attention,
    convolve,
    log_rows,
    mamba1,
    mamba2,
    mamba3,
    gated_delta,
    add,
    scale,
    widen,
    activate,
    sigmoid_gate,
    embedding,
    take_columns,
    likeliest,
    best,
    draw,
)
OPS: Table[Op[...]] = Table("operation", {op.name: op for op in _OPS})
