"""Steps of released models, as the kernels for GPUs are compiled for: their arguments, and costs.

Tensors are on torch's ``meta`` device and take no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.operands.attention import AttentionParams, LatentRows, Latents, Pages, Rotation
from blazr.nn.operands.experts import ExpertMlps
from blazr.nn.operands.floats import ScaledFloats, StoredMatrix
from blazr.nn.operands.packing import Blocks, ShiftedBlocks
from blazr.nn.operands.recurrent import (
    DeltaRows,
    DeltaWeights,
    Filter,
    GatedNorm,
    Mamba1Rows,
    Mamba1Weights,
    Mamba2Memory,
    Mamba2Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    RgLruRows,
    RgLruWeights,
)
from blazr.nn.operands.step import GRID, Carried, Span, StepTable, Window
from blazr.nn.quant.gguf import GGML_TYPES

_BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Step:
    """What an operation computes at once.

    Args:
        name: For people.
        arguments: Makes what it takes.
        nbytes: Of all that is read and written, each once.
        flops: Of products.
        most_stack: Bytes of local memory that a thread may use.
        has_large_products: Whether they are to be wgmma's on GPUs that have it.
    """

    name: str
    arguments: Callable[[], tuple[object, ...]]
    nbytes: float
    flops: float
    most_stack: int = 0
    has_large_products: bool = False


def _empty(*shape: int, dtype: torch.dtype = _BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def step_of(count: int, length: int, start: int) -> StepTable:
    """``count`` sequences that compute ``length`` tokens each, behind ``start`` in memory."""
    pages = -(-(start + length) // GRID)
    spans = tuple(
        Span(index * length, length, start, start % GRID, (), index, index)
        for index in range(count)
    )
    tables = torch.zeros(count, pages, dtype=torch.int64)
    return StepTable(spans, tables, count if length == 1 else 0)


def _attention(
    name: str,
    heads: tuple[int, int],
    size: int,
    step: tuple[int, int, int],
    *,
    more: int = 0,
    dtype: torch.dtype = _BF16,
    has_large_products: bool = True,
    most_stack: int = 0,
) -> Step:
    """Heads of queries and of keys; sequences, tokens of each, and tokens before them."""
    (queries, kv_heads), (count, length, start) = heads, step

    def pages(width: int) -> Tensor:
        return _empty(100, kv_heads, GRID, width, dtype=dtype).movedim(-2, 1)

    def arguments() -> tuple[object, ...]:
        keys = pages(size)
        attended = Pages(
            keys=keys,
            more_keys=pages(more) if more else None,
            values=keys if more else pages(size),
            params=AttentionParams(scale=0.1),
        )
        q = _empty(count * length, queries, size + more, dtype=dtype)
        return q, attended, step_of(*step)

    seen = count * length * (start + (length + 1) / 2)  # of all queries
    width = size + more if more else 2 * size
    nbytes = count * (start + length) * kv_heads * width + count * length * queries * (
        2 * size + more
    )
    flops = 2 * seen * queries * (2 * size + more)
    return Step(name, arguments, nbytes * dtype.itemsize, flops, most_stack, has_large_products)


# A hybrid of 1.5 billion parameters: heads, their width, state, taps.
_HEADS, _WIDTH, _STATE, _TAPS = 64, 64, 128, 4
_INNER = _HEADS * _WIDTH
_CONV = _INNER + 2 * _STATE


def _numbers(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.float32)


def _mamba2(name: str, count: int, length: int, start: int) -> Step:
    weights = Mamba2Weights(
        heads=_HEADS,
        head_dim=_WIDTH,
        state_size=_STATE,
        groups=1,
        conv=Filter(_numbers(_TAPS, _CONV), _numbers(_CONV)),
        dt_bias=_numbers(_HEADS),
        a=_numbers(_HEADS),
        d=_numbers(_HEADS),
        norm=GatedNorm("gate_first", _numbers(_INNER), 1e-5),
        dt_limits=(0.001, 0.1),
        multipliers=None,
    )

    def arguments() -> tuple[object, ...]:
        memory = Mamba2Memory(
            states=_numbers(count + 1, _HEADS, _WIDTH, _STATE),
            conv_states=_empty(count + 1, _TAPS - 1, _CONV),
            log_raw=_empty(count, GRID, _CONV),
            log_xb=_empty(count, GRID, _INNER + _STATE),
            log_dt=_numbers(count, GRID, _HEADS),
        )
        projected = _empty(count * length, _INNER + _CONV + _HEADS)
        return projected, weights, memory, step_of(count, length, start)

    tokens, logged = count * length, start % GRID
    state = 4 * _INNER * _STATE
    rows = 2 * (2 * _INNER + _CONV + _HEADS) * tokens
    logs = (2 * (_INNER + _STATE) + 4 * _HEADS) * count * logged
    seen = (logged + 1) if length == 1 else GRID / 2  # rows of an interval that a token sees
    flops = 2 * tokens * (seen * (_STATE * _HEADS + _INNER) + 2 * _INNER * _STATE)
    return Step(name, arguments, count * state + rows + logs, flops, 320, length > 1)


def _convolution(name: str, tokens: int, op: str) -> Step:
    """Or only its log."""

    def arguments() -> tuple[object, ...]:
        x, log, table = _empty(tokens, _CONV), _empty(1, GRID, _CONV), step_of(1, tokens, 0)
        if op == "log_rows":
            return x, log, table
        window = Window(_empty(2, _TAPS - 1, _CONV), log)
        return x, Filter(_numbers(_TAPS, _CONV), _numbers(_CONV)), window, table

    return Step(name, arguments, 2 * 2 * tokens * _CONV, 0)


def _gated_norm(name: str, tokens: int) -> Step:
    def arguments() -> tuple[object, ...]:
        norm = GatedNorm("gate_first", _numbers(_INNER), 1e-5)
        return _empty(tokens, _INNER), _empty(tokens, _INNER), norm

    return Step(name, arguments, 3 * 2 * tokens * _INNER, 0)


def _gated_delta(
    name: str,
    sizes: tuple[int, int, int, int],
    step: tuple[int, int, int],
    *,
    by_channel: bool = False,
    least: float = 0.0,
    dtype: torch.dtype = _BF16,
    most_stack: int = 0,
) -> Step:
    """Heads of keys and of values, and their widths; sequences, tokens of each, and before them."""
    (key_heads, heads, keys, values), (count, length, _) = sizes, step
    decays = heads * keys if by_channel else heads
    norm = GatedNorm("norm_sigmoid" if by_channel else "norm_first", _numbers(values), 1e-6)
    weights = DeltaWeights(
        heads=heads,
        key_heads=key_heads,
        dt_bias=_numbers(decays),
        a=_numbers(heads),
        norm=norm,
        least=least,
    )

    def arguments() -> tuple[object, ...]:
        def rows(width: int) -> Tensor:
            return _empty(count * length, width, dtype=dtype)

        q, k, v = rows(2 * key_heads * keys + heads * values).split(
            (key_heads * keys, key_heads * keys, heads * values), -1
        )
        made = DeltaRows(q=q, k=k, decay=rows(decays), beta=rows(heads), gate=rows(heads * values))
        shape = (count + 1, heads, keys, values)
        return v, made, weights, Carried(_numbers(*shape), _numbers(*shape)), step_of(*step)

    tokens = count * length
    state = 2 * 4 * count * heads * keys * values  # read and written
    rows = tokens * (2 * key_heads * keys + 3 * heads * values + decays + heads) * dtype.itemsize
    among = 0 if length == 1 else GRID / 2  # rows of an interval that a token sees
    flops = 2 * tokens * heads * (3 * keys * values + among * (2 * keys + 2 * values))
    return Step(name, arguments, state + rows, flops, most_stack, length > 1)


def _norm(name: str, op: str, tokens: int, size: int) -> Step:
    def arguments() -> tuple[object, ...]:
        weights = [_empty(size)] * (2 if op == "layer_norm" else 1)
        rows = [_empty(tokens, size)] * (2 if op == "add_rms_norm" else 1)
        return *rows, *weights, 1e-5

    return Step(name, arguments, 2 * (4 if op == "add_rms_norm" else 2) * tokens * size, 0)


def _rotation(tokens: int, pairs: int) -> Rotation:
    slots = torch.empty(tokens, dtype=torch.int64, device="meta")
    cos, sin = _numbers(2, tokens, pairs)
    return Rotation(cos=cos, sin=sin, interleaved=False, slots=slots)


def _rotate(name: str, tokens: int) -> Step:
    heads, kv_heads, size = 32, 8, 128

    def arguments() -> tuple[object, ...]:
        qkv = _empty(tokens, heads + 2 * kv_heads, size)
        pages = (_empty(100, kv_heads, GRID, size).movedim(-2, 1) for _ in range(2))
        rotation = _rotation(tokens, size // 2)
        return *qkv.split((heads, kv_heads, kv_heads), 1), rotation, *pages

    nbytes = 2 * 2 * tokens * (heads + 2 * kv_heads) * size + 4 * tokens * size
    return Step(name, arguments, nbytes, 0)


def _latent_attention(name: str, step: tuple[int, int, int], most_stack: int = 0) -> Step:
    """Of DeepSeek-V2-Lite; its products with the upward matrices are cuBLAS's."""
    heads, keys, values, latent, turned = 16, 128, 128, 512, 64
    count, length, start = step
    tokens = count * length

    def arguments() -> tuple[object, ...]:
        memory = Latents(
            latents=_empty(100, GRID, latent),
            keys=_empty(100, GRID, turned),
            k_up=_empty(heads, latent, keys),
            v_up=_empty(heads, values, latent),
            params=AttentionParams(scale=0.1),
        )
        rows = LatentRows(
            q_rope=_empty(tokens, heads, turned),
            k_rope=_empty(tokens, 1, turned),
            latent=_empty(tokens, latent),
        )
        q = _empty(tokens, heads, keys)
        return q, rows, memory, _rotation(tokens, turned // 2), step_of(*step)

    seen = tokens * (start + (length + 1) / 2)
    weights = heads * latent * (keys + values)
    nbytes = 2 * (count * (start + length) * (latent + turned) + weights)
    nbytes += 2 * tokens * heads * (keys + turned + values)
    flops = 2 * (seen * heads * (2 * latent + turned) + tokens * weights)
    return Step(name, arguments, nbytes, flops, most_stack, has_large_products=True)


def _mamba1(name: str, inner: int, states: int, step: tuple[int, int, int]) -> Step:
    count, length, _ = step
    tokens = count * length

    def arguments() -> tuple[object, ...]:
        u, dt, gate = (_empty(tokens, inner) for _ in range(3))
        b, c = _empty(tokens, 2 * states).chunk(2, -1)
        weights = Mamba1Weights(_numbers(inner, states), _numbers(inner), 0.0)
        state = Carried(*(_numbers(count + 1, inner, states) for _ in range(2)))
        return u, Mamba1Rows(dt=dt, b=b, c=c, gate=gate), weights, state, step_of(*step)

    nbytes = 2 * 4 * count * inner * states + 2 * tokens * (4 * inner + 2 * states)
    return Step(name, arguments, nbytes, 0)


def _mamba3(name: str, step: tuple[int, int, int]) -> Step:
    count, length, _ = step
    tokens = count * length

    def arguments() -> tuple[object, ...]:
        x, b, c = _empty(tokens, _CONV).split((_INNER, _STATE, _STATE), -1)
        dt, mix = (_empty(tokens, _HEADS) for _ in range(2))
        theta = _empty(tokens, _HEADS * _STATE // 2)
        weights = Mamba3Weights(
            groups=1,
            norm=_numbers(_STATE),
            eps=1e-5,
            b_bias=_numbers(_HEADS, _STATE),
            c_bias=_numbers(_HEADS, _STATE),
            dt_bias=_numbers(_HEADS),
            a=_numbers(_HEADS),
            d=_numbers(_HEADS),
            dt_limits=(0.001, 0.1),
            silu=True,
        )

        def carried(*shape: int) -> Carried:
            return Carried(*(_numbers(count + 1, *shape) for _ in range(2)))

        memory = Mamba3Memory(
            state=carried(_HEADS, _WIDTH, _STATE),
            x=carried(_HEADS, _WIDTH),
            b=carried(_HEADS, _STATE),
            angle=carried(_HEADS, _STATE // 2),
        )
        rows = Mamba3Rows(b=b, c=c, dt=dt, mix=mix, theta=theta)
        return x, rows, weights, memory, step_of(*step)

    nbytes = 2 * 4 * count * _INNER * _STATE
    nbytes += 2 * tokens * (2 * _INNER + 2 * _STATE + 2 * _HEADS + _HEADS * _STATE // 2)
    # sine and cosine of large angles take some
    return Step(name, arguments, nbytes, 0, most_stack=32)


def _rg_lru(name: str, width: int, step: tuple[int, int, int]) -> Step:
    count, length, _ = step
    tokens = count * length

    def arguments() -> tuple[object, ...]:
        x, *gates = (_empty(tokens, width) for _ in range(3))
        weights = RgLruWeights(*(_numbers(width) for _ in range(3)))
        state = Carried(*(_numbers(count + 1, width) for _ in range(2)))
        return x, RgLruRows(*gates), weights, state, step_of(*step)

    return Step(name, arguments, 2 * 4 * count * width + 2 * tokens * 4 * width, 0)


def _stored(kind: str, *shape: int) -> Tensor | StoredMatrix:
    """A weight in one of GGML's types, of another format, or plain.

    ``"GPTQ"`` has columns in another order; the others are ``"AWQ"``, ``"FP8"``, ``"NVFP4"`` and
    ``"NF4"``.
    """
    *stack, rows, columns = shape
    if kind in ("AWQ", "GPTQ"):
        blocks = _stored("Q4_0", *shape)
        assert isinstance(blocks, Blocks)
        order = _empty(*stack, columns, dtype=torch.int64) if kind == "GPTQ" else None
        return ShiftedBlocks(blocks, None, _numbers(*stack, rows, columns // 128), order)
    if kind == "FP8":
        scales = _numbers(*stack, -(-rows // 128), -(-columns // 128))
        return ScaledFloats(_empty(*shape, dtype=torch.float8_e4m3fn), scales, (128, 128))
    if kind == "NVFP4":
        numbers = _empty(*stack, rows, columns // 2, dtype=torch.uint8)
        scales = _empty(*stack, rows, columns // 16, dtype=torch.float8_e4m3fn)
        return ScaledFloats(numbers, scales, (1, 16), _numbers(*stack))
    if kind == "NF4":
        numbers = _empty(*stack, rows, columns // 2, dtype=torch.uint8)
        scales = _numbers(*stack, rows, columns // 64)
        return ScaledFloats(numbers, scales, (1, 64), table=_numbers(16))
    if kind in GGML_TYPES:
        size = *stack, rows, GGML_TYPES[kind].row_bytes(columns)
        return Blocks(GGML_TYPES[kind], _empty(*size, dtype=torch.uint8))
    return _empty(*shape, dtype=getattr(torch, kind))


def _nbytes(kind: str, *shape: int) -> float:
    weight = _stored(kind, *shape)
    if isinstance(weight, ScaledFloats):
        return sum(each.nbytes for each in weight.tensors())
    if isinstance(weight, ShiftedBlocks):
        each = weight.inner.blocks, weight.shift, weight.order
        return sum(one.nbytes for one in each if one is not None)
    return (weight.blocks if isinstance(weight, Blocks) else weight).nbytes


def _experts(
    name: str, sizes: tuple[int, int, int, int], tokens: int, kind: str = "bfloat16"
) -> Step:
    """Experts, those of a token, and their widths; how matrices are stored."""
    count, top, size, inner = sizes
    dtype = torch.float32 if kind == "float32" else _BF16

    def arguments() -> tuple[object, ...]:
        gate, up = (_stored(kind, count, inner, size) for _ in range(2))
        mlps = ExpertMlps(gate=gate, up=up, down=_stored(kind, count, size, inner))
        chosen = torch.empty(tokens, top, dtype=torch.int64, device="meta")
        return _empty(tokens, size, dtype=dtype), _numbers(tokens, top), chosen, mlps

    pairs = tokens * top
    read = count * (1 - (1 - top / count) ** tokens)  # experts that are expected to be chosen
    nbytes = read * 3 * _nbytes(kind, size, inner)
    nbytes += dtype.itemsize * pairs * (2 * size + 2 * inner)
    flops = 2 * pairs * 3 * size * inner
    most_stack = 64 if dtype == torch.float32 else 0
    return Step(name, arguments, nbytes, flops, most_stack, tokens > 1)


def _product(kind: str, name: str, rows: int, op: str = "stored_linear") -> Step:
    """The down projection of Llama-3-8B, or the two before it."""
    columns, size, count = (4096, 14336, 1) if op != "gated_linear" else (14336, 4096, 2)

    def arguments() -> tuple[object, ...]:
        return _empty(rows, size), *(_stored(kind, columns, size) for _ in range(count))

    nbytes = count * _nbytes(kind, columns, size) + 2 * rows * (size + columns)
    label = name if kind == "bfloat16" else f"{kind}, {name}"
    flops = 2 * rows * size * columns * count
    return Step(label, arguments, nbytes, flops, has_large_products=op != "stored_linear")


def _heads_product(name: str, rows: int) -> Step:
    """Queries of DeepSeek-V2-Lite to its latents."""
    heads, keys, latent = 16, 128, 512

    def arguments() -> tuple[object, ...]:
        return _empty(rows, heads, keys), _empty(heads, latent, keys)

    nbytes = 2 * heads * (keys * latent + rows * (keys + latent))
    return Step(name, arguments, nbytes, 2 * rows * heads * keys * latent)


def _choice(name: str, op: str, rows: int) -> Step:
    """Of a vocabulary of 128,256."""

    def arguments() -> tuple[object, ...]:
        scores = _numbers(rows, 128_256)
        if op == "penalize":
            ids, ends = (
                torch.empty(rows, count, dtype=torch.int64, device="meta") for count in (4096, 2)
            )
            return scores, ids, ends, _numbers(rows, 3)
        if op == "draw":
            return scores, torch.empty(rows, 5, dtype=torch.float64, device="meta")
        return (scores, 20) if op == "best" else (scores,)

    nbytes = (2 if op == "penalize" else 1) * 4 * rows * 128_256
    return Step(name, arguments, nbytes, 0)


_QWEN_EXPERTS, _MIXTRAL = (256, 8, 2048, 512), (8, 2, 4096, 14336)
_QWEN3_EXPERTS, _GPT_OSS = (128, 8, 2048, 768), (32, 4, 2880, 2880)
_QWEN, _KIMI, _OLMO = (16, 32, 128, 128), (32, 32, 128, 128), (30, 30, 96, 192)

STEPS: dict[str, tuple[Step, ...]] = {
    "paged_attention": (
        _attention("Llama-3.2-1B, 1 reply after 1,024", (32, 8), 64, (1, 1, 1023)),
        _attention("Llama-3.2-1B, 256 replies after 1,024", (32, 8), 64, (256, 1, 1023)),
        _attention("Llama-3.2-1B, prompt of 4,096", (32, 8), 64, (1, 4096, 0), most_stack=32),
        _attention("Llama-3-8B, prompt of 4,096", (32, 8), 128, (1, 4096, 0), most_stack=32),
        _attention("heads of 256, prompt of 4,096", (16, 8), 256, (1, 4096, 0), most_stack=128),
        _attention(
            "DeepSeek-V2-Lite, 32 replies after 1,024", (16, 1), 512, (32, 1, 1023), more=64
        ),
        _attention(
            "DeepSeek-V2-Lite, prompt of 4,096",
            (16, 1),
            512,
            (1, 4096, 0),
            more=64,
            most_stack=320,
        ),
        _attention(
            "heads of 64 in float32",
            (32, 8),
            64,
            (1, 4096, 0),
            dtype=torch.float32,
            has_large_products=False,
        ),
    ),
    "stored_linear": tuple(
        _product(kind, name, rows)
        for kind in (
            *("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"),
            *("AWQ", "FP8", "NVFP4", "NF4"),
        )
        for name, rows in (("1 reply", 1), ("256 replies", 256), ("prompt of 4,096", 4096))
    ),
    **{
        op: tuple(
            _product("bfloat16", f"Llama-3-8B, {name}", rows, op)
            for name, rows in (("256 replies", 256), ("prompt of 4,096", 4096))
        )
        for op in ("linear", "wide_linear", "gated_linear")
    },
    "linear_heads": (_heads_product("DeepSeek-V2-Lite, 256 replies", 256),),
    "experts": (
        _experts("Qwen3.5-35B-A3B, 1 reply", _QWEN_EXPERTS, 1),
        _experts("Qwen3.5-35B-A3B, 256 replies", _QWEN_EXPERTS, 256),
        _experts("Qwen3.5-35B-A3B, prompt of 4,096", _QWEN_EXPERTS, 4096),
        _experts("Mixtral-8x7B, prompt of 4,096", _MIXTRAL, 4096),
        _experts("Mixtral-8x7B in float32", _MIXTRAL, 4096, "float32"),
        _experts("Mixtral-8x7B, Q4_K, 1 reply", _MIXTRAL, 1, "Q4_K"),
        _experts("Mixtral-8x7B, Q6_K, prompt of 4,096", _MIXTRAL, 4096, "Q6_K"),
        _experts("GPT-OSS-20B, MXFP4, prompt of 4,096", _GPT_OSS, 4096, "MXFP4"),
        _experts("Qwen3-30B-A3B, FP8, 256 replies", _QWEN3_EXPERTS, 256, "FP8"),
        _experts("Qwen3-30B-A3B, NVFP4, 256 replies", _QWEN3_EXPERTS, 256, "NVFP4"),
        _experts("Qwen3-30B-A3B, AWQ, 256 replies", _QWEN3_EXPERTS, 256, "AWQ"),
        _experts("Qwen3-30B-A3B, GPTQ in act order, 256 replies", _QWEN3_EXPERTS, 256, "GPTQ"),
    ),
    "gated_delta": (
        _gated_delta("Qwen3-Next, 1 reply", _QWEN, (1, 1, 1055)),
        _gated_delta("Qwen3-Next, 256 replies", _QWEN, (256, 1, 1055)),
        _gated_delta("Qwen3-Next, prompt of 4,096", _QWEN, (1, 4096, 0), most_stack=1536),
        _gated_delta("Olmo Hybrid 7B, prompt of 4,096", _OLMO, (1, 4096, 0), most_stack=1536),
        _gated_delta("Kimi Linear, 1 reply", _KIMI, (1, 1, 1055), by_channel=True),
        _gated_delta(
            "Kimi Linear, prompt of 4,096", _KIMI, (1, 4096, 0), by_channel=True, most_stack=2048
        ),
        _gated_delta(
            "Ling 3.0 Flash, prompt of 4,096",
            _KIMI,
            (1, 4096, 0),
            by_channel=True,
            least=-5.0,
            most_stack=2048,
        ),
        _gated_delta(
            "Qwen3-Next in float32", _QWEN, (1, 4096, 0), dtype=torch.float32, most_stack=3456
        ),
    ),
    "mamba2": (
        _mamba2("hybrid of 1.5B, 1 reply", 1, 1, 1055),
        _mamba2("hybrid of 1.5B, 256 replies", 256, 1, 1055),
        _mamba2("hybrid of 1.5B, prompt of 4,096", 1, 4096, 0),
    ),
    "convolve": (_convolution("hybrid of 1.5B, prompt of 4,096", 4096, "convolve"),),
    "latent_attention": (
        _latent_attention("DeepSeek-V2-Lite, 32 replies after 1,024", (32, 1, 1023)),
        _latent_attention("DeepSeek-V2-Lite, prompt of 4,096", (1, 4096, 0), most_stack=320),
    ),
    "mamba1": (
        _mamba1("Falcon-Mamba-7B, 256 replies", 8192, 16, (256, 1, 1055)),
        _mamba1("Falcon-Mamba-7B, prompt of 4,096", 8192, 16, (1, 4096, 0)),
    ),
    "mamba3": (
        _mamba3("hybrid of 1.5B, 256 replies", (256, 1, 1055)),
        _mamba3("hybrid of 1.5B, prompt of 4,096", (1, 4096, 0)),
    ),
    "rg_lru": (
        _rg_lru("RecurrentGemma-9B, 256 replies", 4096, (256, 1, 1055)),
        _rg_lru("RecurrentGemma-9B, prompt of 4,096", 4096, (1, 4096, 0)),
    ),
    "rms_norm": (
        _norm("Llama-3-8B, prompt of 4,096", "rms_norm", 4096, 4096),
        _norm("heads of 128, prompt of 4,096", "rms_norm", 32 * 4096, 128),
    ),
    "add_rms_norm": (_norm("Llama-3-8B, 256 replies", "add_rms_norm", 256, 4096),),
    "layer_norm": (_norm("4,096 wide, prompt of 4,096", "layer_norm", 4096, 4096),),
    "rotate_and_store": (_rotate("Llama-3-8B, prompt of 4,096", 4096),),
    "penalize": (_choice("Llama-3, 256 replies to 4,096 tokens", "penalize", 256),),
    "likeliest": (_choice("Llama-3, 256 replies", "likeliest", 256),),
    "best": (_choice("Llama-3, 20 of 256 replies each", "best", 256),),
    "draw": (_choice("Llama-3, 256 replies", "draw", 256),),
    "log_rows": (_convolution("hybrid of 1.5B, prompt of 63", 63, "log_rows"),),
    "gated_norm": (_gated_norm("hybrid of 1.5B, prompt of 4,096", 4096),),
}
