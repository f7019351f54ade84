"""Compiles the CPU kernels, when blazr is installed or by ``python -m blazr.nn.kernels.build``.

Standard library only, because the installer's hook runs this file where nothing else is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu" / "csrc"
LIBRARY = SOURCES.parent / "libblazr_cpu.so.1"  # no name that Python would import

# An object file per instruction set: only what runs where the processor has it may use its
# instructions. By what the compiler makes code for; the other files are empty there.
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")))
# Tuned for no processor, GCC puts a tile's products in an order that is 3 % slower on AVX2.
_TUNED = "-mtune=skylake"
_Flags = dict[str, tuple[str, ...]]  # by source file
_X86: _Flags = {
    "kernels_amx.cpp": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    "kernels_avx512_bf16.cpp": (*_AVX512, "-mavx512bf16"),
    "kernels_avx512.cpp": _AVX512,
    "kernels_avx_vnni.cpp": (*_AVX2, "-mavxvnni", _TUNED),
    "kernels_avx2.cpp": (*_AVX2, _TUNED),
}
_ARM: _Flags = {"kernels_neon.cpp": ("-march=armv8.2-a+dotprod",)}
_FLAGS: dict[str, _Flags] = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
# No contraction: a product and a sum are fused where the source says so, in every tile alike. No
# traps: comparisons of numbers that are chosen between become masks, and loops of them vector code.
_COMMON = (
    *("-std=c++20", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-exceptions"),
    *("-ffp-contract=off", "-fno-trapping-math"),
)
_TIMEOUT_S = 1800  # a few minutes' work, on a machine that others use, too


def fingerprint() -> str:
    """What the library must have been built from; it carries the same string."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> str:
    """The first C++ compiler on the path, or an empty string."""
    found = (shutil.which(name) for name in ("g++", "clang++", "c++"))
    return next((path for path in found if path), "")


def compile_library(
    target: Path = LIBRARY, *, compiler: str = "", flags: Sequence[str] = ("-O3",)
) -> str:
    """Compile the kernels into ``target``.

    Args:
        target: The shared library to write; it appears whole or not at all.
        compiler: A C++20 compiler; found on the path when empty.
        flags: Added to every call, for example ``-O0``.

    Returns:
        An empty string, or what went wrong.
    """
    compiler = compiler or find_compiler()
    if not compiler:
        return "no C++ compiler was found (g++ or clang++)"
    try:
        call = [compiler, "-dumpmachine"]
        said = subprocess.run(call, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        return f"{compiler} does not start: {error.strerror}"
    # the compiler may make code for another machine than the one it runs on
    special: _Flags = _FLAGS.get(said.partition("-")[0], {})
    with tempfile.TemporaryDirectory() as directory:
        objects, calls = [], []
        for source in sorted(SOURCES.glob("*.cpp")):
            objects.append(f"{directory}/{source.stem}.o")
            mark = f'-DBLAZR_SOURCES="{fingerprint()}"'
            end = ("-c", str(source), "-o", objects[-1])
            calls.append((compiler, *_COMMON, mark, *special.get(source.name, ()), *flags, *end))
        built = f"{directory}/{target.name}"
        why = _run_all(calls) or _run_all(
            [(compiler, *flags, "-pthread", "-shared", *objects, "-o", built)]
        )
        if not why:
            target.parent.mkdir(parents=True, exist_ok=True)
            # moved into place in one step: another process may be loading the old one
            beside = target.with_suffix(".new")
            shutil.copyfile(built, beside)
            beside.replace(target)
        return why


def _run_all(calls: Sequence[Sequence[str]]) -> str:
    """Run commands side by side; what the first that failed said, or an empty string."""
    running = [
        subprocess.Popen(
            call, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
        )
        for call in calls
    ]
    why = ""
    for call, process in zip(calls, running, strict=True):
        try:
            _, said = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            _, said = process.communicate()
            why = why or f"{Path(call[0]).name}: not done after {_TIMEOUT_S} s"
        if process.returncode and not why:
            lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
            why = f"{Path(call[0]).name}: {lines[0] if lines else 'no message'}"
    return why
