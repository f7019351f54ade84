"""Loading a large file takes its own size in memory, and little more."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support import tiny
from tests.support.tiny import Tiny

PROGRAM = """
import re, sys
from pathlib import Path
import torch
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.quant.weight import stored_weights
def peak():  # of this program; resource.getrusage counts its parent's too
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = peak()
quantize = sys.argv[2] if len(sys.argv) > 2 else None
model = load(sys.argv[1], device=resolve_device("cpu"), dtype="float32", quantize=quantize).module
print(peak() - before, sum(each.nbytes for each in stored_weights(model)) // 2**20)
"""
MODEL = Tiny(
    layers=("MlaWithMoe", "MlaWithMlp"),
    hidden_size=512,
    num_experts=24,
    intermediate_size=2048,
    vocab_size=1000,
)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_peak_memory_is_one_copy_of_the_weights(tmp_path: Path, dtype, copies: int) -> None:
    """Stacked experts are copied, a cast copies everything; the file's pages must not stay."""
    weights = {n: torch.zeros(s, dtype=dtype) for n, s in tiny.shapes(MODEL).items()}
    save_file(weights, tmp_path / "model.safetensors")
    megabytes = (tmp_path / "model.safetensors").stat().st_size * copies / 2**20
    assert megabytes > 300
    peak, _ = measure(tmp_path)
    assert megabytes * 0.9 < peak < megabytes + 100


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["q4_0", "int4"])
def test_quantizing_never_holds_more_than_the_result(tmp_path: Path, quantize: str) -> None:
    """The law for large models is 1.2 times the result and 300 MB; a tile is all it takes."""
    weights = {n: torch.ones(s, dtype=torch.bfloat16) for n, s in tiny.shapes(MODEL).items()}
    save_file(weights, tmp_path / "model.safetensors")
    peak, result = measure(tmp_path, quantize)
    assert 30 < result < 110
    assert peak < 1.2 * result + 60


def measure(path: Path, *options: str) -> tuple[int, int]:
    """Peak memory of loading, and what the weights take, in MiB."""
    program = [sys.executable, "-c", PROGRAM, str(path), *options]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, result = map(int, done.stdout.split())
    return peak, result
