"""MXFP4 as Ollama's first releases of GPT-OSS have it: the numbers of llama.cpp's.

Source: GitHub ollama/ollama, version 0.11.0: convert/convert_gptoss.go writes what Hugging Face's
files hold as type 4, and ml/backend/ggml/ggml.go puts the numbers in GGML's order when it loads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_gguf_converted import EXPECTED
from test_gguf_ollama import Form, from_llama_cpp, gptoss, logits, network, write
from torch import Tensor

from blazr.bench.independent import ask_witness
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.convert import convert


def in_pairs(numbers: Tensor, exponents: Tensor) -> Tensor:
    """Blocks of Ollama's type 4: the exponent, and neighbours in a byte, as they come."""
    return torch.cat((exponents[..., None], numbers), -1).flatten(-2)


def as_ggml(numbers: Tensor, exponents: Tensor) -> Tensor:
    """Blocks of type 39: in a byte of number i in the lower half, i + 16 in the upper one."""
    each = [(numbers[..., i // 2] >> 4 * (i % 2)) & 15 for i in range(32)]
    pairs = torch.stack([each[i] | each[i + 16] << 4 for i in range(16)], -1)
    return torch.cat((exponents[..., None], pairs), -1).flatten(-2)


def wide(tensor: Tensor) -> Tensor:
    """A tensor of the tiny model with rows of whole blocks."""
    sizes = {24: 32, 44: 64}
    return torch.randn([sizes.get(size, size) for size in tensor.shape]) * 0.3


def in_turns(form: Form, blocks: dict[str, list[Tensor]]) -> None:
    """Rows of gate and up in one, their biases, too."""
    for layer in form.layers():
        names = [f"blk.{layer}.ffn_{each}_exps." for each in ("gate_up", "gate", "up")]
        both, *apart = names
        parts = zip(*(blocks.pop(f"{name}weight") for name in apart), strict=True)
        blocks[f"{both}weight"] = [torch.stack(each, 2).flatten(1, 2) for each in parts]
        biases = [form.tensors.pop(f"{name}bias") for name in apart]
        form.tensors[f"{both}bias"] = torch.stack(biases, 2).flatten(1, 2)


@pytest.mark.parametrize("lay_out", [lambda *_: None, in_turns], ids=["apart", "in turns"])
def test_mxfp4_of_the_first_releases(
    lay_out: Callable[[Form, dict[str, list[Tensor]]], None], tmp_path: Path
) -> None:
    form = from_llama_cpp("gpt-oss", tmp_path)
    form.tensors = {name: wide(tensor) for name, tensor in form.tensors.items()}
    blocks: dict[str, list[Tensor]] = {}
    for name in [name for name in form.tensors if name.endswith("_exps.weight")]:
        *rows, columns = form.tensors[name].shape
        numbers = torch.randint(0, 256, (*rows, columns // 32, 16), dtype=torch.uint8)
        blocks[name] = [numbers, torch.randint(118, 126, numbers.shape[:-1], dtype=torch.uint8)]
        form.tensors[name] = (39, (*rows, columns), as_ggml(*blocks[name]))
    theirs = write(form, tmp_path / "theirs" / "model.gguf")
    form.tensors = {name: each for name, each in form.tensors.items() if name not in blocks}
    gptoss(form)
    lay_out(form, blocks)
    for name, (numbers, exponents) in blocks.items():
        *rows, count = exponents.shape
        form.tensors[name] = (4, (*rows, 32 * count), in_pairs(numbers, exponents))
    ours = write(form, tmp_path / "ours" / "model.gguf")
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=0)
    witness = ask_witness(network(ours), open_checkpoint(ours), EXPECTED["tokens"])
    assert witness.is_there, witness.name
    assert witness.agrees, witness
    again = tmp_path / "again.gguf"
    convert(str(ours), again)
    assert set(open_checkpoint(again).tensors) == set(open_checkpoint(theirs).tensors)
    torch.testing.assert_close(logits(again), logits(theirs), rtol=0, atol=0)
