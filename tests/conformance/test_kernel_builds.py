"""The kernels, however built: other compilers, 64-bit Arm under an emulator, or not at all."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blazr.nn.kernels.compile import compile_library
from tests.support.kernel_builds import ARM_COMPILER, Emulated, emulator

TESTS = (
    *("tests/conformance/test_kernels.py", "tests/unit/nn/kernels"),
    *("tests/unit/nn/quant/test_packing.py", "tests/unit/engine/test_replay.py"),
)
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
            *(sys.executable, "-m", "pytest", "-p", "tests.support.kernel_builds"),
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
    assert "kernels: neon (the best here) of neon, portable" in said


def test_arm_without_dot_products(tmp_path: Path) -> None:
    """A Cortex-A72 has NEON, but not the instructions of Armv8.2."""
    library = Emulated(_arm(tmp_path), processor="cortex-a72")
    try:
        library.blazr_isa.restype = ctypes.c_char_p
        assert [library.blazr_isa(i) for i in range(5)] == [None, None, None, b"portable", None]
    finally:
        library.close()


def test_an_install_without_a_compiler_succeeds_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = ("wheel", "-v", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "pip", *build],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "installed without its CPU kernels: no C++ compiler" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("blazr-*-py3-none-any.whl")
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    products = """
from torch import inference_mode, ones
from blazr.nn.ops.matmul import gated_linear, linear
with inference_mode():
    assert linear(ones(1, 8), ones(4, 8)).tolist() == [[8.0] * 4]
    gated_linear(ones(1, 8), ones(4, 8), ones(4, 8))
"""
    done = subprocess.run(
        [sys.executable, "-c", products],
        env={"PATH": "", "PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("torch's operations run") == 1
    assert "g++ or clang++" in done.stderr
