"""Loading a large file takes its own size in memory, and little more."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tiny
from tiny import Tiny

PROGRAM = """
import re, sys
from pathlib import Path
import torch
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
def peak():  # of this program; resource.getrusage counts its parent's too
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = peak()
load(sys.argv[1], device=resolve_device("cpu"), dtype="float32")
print(peak() - before)
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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert megabytes * 0.9 < int(done.stdout) < megabytes + 100
