"""The kernels' tests pass whatever compiled the kernels, and on 64-bit Arm, under an emulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blazr.nn.kernels.compile import compile_library
from kernel_builds import ARM_COMPILER, Emulated, emulator

TESTS = ("tests/conformance/test_kernels.py", "tests/unit/nn/kernels")
ROOT = Path(__file__).parent.parent.parent
CLANG = next((name for name in ("clang++", "clang++-14") if shutil.which(name)), "clang++")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def _build(directory: Path, compiler: str, flag: str) -> Path:
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    library = directory / "kernels.so"
    assert compile_library(library, compiler=compiler, flags=[flag]) == ""
    return library


def _arm(directory: Path) -> Path:
    if not emulator():
        pytest.skip("there is no qemu-aarch64")
    return _build(directory, ARM_COMPILER, "-O3")


def _test(library: Path) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.kernel_builds"),
            *("--kernels", str(library), "-vv", "--timeout", "300", *TESTS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.parametrize(("compiler", "flag"), [("g++", "-O0"), (CLANG, "-O3")])
def test_compilers(compiler: str, flag: str, tmp_path: Path) -> None:
    _test(_build(tmp_path, compiler, flag))


def test_arm(tmp_path: Path) -> None:
    said = _test(_arm(tmp_path))
    assert "kernels: neon (the best here) of neon, portable; on torch's threads" in said


def test_arm_without_dot_products(tmp_path: Path) -> None:
    """A Cortex-A72 has NEON, but not the instructions of Armv8.2."""
    library = Emulated(_arm(tmp_path), processor="cortex-a72")
    try:
        assert [library.blazr_isa(i) != 0 for i in range(5)] == [False, False, False, True, False]
    finally:
        library.close()
