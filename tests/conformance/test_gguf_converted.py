"""Files that llama.cpp's own converter made: the logits of the models they were made of."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.converted import READ
from tests.support.tolerances import assert_same_network

pytestmark = pytest.mark.sample

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "gguf" / "converted"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
CPU = resolve_device("cpu")


def unpacked(name: str, directory: Path) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.gguf.xz").read_bytes()))
    return path


def test_every_architecture_is_there(tmp_path: Path) -> None:
    kinds = {name.split("-")[0] for name in EXPECTED["logits"]}
    own = [name for name, row in ARCHITECTURES.items() if row.families]  # see test_gguf_by_name.py
    assert {name.split("-")[0] for name in (*own, *READ)} == kinds


@pytest.mark.parametrize("name", EXPECTED["logits"])
def test_the_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    loaded = load(str(unpacked(name, tmp_path)), device=CPU, dtype="float32")
    expected = torch.tensor(EXPECTED["logits"][name])
    assert_same_network(loaded.module, expected, torch.tensor([EXPECTED["tokens"]]))
