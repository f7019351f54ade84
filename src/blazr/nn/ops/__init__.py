"""Operations on tensors. Each is a plain torch function that favours reading over speed.

They are the definition of what blazr computes: a faster kernel may replace one, and must agree
with it. Norms, softmax, rotary angles, routing and every recurrence run in float32. Operations
that have kernels are rows of OPS; the others are functions of this package's modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.nn.ops.op import Op

# By module of this package.
_OPS = {
    "matmul": ("linear", "wide_linear", "gated_linear", "linear_heads"),
    "lora": ("lora_shrink", "lora_rows", "lora_expand"),
    "stored": ("decode_floats", "stored_linear"),
    "packed": ("packed_linear", "packed_gated_linear", "packed_rows"),
    "moe": ("choose_experts", "experts"),
    "norm": ("rms_norm", "add_rms_norm", "layer_norm", "gated_norm"),
    "rope": ("rotary_tables", "rotate_and_store"),
    "attention": ("paged_attention",),
    "latent_attention": ("latent_attention",),
    "convolution": ("convolve",),
    "sequences": ("log_rows",),
    "mamba1": ("mamba1",),
    "mamba2": ("mamba2",),
    "mamba3": ("mamba3",),
    "gated_delta": ("gated_delta",),
    "rg_lru": ("rg_lru",),
    "pointwise": (
        "add",
        "scale",
        "widen",
        "activate",
        "sigmoid_gate",
        "embedding",
        "take_columns",
    ),
    "mtp": ("join_previous", "keep_last"),
    "sampling": ("penalize", "likeliest", "best", "draw"),
}
OPS: Table[Op[...]] = Table(
    "operation",
    {},
    lazy={op: f"blazr.nn.ops.{module}:{op}" for module, ops in _OPS.items() for op in ops},
)
