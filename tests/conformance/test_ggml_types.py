"""Every GGML type: random blocks decode to the bits that the gguf package decodes them to."""

import gguf
import numpy as np
import pytest
import torch

from blazr.nn.quant.gguf import GGML_TYPES
from tests.support.seeds import run_seed

ROWS, BLOCKS = 37, 3
# Of ggml-common.h, which the package does not decode: numbers, sizes, and bits of a code.
NEWER = {"Q1_0": (41, 128, 18, 1), "Q2_0": (42, 64, 18, 2)}
DECODED = [name for name in GGML_TYPES if name not in NEWER]


def random_blocks(name: str, seed: int = 0) -> np.ndarray:
    """Any bytes are blocks of every type; scales are NaN and infinite among them."""
    row_bytes = BLOCKS * GGML_TYPES[name].nbytes
    return np.random.default_rng(run_seed(seed)).integers(0, 256, (ROWS, row_bytes), dtype=np.uint8)


def the_packages_number(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


@pytest.mark.parametrize("name", DECODED)
def test_sizes_are_the_formats(name: str) -> None:
    row = GGML_TYPES[name]
    assert row.number == the_packages_number(name)
    assert (row.length, row.nbytes) == gguf.GGML_QUANT_SIZES[the_packages_number(name)]


@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_decode_to_the_same_bits(name: str, seed: int) -> None:
    blocks = random_blocks(name, seed)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, the_packages_number(name))
    found = GGML_TYPES[name].decode(torch.from_numpy(blocks)).numpy()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    assert finite.any()
    assert np.array_equal(found.view(np.int32)[finite], expected.view(np.int32)[finite])
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)


@pytest.mark.parametrize("name", NEWER)
def test_codes_are_counted_from_the_lowest_bit_of_the_first_byte(name: str) -> None:
    number, length, nbytes, bits = NEWER[name]
    row = GGML_TYPES[name]
    assert (row.number, row.length, row.nbytes) == (number, length, nbytes)
    blocks = random_blocks(name)
    blocks[:, 1::nbytes] &= 0x3B  # the scales' high bytes: none is infinite
    found = row.decode(torch.from_numpy(blocks)).view(ROWS, BLOCKS, length)
    for at in ((0, 0), (5, 1), (36, 2)):
        block = blocks[at[0], nbytes * at[1] :][:nbytes].tobytes()
        scale = float(np.frombuffer(block[:2], np.float16)[0])
        whole = int.from_bytes(block[2:], "little")
        codes = [whole >> bits * place & (2**bits - 1) for place in range(length)]
        values = [2 * code - 1 if bits == 1 else code - 1 for code in codes]
        assert found[at].tolist() == [scale * value for value in values]


@pytest.mark.parametrize("name", GGML_TYPES)
def test_a_single_block_at_any_offset(name: str) -> None:
    row = GGML_TYPES[name]
    data = torch.from_numpy(random_blocks(name)).flatten()
    whole = row.decode(data[row.nbytes : 2 * row.nbytes].clone())
    moved = torch.cat((data[:1], data[row.nbytes : 2 * row.nbytes]))[1:]
    assert (
        torch.equal(
            row.decode(moved),
            whole,
        )
        or whole.isnan().any()
    )


def test_every_type_that_the_package_decodes_is_there() -> None:
    known = {"F32", "F16", *(number.name for number in gguf.quants._type_traits)}
    assert {name for name in known if name not in GGML_TYPES} == set()
