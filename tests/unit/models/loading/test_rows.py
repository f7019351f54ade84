"""Rows and columns of stored tensors become parameters: what is copied, and what is not."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from blazr.models.checkpoint.base import Checkpoint, TensorInfo, take_rows
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families.rules import TiledColumns, TiledHeads
from blazr.models.loading.plan import LoadStep
from blazr.models.loading.read import read_weight
from blazr.nn.operands.packing import BlockType
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.exact import ShiftedWeight
from blazr.nn.quant.gguf.quantize import Quantizer
from tests.support import ggufs

CPU = torch.device("cpu")


def stored(directory: Path, tensor: torch.Tensor) -> tuple[Checkpoint, TensorInfo]:
    save_file({"a": tensor}, directory / "m.safetensors")
    checkpoint = open_checkpoint(directory / "m.safetensors")
    return checkpoint, checkpoint.tensors["a"]


def test_a_run_of_rows_is_a_view_of_the_file(tmp_path: Path) -> None:
    whole = torch.randn(10, 6)
    checkpoint, info = stored(tmp_path, whole)
    rows = checkpoint.view(take_rows(info, (range(4, 9),)))
    assert torch.equal(rows, whole[4:9])
    assert rows.data_ptr() == checkpoint.read("a").data_ptr() + 4 * 6 * 4


@pytest.mark.parametrize("rows", [range(3), range(1, 8, 2)])
def test_rows_of_a_stack_are_a_view_of_the_file(rows: range, tmp_path: Path) -> None:
    whole = torch.randn(5, 8, 6)
    checkpoint, info = stored(tmp_path, whole)
    part = take_rows(info, (rows,), dim=1)
    found = checkpoint.view(part)
    assert torch.equal(found, whole[:, list(rows)])
    assert part.shape == found.shape
    assert found.untyped_storage().data_ptr() == checkpoint.read("a").untyped_storage().data_ptr()


def test_rows_of_rows(tmp_path: Path) -> None:
    whole = torch.randn(12, 2)
    checkpoint, info = stored(tmp_path, whole)
    part = take_rows(info, (range(6, 12), range(2)))
    assert torch.equal(checkpoint.view(take_rows(part, (range(4, 8),))), whole[[10, 11, 0, 1]])
    checkpoint.drop(part)
    assert torch.equal(checkpoint.view(part), whole[[6, 7, 8, 9, 10, 11, 0, 1]])


@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
@pytest.mark.parametrize("wanted", ["q4_0", None])
def test_columns_of_heads_move_whatever_blocks_hold(
    kind: str, wanted: str | None, tmp_path: Path
) -> None:
    """Blocks of 256 columns hold two heads of 128, and cannot be parted without rounding."""
    heads = TiledHeads(2, 4)
    numbers = torch.randn(16, 4 * 128)
    blocks = QUANTIZERS[kind](numbers)
    stands_for = QUANTIZERS[kind].kind.decode(blocks)
    entry = (QUANTIZERS[kind].kind.number, tuple(numbers.shape), blocks)
    checkpoint = open_checkpoint(ggufs.write(tmp_path / "m.gguf", {"a": entry}, {}))
    step = LoadStep("a", (16, 512), (checkpoint.tensors["a"],), TiledColumns(heads))
    storing: Quantizer | BlockType = QUANTIZERS[wanted] if wanted else QUANTIZERS[kind].kind
    weight = read_weight(step, checkpoint, storing, dtype=torch.float32, device=CPU)
    expected = stands_for.unflatten(1, (4, 128))[:, [0, 2, 1, 3]].flatten(1)
    if wanted:
        expected = QUANTIZERS[wanted].kind.decode(QUANTIZERS[wanted](expected))
    assert isinstance(weight, ShiftedWeight) == (kind == "q4_k" and not wanted)
    assert torch.equal(weight.dequantize(torch.float32), expected)
    assert torch.equal(weight.rows(torch.tensor([3, 0])), expected[[3, 0]])
    x = torch.randn(3, 512)
    exact = x.double() @ expected.double().T
    assert (weight.matmul(x) - exact).norm() < 0.01 * exact.norm()
