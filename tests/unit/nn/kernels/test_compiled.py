"""The compiled library: what is built, what is refused, and what is said when there is none."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blazr.nn.kernels import compile as compiling
from blazr.nn.kernels.compile import compile_library, find_compiler, fingerprint
from blazr.nn.kernels.cpu import compiled, matmul

needs_compiler = pytest.mark.skipif(not find_compiler(), reason="there is no C++ compiler")
needs_library = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())

REPORT = """
import torch
from blazr.nn.ops.op import describe_kernels
from blazr.nn.ops.matmul import linear
with torch.inference_mode():
    assert linear(torch.ones(1, 8), torch.ones(4, 8)).tolist() == [[8.0] * 4]
print(describe_kernels()["cpu.linear"])
"""


def _report() -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, done.stderr


@pytest.mark.smoke
@needs_library
def test_the_instruction_set_can_be_chosen() -> None:
    assert compiled.isas()[-1] == "portable"
    for isa in compiled.isas():
        assert compiled.use(isa)
        assert compiled.in_use() == isa
    assert not compiled.use("mmx")
    assert compiled.use()
    assert compiled.in_use() == compiled.isas()[0]


@needs_library
def test_what_runs_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    here = compiled.isas()
    monkeypatch.setenv("BLAZR_KERNELS", "")
    compiled.use()
    assert compiled.explain() == f"{here[0]} (the best here) of {', '.join(here)}"
    monkeypatch.setenv("BLAZR_KERNELS", "portable")
    assert "(BLAZR_KERNELS)" in compiled.explain()


@pytest.mark.skipif(not compiling.LIBRARY.exists(), reason="the library is not in its place")
def test_an_unknown_choice_runs_the_reference_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_KERNELS", "mmx")
    shown, said = _report()
    assert "reference" in shown
    assert "'mmx'" in shown
    assert "portable" in said


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "find_compiler", str)
    assert "no C++ compiler" in compile_library(tmp_path / "x.so")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    assert "does not start" in compile_library(tmp_path / "x.so", compiler=str(tmp_path / "none"))
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho 'a.cpp:1: error: I would rather not' >&2\nexit 1\n")
    fake.chmod(0o755)
    assert compile_library(tmp_path / "x.so", compiler=str(fake)) == (
        "fake: a.cpp:1: error: I would rather not"
    )
    assert not (tmp_path / "x.so").exists()


def test_a_compiler_that_does_not_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "_TIMEOUT_S", 0.1)
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\n[ "$1" = -dumpmachine ] || exec sleep 60\n')
    fake.chmod(0o755)
    said = compile_library(tmp_path / "x.so", compiler=str(fake))
    assert said == "fake: not done after 0.1 s"


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled.missing():
        pytest.skip(compiled.missing())
    monkeypatch.setattr(compiled, "fingerprint", lambda: "0" * 16)
    compiled.missing.cache_clear()
    try:
        assert "older than their sources" in compiled.missing()
    finally:
        monkeypatch.undo()
        compiled.missing.cache_clear()


def test_no_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "none.so")
    compiled.missing.cache_clear()
    try:
        assert "not compiled" in compiled.missing()
        assert "torch's operations: " in compiled.explain()
    finally:
        monkeypatch.undo()
        compiled.missing.cache_clear()


@pytest.mark.slow
@needs_compiler
@needs_library
def test_a_build_without_optimisation_gives_the_same_bits(tmp_path: Path) -> None:
    """No result hangs on what a compiler makes of the code."""
    target = tmp_path / "plain.so"
    assert compile_library(target, flags=["-O0"]) == ""
    plain = ctypes.CDLL(str(target))
    plain.blazr_sources.restype = ctypes.c_char_p
    assert plain.blazr_sources().decode() == fingerprint()
    x, gate, up = torch.randn(40, 75), torch.randn(50, 75), torch.randn(50, 75)
    for number, isa in enumerate(compiled.ISAS):
        if plain.blazr_use(number, None, None) or not compiled.use(isa):
            continue
        y = torch.empty(40, 50)
        a, b, c, d = (t.data_ptr() for t in (x, gate, up, y))
        call = matmul.Linear(a, b, c, None, d, compiled.DTYPES[x.dtype], 40, 50, 75, 75)
        plain.blazr_linear(ctypes.byref(call), 1)
        assert torch.equal(y, matmul.gated_linear(x, gate, up)), isa
