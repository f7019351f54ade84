"""What kernels share: products of tiles, and functions that Triton's interpreter lacks."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def dot(a, b, acc=None, PRECISION: tl.constexpr = "tf32x3"):
    """The product of two tiles, in float32.

    Args:
        a: (M, K).
        b: (K, N), of the same dtype.
        acc: Added to it, (M, N), float32; None for nothing.
        PRECISION: Of float32: three products of TF32, which lose as little as float32 does, or
            ``"tf32"``, one, which suffices beside numbers of 16 bits.
    """
    if INTERPRETED:  # it would multiply the bits of bfloat16 as whole numbers
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Float32 to the nearest number of another dtype."""
    if INTERPRETED and dtype == tl.bfloat16:  # it would cut off what bfloat16 has no room for
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def tanh(x):
    """The hyperbolic tangent; the error is a few 1e-7."""
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def softplus(x):
    """``log(1 + exp(x))``, also where that is far below 1."""
    e = tl.exp(-tl.abs(x))
    # log(1 + e) = 2 atanh(s), whose series is as precise for the smallest e as for 1
    s = e / (2 + e)
    z = s * s
    series = 1 / 7 + z * (1 / 9 + z * (1 / 11 + z / 13))
    series = 1 + z * (1 / 3 + z * (1 / 5 + z * series))
    return tl.maximum(x, 0) + 2 * s * series


@triton.jit
def expm1(x):
    """``exp(x) - 1``, also where that is far below 1."""
    series = 1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320))
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * series))))
    return tl.where(tl.abs(x) < 0.5, series, tl.exp(x) - 1)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """What a name of ``blazr.nn.ops.activation.ACTIVATIONS`` makes of x, in float32."""
    if KIND == "silu":
        x = x * tl.sigmoid(x)
    elif KIND == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        x = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        tl.static_assert(KIND == "relu" or KIND == "relu2")
        x = tl.maximum(x, 0)
        if KIND == "relu2":
            x = x * x
    return x


@triton.jit
def float_of_e4m3(code):
    """The float8 E4M3 numbers, float32, that bytes stand for; every GPU can compute this."""
    # exponent and mantissa are a float16's whose exponent is 8 too small
    bits = (code & 0x7F).to(tl.uint16) << 7
    magnitude = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256
    magnitude = tl.where((code & 0x7F) == 0x7F, float("nan"), magnitude)
    return tl.where((code & 0x80) != 0, -magnitude, magnitude)


@triton.jit
def float_of_e5m2(code):
    """The same of float8 E5M2."""
    return (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def float_of_e8m0(code):
    """The powers of two, float32, that bytes stand for; the least is subnormal, 255 is NaN."""
    bits = code.to(tl.int32) << 23
    bits = tl.where(code == 0, 1 << 22, tl.where(code == 255, 0x7FC00000, bits))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def twice_e2m1(code):
    """The four-bit floats E2M1 that codes stand for, doubled to be whole; int32 to float32."""
    size = code & 7
    size = tl.where(size < 2, size, (2 + (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
    return tl.where(code < 8, size, -size).to(tl.float32)


@triton.jit
def load_stored(rows, is_row, SIZE: tl.constexpr, BLOCK: tl.constexpr, STORED: tl.constexpr, dtype):
    """Rows of numbers as memory stores them; see ``blazr.nn.operands.kv_dtype``.

    Args:
        rows: (N,), pointers to their first elements.
        is_row: (N,), bool; of others nothing is read, and they are zero.
        SIZE: Numbers of a row.
        BLOCK: The same rounded up to a power of two; numbers beyond SIZE are zero.
        STORED: ``"auto"``, ``"q8_0"`` or ``"fp8_e4m3"``.
        dtype: Of the result.

    Returns:
        (N, BLOCK).
    """
    if STORED == "q8_0":  # blocks of a float16 scale and 32 codes; the last may be shorter
        blocks = tl.arange(0, BLOCK // 32)
        scales = rows[:, None] + blocks[None, :] * 34
        has = is_row[:, None] & (blocks * 32 < SIZE)[None, :]
        # a row may begin at an odd address
        low = tl.load(scales, mask=has, other=0).to(tl.uint16)
        high = tl.load(scales + 1, mask=has, other=0).to(tl.uint16)
        scale = (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)
        places = tl.arange(0, 32)
        has_code = has[:, :, None] & ((blocks[:, None] * 32 + places[None, :]) < SIZE)[None, :, :]
        codes = tl.load(scales[:, :, None] + 2 + places[None, None, :], mask=has_code, other=0)
        values = codes.to(tl.int8, bitcast=True).to(tl.float32) * scale[:, :, None]
        return tl.reshape(values, (rows.shape[0], BLOCK)).to(dtype)
    columns = tl.arange(0, BLOCK)
    has = is_row[:, None] & (columns < SIZE)[None, :]
    found = tl.load(rows[:, None] + columns[None, :], mask=has, other=0)
    if STORED == "fp8_e4m3":
        found = float_of_e4m3(found)
    return found.to(dtype)


@triton.jit
def nearest_whole(x):
    """The nearest whole number, the even one of two, of magnitudes below 2**22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def store_stored(rows, is_row, x, SIZE: tl.constexpr, BLOCK: tl.constexpr, STORED: tl.constexpr):
    """Rows of numbers as memory stores them: what :func:`load_stored` reads.

    Args:
        rows: (N,), pointers to where their first elements go.
        is_row: (N,), bool; of others nothing is written.
        x: (N, BLOCK); zero beyond SIZE.
        SIZE: Numbers of a row.
        BLOCK: The same rounded up to a power of two, 32 or more.
        STORED: ``"auto"``, ``"q8_0"`` or ``"fp8_e4m3"``.
    """
    columns = tl.arange(0, BLOCK)
    has = is_row[:, None] & (columns < SIZE)[None, :]
    if STORED == "q8_0":  # see ``_encode_q8_0`` of ``blazr.nn.operands.kv_dtype``
        blocks, places = tl.arange(0, BLOCK // 32), tl.arange(0, 32)
        parts = tl.reshape(x.to(tl.float32), (rows.shape[0], BLOCK // 32, 32))
        scale = tl.div_rn(tl.max(tl.abs(parts), 2), 127.0).to(tl.float16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide == 0, 0, tl.div_rn(1.0, tl.where(wide == 0, 1, wide)))
        codes = nearest_whole(parts * inverse[:, :, None])
        codes = tl.minimum(tl.maximum(codes, -127), 127).to(tl.int8).to(tl.uint8, bitcast=True)
        to = rows[:, None] + blocks[None, :] * 34
        has_block = is_row[:, None] & (blocks * 32 < SIZE)[None, :]
        bits = scale.to(tl.uint16, bitcast=True)  # a row may begin at an odd address
        tl.store(to, (bits & 0xFF).to(tl.uint8), mask=has_block)
        tl.store(to + 1, (bits >> 8).to(tl.uint8), mask=has_block)
        is_code = (blocks[:, None] * 32 + places[None, :]) < SIZE
        has_code = is_row[:, None, None] & is_code[None, :, :]
        tl.store(to[:, :, None] + 2 + places[None, None, :], codes, mask=has_code)
    elif STORED == "fp8_e4m3":
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        sign, size = bits >> 24 & 0x80, bits & 0x7FFFFFFF
        magnitude = tl.minimum(size.to(tl.float32, bitcast=True), 448.0)
        whole = magnitude.to(tl.uint32, bitcast=True)
        # to three bits of mantissa, the even one of two; below 2**-6 in steps of 2**-9
        normal = ((whole + 0x7FFFF + ((whole >> 20) & 1)) >> 20) - (120 << 3)
        small = nearest_whole(tl.minimum(magnitude, 1.0) * 512).to(tl.uint32)
        code = tl.where(magnitude < 0.015625, small, normal)
        code = tl.where(size > 0x7F800000, 0x7F, code)
        tl.store(rows[:, None] + columns[None, :], (code | sign).to(tl.uint8), mask=has)
    else:
        tl.store(rows[:, None] + columns[None, :], x, mask=has)
