"""What parameters are kept and computed as: decided from headers, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blazr.core.errors import CheckpointError, UnknownNameError
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    QuantizedInfo,
    RelaidInfo,
    RowsInfo,
    TensorInfo,
    join_rows,
    take_rows,
)
from blazr.models.families.oxidizr import OXIDIZR
from blazr.models.families.rules import (
    AS_STORED,
    DecayLog,
    Mxfp4,
    Reshape,
    Squeeze,
    Stack,
    Transform,
    Transpose,
)
from blazr.models.loading.plan import LoadPlan, LoadStep
from blazr.models.loading.storage import (
    DTYPES,
    SMALL_BYTES,
    Storing,
    choose_dtype,
    choose_storage,
    dequantize_if_room,
    is_as_stored,
    packable,
    resolve_dtype,
    stored_as,
    stored_bytes,
    stored_dtype,
    stored_kind,
    weight_bytes,
)
from blazr.nn.device import Device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.ranks import Columns, Rows
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.hf.scheme import Grid, Layout
from blazr.nn.quant.packed import PackedWeight, QuantizePolicy, pack_weight
from blazr.nn.quant.weight import GgufWeight
from tests.support import tiny
from tests.support.tiny import Tiny

FILE = Path("m")
KEEP = QuantizePolicy()


def info(dtype: str, *shape: int, name: str = "w") -> TensorInfo:
    kind = None if dtype in ELEMENT_TYPES else GGML_TYPES[dtype]
    size = torch.Size(shape).numel()
    nbytes = size // kind.length * kind.nbytes if kind else size * ELEMENT_TYPES[dtype][0]
    return TensorInfo(name, dtype, shape, FILE, 0, nbytes)


class FloatLayout(Layout):
    """Numbers of no grid; nothing is decoded here."""

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        raise NotImplementedError

    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        raise NotImplementedError


class GridLayout(FloatLayout):
    """Whole numbers on a scale."""

    is_grid = True


def quantized(dtype: str, *shape: int, layout: type[FloatLayout] = FloatLayout) -> QuantizedInfo:
    """A matrix that two tensors of bytes stand for."""
    parts = {"codes": info("U8", *shape), "scales": info("F16", shape[0])}
    made = layout(dtype, (shape[0], shape[1]))
    return QuantizedInfo("w", dtype, shape, FILE, 0, 0, parts, made)


def step(*sources: TensorInfo, transform: Transform = AS_STORED, name: str = "w") -> LoadStep:
    shape = sources[0].shape
    if isinstance(transform, Stack):
        shape = (len(sources), *shape)
    return LoadStep(name, shape, sources, transform)


def plan(*steps: LoadStep) -> LoadPlan:
    return LoadPlan(steps, ())


def network(*kinds: str, **sizes: object) -> CausalLM:
    """A network without weights."""
    model = Tiny(layers=kinds, **sizes)  # type: ignore[arg-type]
    with torch.device("meta"):
        return CausalLM(tiny_config(model))


def tiny_config(model: Tiny) -> ModelConfig:
    return OXIDIZR.derive(tiny.checkpoint(model, tiny.config(model))).config


MODULE = network("StandardTransformer")
PART = "layers.0.mixer.o_proj.weight"
Q8, Q4, Q4_K = (QUANTIZERS[name] for name in ("q8_0", "q4_0", "q4_k"))


def stored(made: LoadStep, quantization: str | None = None) -> Storing | None:
    """What is chosen for one matrix."""
    made = replace(made, parameter=PART)
    return choose_storage(plan(made), MODULE, QuantizePolicy(quantization)).get(PART)


@pytest.mark.parametrize("kind", [row for row in GGML_TYPES.values() if row.is_packed])
def test_blocks_stay_what_they_are(kind) -> None:
    rows = 4, 2 * kind.length
    assert stored(step(info(kind.name, *rows))) == kind
    assert (
        stored(step(info(kind.name, *rows), info(kind.name, *rows), transform=Stack("e"))) == kind
    )
    # columns that are rows in the network would cut blocks; and half a block is none
    assert stored(step(info(kind.name, *rows), transform=Transpose())) is None
    half = replace(step(info(kind.name, *rows), transform=Reshape()), shape=(16, kind.length // 2))
    assert stored(half) is None


@pytest.mark.parametrize("name", ["F32", "BF16", "F16"])
def test_plain_numbers_stay_plain_unless_asked(name: str) -> None:
    assert stored(step(info(name, 4, 512))) is None
    assert stored(step(info(name, 4, 512)), "q8_0") == Q8
    assert stored(step(info(name, 4, 512), transform=Transpose()), "q4_0") == Q4
    assert stored(step(info(name, 4, 48)), "q8_0") is None
    assert stored(step(info(name, 4, 96)), "q4_k") == Q8, "rows too short for blocks of 256"
    assert stored(step(info(name, 4, 512)), "q4_k") == Q4_K


def test_what_is_asked_for_goes_before_what_is_stored() -> None:
    assert stored(step(info("Q8_0", 4, 64)), "q4_0") == Q4
    assert stored(step(info("Q8_0", 4, 64)), "q8_0") == GGML_TYPES["Q8_0"], "it is that already"
    assert stored(step(quantized("awq-int4", 4, 64)), "q4_0") == Q4
    assert stored(step(quantized("awq-int4", 4, 48)), "q4_0") == "as stored"


def test_matrices_of_a_quantized_checkpoint_stay_as_stored() -> None:
    one, plain = quantized("gptq-int4", 4, 64), info("F16", 4, 64)
    assert stored(step(one)) == "as stored"
    assert stored(step(plain, one, transform=Stack("e"))) == "as stored"
    assert stored(step(one, transform=Transpose())) is None
    # whatever people call it
    assert stored(step(quantized("Q8_0", 4, 64))) == "as stored"


def test_a_stack_of_several_types_is_of_none() -> None:
    mixed = step(info("Q4_0", 4, 64), info("Q8_0", 4, 64), transform=Stack("e"))
    assert stored_kind(mixed) is None
    assert stored(mixed) is None
    assert stored_kind(step(info("F32", 4, 64))) is None
    assert stored_kind(step(quantized("Q8_0", 4, 64))) is None


@pytest.mark.parametrize("quantization", [None, "q8_0", "int4"])
def test_nothing_is_smaller_than_four_bits_of_two_tensors(quantization: str | None) -> None:
    parts = info("U8", 4, 2, 16), info("U8", 4, 2)
    made = LoadStep(PART, (4, 64), parts, Mxfp4(1))
    assert stored(made, quantization) == stored_kind(made) == GGML_TYPES["MXFP4"]


@pytest.mark.parametrize("kind", ["MlaWithMoe", "GqaWithMoe", "Mamba2"])
def test_only_matrices_that_may_be_packed_are(kind: str) -> None:
    module = network(kind, hidden_size=64, kv_latent=32, q_latent=32, intermediate_size=64)
    steps = [
        LoadStep(name, tuple(tensor.shape), (info("F32", *tensor.shape, name=name),))
        for name, tensor in module.state_dict().items()
    ]
    found = choose_storage(plan(*steps), module, QuantizePolicy("q8_0"))
    names = packable(module)
    assert found.keys() == {s.parameter for s in steps if s.parameter in names} != set()
    assert names <= module.state_dict().keys()
    assert {"embed_tokens.weight", "lm_head.weight"} <= names
    assert not any(
        mark in name for name in names for mark in ("router", "norm", "k_up_proj", "v_up_proj")
    )
    stacks = {name for name in module.state_dict() if ".experts." in name}
    assert {name for name in names if ".experts." in name} == stacks
    assert bool(stacks) == kind.endswith("Moe")


def test_the_head_is_told_from_an_embedding() -> None:
    """Scores deserve finer steps than the rest."""
    for tied in (False, True):
        module = network("StandardTransformer", tied=tied, hidden_size=64)
        steps = [LoadStep(n, (61, 64), (info("F32", 61, 64),)) for n in sorted(packable(module))]
        found = choose_storage(plan(*steps), module, QuantizePolicy("q4_0"))
        finer = {name for name, each in found.items() if each == Q8}
        assert finer == {"embed_tokens.weight" if tied else "lm_head.weight"}
        assert {each for name, each in found.items() if name not in finer} == {Q4}


# --- what that takes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_counted_as_they_are_kept(dtype: torch.dtype) -> None:
    bytes_of = partial(stored_bytes, dtype=dtype, is_on_cpu=False)
    all_bytes = partial(weight_bytes, dtype=dtype, is_on_cpu=False)
    plain = LoadStep("a", (3, 4, 64), (info("F32", 3, 4, 64),))
    numbers = torch.empty(plain.shape)
    assert bytes_of(plain, None) == numbers.to(dtype).nbytes
    for quantizer in (Q8, Q4):
        nbytes = quantizer(torch.zeros(plain.shape)).nbytes
        assert bytes_of(plain, quantizer) == nbytes
        assert bytes_of(plain, quantizer.kind) == nbytes
    parts = step(quantized("awq-int4", 4, 64), quantized("awq-int4", 4, 64))
    assert bytes_of(parts, "as stored") == 2 * (4 * 64 + 4 * 2)
    for held, share in ((Rows((range(2),)), 2 / 3), (Columns((range(16), range(32, 64))), 3 / 4)):
        part = replace(plain, held=held)  # what a rank has of it
        assert bytes_of(part, None) == numbers.to(dtype).nbytes * share
    whole = plan(plain, replace(parts, parameter="b"))
    alone = all_bytes(whole.steps, storage={})
    assert alone == (3 * 4 * 64 + 4 * 64) * dtype.itemsize
    packed = all_bytes(whole.steps, storage={"a": Q8})
    assert packed == alone - 3 * 4 * 64 * dtype.itemsize + bytes_of(plain, Q8)


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
def test_bytes_on_a_cpu_are_those_of_the_packing() -> None:
    for name, packing in PACKINGS.items():
        if name not in GGML_TYPES:
            continue
        kind = GGML_TYPES[name]
        stored = LoadStep("a", (32, 512), (info(name, 32, 512),))
        blocks = torch.zeros(32, kind.row_bytes(512), dtype=torch.uint8)
        packed = pack_weight(GgufWeight(blocks, kind, torch.bfloat16))
        assert isinstance(packed, PackedWeight)
        size = stored_bytes(stored, kind, torch.bfloat16, is_on_cpu=True)
        if packed.packing is packing:  # others share scales, too
            assert size == packed.nbytes
        assert size >= packed.nbytes
        assert stored_bytes(stored, kind, torch.bfloat16, is_on_cpu=False) == blocks.nbytes


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
@pytest.mark.parametrize("columns", [32, 96, 512])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_bytes_on_a_cpu_are_those_of_what_is_quantized(name: str, columns: int) -> None:
    """One scale for a row or a group takes less than one for each block."""
    quantizer = QUANTIZERS[name]
    if columns % quantizer.kind.length:
        pytest.skip("such rows are packed otherwise")
    rows = torch.randn(32, columns, generator=torch.Generator().manual_seed(0))
    packed = pack_weight(GgufWeight(quantizer(rows), quantizer.kind, torch.bfloat16))
    stored = LoadStep("a", (32, columns), (info("F32", 32, columns),))
    assert stored_bytes(stored, quantizer, torch.bfloat16, is_on_cpu=True) == packed.nbytes


def test_floats_and_tables_are_opened_all_or_none() -> None:
    grid = quantized("gptq-int4", 4, 64, layout=GridLayout)
    table, other = quantized("bnb-nf4", 4, 64), quantized("fp8", 2, 64)
    steps = [
        LoadStep("grid", (4, 64), (grid,)),
        LoadStep("table", (4, 64), (table,)),
        LoadStep("both", (2, 2, 64), (quantized("x", 2, 64, layout=GridLayout), other), Stack("e")),
        LoadStep("plain", (4, 64), (info("F32", 4, 64),)),
        LoadStep("asked for", (4, 64), (table,)),
    ]
    storage: dict[str, Storing] = {
        "grid": "as stored", "table": "as stored", "both": "as stored", "asked for": Q8,
    }  # fmt: skip
    for dtype in (torch.float32, torch.float16):
        room = (4 * 64 + 2 * 2 * 64) * dtype.itemsize
        assert dequantize_if_room(plan(*steps), storage, dtype, room - 1) == storage
        opened = dequantize_if_room(plan(*steps), storage, dtype, room)
        assert opened == {"grid": "as stored", "asked for": Q8}


# --- what is computed in


def dtypes(*parts: TensorInfo) -> LoadPlan:
    return plan(*(LoadStep(f"p{n}", each.shape, (each,)) for n, each in enumerate(parts)))


def test_most_bytes_tell_what_is_stored() -> None:
    """Bytes of all tensors together, however many each has and in whatever order they come."""
    small, large = info("F32", 4, 8), info("BF16", 4, 10)
    for parts in ((small, large, large), (large, large, small), (large, small, large)):
        assert stored_as(dtypes(*parts)) == "BF16"
    assert stored_as(dtypes(small, large)) == "F32"
    assert stored_as(dtypes(info("Q8_0", 4, 320), small)) == "Q8_0"
    stack = LoadStep("s", (2, 4, 10), (large, large), Stack("e"))
    assert stored_as(plan(stack, *dtypes(small).steps)) == "BF16"
    exponents = LoadStep("x", (4, 640), (info("U8", 4, 20, 16), info("U8", 4, 20)), Mxfp4(0))
    assert stored_as(plan(exponents, *dtypes(small).steps)) == "F32"


@pytest.mark.parametrize("name", sorted({*ELEMENT_TYPES} - {"F16", "BF16", "F32", "F64"}))
def test_whole_numbers_and_bytes_are_no_weights(name: str) -> None:
    with pytest.raises(CheckpointError, match="quantized or of whole numbers") as caught:
        stored_as(dtypes(info("F32", 40, 8), info(name, 4, 8)))
    assert caught.value.found == name


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([info("F32", 4)], torch.float32),
        ([info("F16", 4)], torch.float16),
        ([info("BF16", 4)], torch.bfloat16),
        ([info("F64", 4)], torch.float32),  # nobody computes in more
        ([info("Q8_0", 64, 64), info("F32", 4)], torch.bfloat16),
        ([quantized("awq-int4", 64, 64), info("F16", 4)], torch.float16),
        ([quantized("awq-int4", 64, 64), info("F32", 4)], torch.float32),
        ([quantized("awq-int4", 64, 64), info("F32", 4), info("F16", 4)], torch.float16),
        ([quantized("awq-int4", 64, 64), info("F16", 4), info("BF16", 4)], torch.bfloat16),
        ([quantized("awq-int4", 64, 64)], torch.bfloat16),
    ],
)
def test_packed_weights_are_computed_in_what_lies_beside_them(
    parts: list[TensorInfo], expected: torch.dtype
) -> None:
    assert stored_dtype(dtypes(*parts)) == expected


class Place(Device):
    """A machine that has fast products in float32, and in one other dtype or none."""

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype == torch.float32 or str(dtype) == self.description


CONFIG = tiny_config(Tiny())
LARGE = SMALL_BYTES + 1
HALF = "torch.float16"


@pytest.mark.parametrize(
    ("kind", "has", "stored", "nbytes", "multiplier", "expected"),
    [
        ("cpu", "torch.bfloat16", torch.bfloat16, LARGE, 1.0, torch.bfloat16),
        ("cpu", "torch.bfloat16", torch.bfloat16, SMALL_BYTES, 1.0, torch.float32),
        ("cpu", "torch.bfloat16", torch.float32, LARGE, 1.0, torch.float32),
        ("cpu", "", torch.bfloat16, LARGE, 1.0, torch.float32),
        ("cuda", "torch.bfloat16", torch.bfloat16, 1, 1.0, torch.bfloat16),
        ("cuda", "", torch.bfloat16, LARGE, 1.0, torch.float32),
        ("cuda", HALF, torch.float16, LARGE, 1.0, torch.float16),
        ("cuda", HALF, torch.float16, LARGE, 1.5, torch.float32),
        ("cuda", HALF, torch.float16, LARGE, 0.5, torch.float16),
        ("cuda", "torch.bfloat16", torch.bfloat16, LARGE, 30.0, torch.bfloat16),
        ("cpu", HALF, torch.float16, LARGE, 2.0, torch.float32),
    ],
)
def test_what_is_computed_in(
    kind: str, has: str, stored: torch.dtype, nbytes: int, multiplier: float, expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("blazr.models.loading.storage.linear.has_kernel", lambda _: False)
    config = replace(CONFIG, embedding_multiplier=multiplier)
    assert resolve_dtype(stored, nbytes, Place(kind, has), config) == expected


def test_kernels_do_what_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "blazr.models.loading.storage.linear.has_kernel"
    monkeypatch.setattr(name, lambda dtype: dtype == torch.bfloat16)
    found = [
        resolve_dtype(dtype, LARGE, Place("cpu", ""), CONFIG)
        for dtype in (torch.bfloat16, torch.float16)
    ]
    assert found == [torch.bfloat16, torch.float32]


def test_a_dtype_may_be_named() -> None:
    held = dtypes(info("F16", SMALL_BYTES // 4, 1), info("F16", SMALL_BYTES // 4 + 1, 1))
    place = Place("cpu", HALF)
    assert choose_dtype("auto", held, place, CONFIG) == torch.float16
    assert choose_dtype("auto", plan(*held.steps[:1]), place, CONFIG) == torch.float32
    for name, dtype in DTYPES.items():
        assert choose_dtype(name, held, place, CONFIG) == dtype
    with pytest.raises(UnknownNameError):
        choose_dtype("int8", held, place, CONFIG)
    with pytest.raises(CheckpointError):
        choose_dtype("float32", dtypes(info("U8", 4)), place, CONFIG)


# --- what is read as it lies in the file

ROWS = info("F32", 8, 6)
BLOCKS = info("Q8_0", 8, 64)


def relaid(stored: TensorInfo) -> RelaidInfo:
    place = stored.name, stored.dtype, stored.shape, stored.file, stored.start, stored.end
    return RelaidInfo(*place, stored=stored)


JOINED = join_rows("both", (ROWS, ROWS))
assert JOINED is not None


@pytest.mark.parametrize(
    ("made", "storing", "expected"),
    [
        (step(ROWS), None, True),
        (step(JOINED), None, False),
        (step(take_rows(JOINED, (range(2, 5),))), None, False),
        (step(replace(ROWS, shape=(8, 1, 6)), transform=Squeeze(1)), None, True),
        (step(ROWS, transform=DecayLog()), None, False),
        (step(info("F16", 8, 6)), None, False),
        (step(info("Q8_0", 8, 64)), None, False),
        (step(ROWS, ROWS, transform=Stack("e")), None, False),
        (step(relaid(ROWS)), None, False),
        (step(take_rows(ROWS, (range(2, 5),))), None, True),
        (step(take_rows(ROWS, (range(0, 8, 2),))), None, True),
        (step(take_rows(ROWS, (range(2), range(4, 6)))), None, False),
        (step(BLOCKS), GGML_TYPES["Q8_0"], True),
        (step(BLOCKS), Q8, False),
        (step(BLOCKS), GGML_TYPES["Q4_0"], False),
        (step(BLOCKS, transform=Squeeze(0)), GGML_TYPES["Q8_0"], False),
        (step(relaid(BLOCKS)), GGML_TYPES["Q8_0"], False),
        (step(take_rows(BLOCKS, (range(2, 5),))), GGML_TYPES["Q8_0"], True),
        (step(take_rows(BLOCKS, (range(0, 8, 2),))), GGML_TYPES["Q8_0"], False),
        (step(BLOCKS, BLOCKS, transform=Stack("e")), GGML_TYPES["Q8_0"], False),
        (step(quantized("awq-int4", 8, 64)), "as stored", False),
    ],
)
def test_what_lies_in_the_file_byte_by_byte(
    made: LoadStep, storing: Storing | None, expected: bool
) -> None:
    assert is_as_stored(made, storing, torch.float32) == expected
    if isinstance(made.sources[0], RowsInfo) and storing is None:
        assert made.sources[0].is_view == expected
