"""GGML_TYPES: how GGUF files store numbers, a block at a time. Importing it imports no torch.

Types that hold activations only (Q8_1, Q8_K) are in no file, and not here.
"""

from __future__ import annotations

from blazr.core.table import Table
from blazr.nn.operands.packing import BlockType

_MODULE = "blazr.nn.quant.gguf."
_LEGACY, _K, _IQ = _MODULE + "legacy:", _MODULE + "kquants:", _MODULE + "iquants:"

GGML_TYPES: Table[BlockType] = Table(
    "GGML type",
    {
        row.name: row
        for row in (
            # name, number in files, elements per block, bytes per block, decoder
            BlockType("F32", 0, 1, 4, _LEGACY + "f32"),
            BlockType("F16", 1, 1, 2, _LEGACY + "f16"),
            BlockType("Q4_0", 2, 32, 18, _LEGACY + "q4_0"),
            BlockType("Q4_1", 3, 32, 20, _LEGACY + "q4_1"),
            BlockType("Q5_0", 6, 32, 22, _LEGACY + "q5_0"),
            BlockType("Q5_1", 7, 32, 24, _LEGACY + "q5_1"),
            BlockType("Q8_0", 8, 32, 34, _LEGACY + "q8_0"),
            BlockType("Q2_K", 10, 256, 84, _K + "q2_k"),
            BlockType("Q3_K", 11, 256, 110, _K + "q3_k"),
            BlockType("Q4_K", 12, 256, 144, _K + "q4_k"),
            BlockType("Q5_K", 13, 256, 176, _K + "q5_k"),
            BlockType("Q6_K", 14, 256, 210, _K + "q6_k"),
            BlockType("IQ2_XXS", 16, 256, 66, _IQ + "iq2_xxs"),
            BlockType("IQ2_XS", 17, 256, 74, _IQ + "iq2_xs"),
            BlockType("IQ3_XXS", 18, 256, 98, _IQ + "iq3_xxs"),
            BlockType("IQ1_S", 19, 256, 50, _IQ + "iq1_s"),
            BlockType("IQ4_NL", 20, 32, 18, _IQ + "iq4_nl"),
            BlockType("IQ3_S", 21, 256, 110, _IQ + "iq3_s"),
            BlockType("IQ2_S", 22, 256, 82, _IQ + "iq2_s"),
            BlockType("IQ4_XS", 23, 256, 136, _IQ + "iq4_xs"),
            BlockType("IQ1_M", 29, 256, 56, _IQ + "iq1_m"),
            BlockType("BF16", 30, 1, 2, _LEGACY + "bf16"),
            BlockType("TQ1_0", 34, 256, 54, _LEGACY + "tq1_0"),
            BlockType("TQ2_0", 35, 256, 66, _LEGACY + "tq2_0"),
            BlockType("MXFP4", 39, 32, 17, _LEGACY + "mxfp4"),
            BlockType("NVFP4", 40, 64, 36, _LEGACY + "nvfp4"),
            BlockType("Q1_0", 41, 128, 18, _LEGACY + "q1_0"),
            BlockType("Q2_0", 42, 64, 18, _LEGACY + "q2_0"),
        )
    },
)
