"""Kernels for GPUs compile for A100, H100 and B200, and use what these have; no GPU is needed."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from subprocess import run

import pytest

from benchmarks.gpu_steps import STEPS
from blazr.nn.kernels import KERNELS

OPS = [row.op for row in KERNELS.values() if row.device == "cuda"]
# Of a block, in bytes; more, and it cannot start.
MOST_SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
# How each kind of GPU multiplies large tiles.
PRODUCTS = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_compiles_within_limits(op: str) -> None:
    """In a process of its own, where kernels are not made for the interpreter."""
    if find_spec("triton") is None:  # imported here, it would be too late for the interpreter
        pytest.skip("Triton is not installed: pip install 'blazr[triton]'")

    command = ["env", "-u", "TRITON_INTERPRET", sys.executable]
    command += ["-m", "benchmarks.gpu_kernels", "--json", "--op", op]
    found = run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    builds = [json.loads(line) for line in found.stdout.splitlines()]
    steps = {step.name: step for step in STEPS[op]}
    assert {(b["step"], b["capability"]) for b in builds} == {
        (name, capability) for name in steps for capability in PRODUCTS
    }
    for build in builds:
        step, capability = steps[build["step"]], build["capability"]
        where = {key: build[key] for key in ("kernel", "step", "capability")}
        assert build["registers"] <= 255, where
        assert build["shared"] <= MOST_SHARED[capability], where
        assert build["stack"] <= step.most_stack, (where, build["stack"])
    for name, step in steps.items():
        for capability, product in PRODUCTS.items():
            of_step = [b for b in builds if (b["step"], b["capability"]) == (name, capability)]
            if step.has_large_products:
                assert sum(b["instructions"][product] for b in of_step), (name, product)
