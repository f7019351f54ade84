"""Faster forms of operations. Each row may stand in for an op's reference, and must agree with it.

Kernels know tensors and their own libraries; only ``blazr.nn.ops`` calls them.
"""

from __future__ import annotations

import torch

from blazr.core.table import Table
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.kernels.triton import available

# By module of ``blazr.nn.kernels.cpu``, its functions that stand in for the op of their name.
_CPU = {
    "matmul": ("linear", "wide_linear", "gated_linear", "linear_heads"),
    "matmul_q": ("packed_linear", "packed_gated_linear", "packed_rows"),
    "lora": ("lora_shrink", "lora_rows", "lora_expand"),
    "pointwise": (
        "add",
        "scale",
        "widen",
        "activate",
        "sigmoid_gate",
        "embedding",
        "take_columns",
    ),
    "blocks": ("pack", "encode_q4_k"),
    "stored": ("decode_floats",),
    "moe": ("choose_experts", "experts"),
    "rows": ("rms_norm", "layer_norm", "rotary_tables", "rotate_and_store"),
    "attention": ("paged_attention", "latent_attention"),
    "recurrent": (
        "convolve",
        "log_rows",
        "mamba1",
        "mamba2",
        "mamba3",
        "gated_delta",
        "rg_lru",
        "gated_norm",
    ),
    "mtp": ("join_previous", "keep_last"),
    "sampling": ("likeliest", "best", "draw"),
}
# Operations whose kernels for GPUs run where exactness is asked for; else they are cuBLAS's.
_EXACT = ("linear", "wide_linear", "gated_linear", "linear_heads")
# The same as _CPU of ``blazr.nn.kernels.triton``.
_TRITON = {
    "attention": ("paged_attention", "latent_attention"),
    "products": ("stored_linear", *_EXACT),
    "gated_delta": ("gated_delta",),
    "mamba2": ("mamba2",),
    "moe": ("experts",),
    "rows": ("rms_norm", "add_rms_norm", "layer_norm", "rotate_and_store"),
    "sampling": ("penalize", "likeliest", "best", "draw"),
    "scans": ("mamba1", "mamba3", "rg_lru"),
    "sequences": ("convolve", "log_rows", "gated_norm"),
}
_DTYPES = {
    **dict.fromkeys(("rotary_tables", "penalize", "likeliest", "best", "draw"), (torch.float32,)),
    "encode_q4_k": (torch.float32,),
    "pack": (torch.uint8,),
}
_TRITON_DTYPES = _DTYPES | {"mamba2": (torch.bfloat16, torch.float16)}


KERNELS: Table[Kernel] = Table(
    "kernel",
    {
        f"{package}.{op}": Kernel(
            op,
            device,
            dtypes.get(op, tuple(compiled.DTYPES)),
            f"blazr.nn.kernels.{package}.{module}:{op}",
            support.missing,
            support.in_use,
            is_for_exact=device == "cuda" and op in _EXACT,
        )
        for package, device, support, dtypes, modules in (
            ("cpu", "cpu", compiled, _DTYPES, _CPU),
            ("triton", "cuda", available, _TRITON_DTYPES, _TRITON),
        )
        for module, ops in modules.items()
        for op in ops
    },
)
