"""What blocks of GGML types stand for, in plain formulas.

Every function takes (N, bytes of a block) uint8 and gives (N, numbers of a block) float64. Source:
the comments of ``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from blazr.bench.reference.refusal import NoReferenceError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

# Of Ollama's first files with MXFP4 (fs/ggml/type.go): neighbours share a byte.
OLLAMA_MXFP4 = 4
NVFP4 = 40
_NON_LINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], float
)
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _integers(data: Bytes, kind: str) -> NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(data).view(kind)


def _floats(kind: str, data: Bytes) -> Floats:
    """Floats as they are."""
    return np.ascontiguousarray(data).view(kind).astype(float)


def bf16(data: Bytes) -> Floats:
    """The upper halves of float32."""
    return (_integers(data, "<u2").astype("<u4") << 16).view("<f4").astype(float)


def _half(data: Bytes, at: int) -> Floats:
    """The float16 at a byte, (N, 1)."""
    return _floats("<f2", data[:, at : at + 2])


def _low_high(data: Bytes) -> Bytes:
    """The low nibbles of all bytes, then the high ones."""
    found: Bytes = np.concatenate((data & 15, data >> 4), 1)
    return found


def _bits(data: Bytes) -> Bytes:
    """32 bits of a word, the lowest first."""
    return np.unpackbits(data, axis=1, bitorder="little")


def q4_0(data: Bytes) -> Floats:
    """Four bits less 8, and a scale."""
    return _half(data, 0) * (_low_high(data[:, 2:]).astype(float) - 8)


def q4_1(data: Bytes) -> Floats:
    """Four bits, a scale and a minimum."""
    return _half(data, 0) * _low_high(data[:, 4:]) + _half(data, 2)


def q5_0(data: Bytes) -> Floats:
    """Five bits less 16, and a scale."""
    codes = _low_high(data[:, 6:]) + 16 * _bits(data[:, 2:6])
    return _half(data, 0) * (codes.astype(float) - 16)


def q5_1(data: Bytes) -> Floats:
    """Five bits, a scale and a minimum."""
    codes = _low_high(data[:, 8:]) + 16 * _bits(data[:, 4:8])
    return _half(data, 0) * codes + _half(data, 2)


def q8_0(data: Bytes) -> Floats:
    """Eight bits with a sign, and a scale."""
    return _half(data, 0) * data[:, 2:].view(np.int8)


def _by_32(data: Bytes, bits: int) -> Bytes:
    """So many bits each: of 32 bytes the lowest, the next, ..., then of the next 32."""
    runs = data.reshape(len(data), -1, 1, 32)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((runs >> shifts) & (2**bits - 1)).astype(np.uint8).reshape(len(data), -1)


def _each(values: Floats, count: int) -> Floats:
    return np.repeat(values, count, 1)


def q2_k(data: Bytes) -> Floats:
    """Two bits; scales and minima of 16."""
    scale = data[:, :16] & 15
    least = data[:, :16] >> 4
    codes = _by_32(data[:, 16:80], 2)
    return _each(_half(data, 80) * scale, 16) * codes - _each(_half(data, 82) * least, 16)


def q3_k(data: Bytes) -> Floats:
    """Three bits less 4; scales of 16."""
    low = _low_high(data[:, 96:104])  # 16 of four bits
    high = np.concatenate([(data[:, 104:108] >> shift) & 3 for shift in (0, 2, 4, 6)], 1)
    scale = (low + 16 * high).astype(float) - 32
    third = np.concatenate([(data[:, :32] >> bit) & 1 for bit in range(8)], 1)
    codes = _by_32(data[:, 32:96], 2) + 4.0 * third - 4
    return _each(_half(data, 108) * scale, 16) * codes


def _six_bits(data: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits in twelve bytes."""
    first, second, third = (data[:, low : low + 4] for low in (0, 4, 8))
    scales = np.concatenate((first & 63, (third & 15) + ((first >> 6) << 4)), 1)
    minima = np.concatenate((second & 63, (third >> 4) + ((second >> 6) << 4)), 1)
    return scales.astype(float), minima.astype(float)


def q4_k(data: Bytes) -> Floats:
    """Four bits; scales and minima of 32."""
    scales, minima = _six_bits(data[:, 4:16])
    codes = _by_32(data[:, 16:], 4)
    return _each(_half(data, 0) * scales, 32) * codes - _each(_half(data, 2) * minima, 32)


def q5_k(data: Bytes) -> Floats:
    """Five bits; scales and minima of 32."""
    scales, minima = _six_bits(data[:, 4:16])
    fifth = np.concatenate([(data[:, 16:48] >> bit) & 1 for bit in range(8)], 1)
    codes = _by_32(data[:, 48:], 4) + 16 * fifth
    return _each(_half(data, 0) * scales, 32) * codes - _each(_half(data, 2) * minima, 32)


def q6_k(data: Bytes) -> Floats:
    """Six bits less 32; scales of 16."""
    halves = []
    for n in (0, 1):  # 128 numbers each
        low, high = data[:, 64 * n : 64 * n + 64], data[:, 128 + 32 * n : 160 + 32 * n]
        for j in range(4):
            nibble = (low[:, 32 * (j % 2) : 32 * (j % 2) + 32] >> (4 * (j // 2))) & 15
            halves.append(nibble + 16 * ((high >> (2 * j)) & 3))
    codes = np.concatenate(halves, 1).astype(float) - 32
    return _each(_half(data, 208) * data[:, 192:208].view(np.int8), 16) * codes


def iq4_nl(data: Bytes) -> Floats:
    """Four bits that choose from a table, and a scale."""
    return _half(data, 0) * _NON_LINEAR[_low_high(data[:, 2:])]


def iq4_xs(data: Bytes) -> Floats:
    """The same table; scales of 32."""
    high = _integers(data[:, 2:4], "<u2").astype(int)
    low = np.stack((data[:, 4:8] & 15, data[:, 4:8] >> 4), -1).reshape(len(data), 8)
    scales = low + 16 * ((high >> np.arange(0, 16, 2)) & 3) - 32.0
    runs = [_low_high(data[:, 8 + 16 * i : 24 + 16 * i]) for i in range(8)]
    return _each(_half(data, 0) * scales, 32) * _NON_LINEAR[np.concatenate(runs, 1)]


def tq1_0(data: Bytes) -> Floats:
    """Five digits to the base of three in a byte, the highest first."""

    def digits(part: Bytes, count: int) -> Bytes:
        each = [part * np.uint8(3**n) for n in range(count)]  # the overflow is meant
        return np.concatenate([(e.astype(np.uint16) * 3 >> 8).astype(np.uint8) for e in each], 1)

    parts = (digits(data[:, :32], 5), digits(data[:, 32:48], 5), digits(data[:, 48:52], 4))
    return _half(data, 52) * (np.concatenate(parts, 1) - 1.0)


def tq2_0(data: Bytes) -> Floats:
    """Two bits less 1, and a scale."""
    return _half(data, 64) * (_by_32(data[:, :64], 2) - 1.0)


def mxfp4(data: Bytes) -> Floats:
    """Four-bit floats and an exponent."""
    exponent = data[:, :1].astype(float) - 127
    return np.exp2(exponent) * FLOAT4[_low_high(data[:, 1:])]


def mxfp4_in_pairs(data: Bytes) -> Floats:
    """The same, neighbours in one byte."""
    pairs = np.stack((data[:, 1:] & 15, data[:, 1:] >> 4), -1)
    return np.exp2(data[:, :1].astype(float) - 127) * FLOAT4[pairs.reshape(len(data), -1)]


def nvfp4(data: Bytes) -> Floats:
    """Four-bit floats; eight-bit scales of 16."""
    exponent, mantissa = (data[:, :4] >> 3) & 15, data[:, :4] & 7
    normal = (1 + mantissa / 8) * np.exp2(exponent.astype(float) - 7)
    scale = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    scale = np.where((data[:, :4] & 127) == 127, 0, scale)
    runs = [_low_high(data[:, 4 + 8 * i : 12 + 8 * i]) for i in range(4)]
    return _each(scale, 16) * FLOAT4[np.concatenate(runs, 1)]


def q1_0(data: Bytes) -> Floats:
    """A sign for each, and a scale."""
    return _half(data, 0) * (2.0 * np.unpackbits(data[:, 2:], axis=1, bitorder="little") - 1)


def q2_0(data: Bytes) -> Floats:
    """Two bits less 1, neighbours in one byte, and a scale."""
    codes = (data[:, 2:, None] >> np.arange(0, 8, 2)) & 3
    return _half(data, 0) * (codes.reshape(len(data), -1) - 1.0)


# By the number in files: name, numbers of a block, its bytes, and what it stands for; without that,
# the gguf package is asked, which has the tables of codes.
TYPES: dict[int, tuple[str, int, int, Callable[[Bytes], Floats] | None]] = {
    0: ("F32", 1, 4, partial(_floats, "<f4")),
    1: ("F16", 1, 2, partial(_floats, "<f2")),
    2: ("Q4_0", 32, 18, q4_0),
    3: ("Q4_1", 32, 20, q4_1),
    OLLAMA_MXFP4: ("MXFP4 in pairs", 32, 17, mxfp4_in_pairs),
    6: ("Q5_0", 32, 22, q5_0),
    7: ("Q5_1", 32, 24, q5_1),
    8: ("Q8_0", 32, 34, q8_0),
    10: ("Q2_K", 256, 84, q2_k),
    11: ("Q3_K", 256, 110, q3_k),
    12: ("Q4_K", 256, 144, q4_k),
    13: ("Q5_K", 256, 176, q5_k),
    14: ("Q6_K", 256, 210, q6_k),
    16: ("IQ2_XXS", 256, 66, None),
    17: ("IQ2_XS", 256, 74, None),
    18: ("IQ3_XXS", 256, 98, None),
    19: ("IQ1_S", 256, 50, None),
    20: ("IQ4_NL", 32, 18, iq4_nl),
    21: ("IQ3_S", 256, 110, None),
    22: ("IQ2_S", 256, 82, None),
    23: ("IQ4_XS", 256, 136, iq4_xs),
    28: ("F64", 1, 8, partial(_floats, "<f8")),
    29: ("IQ1_M", 256, 56, None),
    30: ("BF16", 1, 2, bf16),
    34: ("TQ1_0", 256, 54, tq1_0),
    35: ("TQ2_0", 256, 66, tq2_0),
    39: ("MXFP4", 32, 17, mxfp4),
    NVFP4: ("NVFP4", 64, 36, nvfp4),
    41: ("Q1_0", 128, 18, q1_0),
    42: ("Q2_0", 64, 18, q2_0),
}


def numbers(number: int, data: Bytes) -> Floats:
    """What blocks of a type stand for: (N, bytes) to (N, numbers).

    Raises:
        NoReferenceError: These blocks need tables that only the gguf package brings, which is not
            installed.
    """
    name, _, _, decode = TYPES[number]
    if decode is not None:
        return decode(data)
    if find_spec("gguf") is None:
        raise NoReferenceError(f"blocks of {name} without the gguf package (pip install gguf)")
    import gguf

    kind = gguf.GGMLQuantizationType(number)
    return gguf.quants.dequantize(np.ascontiguousarray(data), kind).astype(float)
