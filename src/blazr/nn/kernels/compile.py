"""Compiles the CPU kernels, when blazr is installed or by ``python -m blazr.nn.kernels.build``.

Standard library only, because the installer's hook runs this file where nothing else is installed.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu" / "csrc"
LIBRARY = SOURCES.parent / "libblazr_cpu.so.1"  # no name that Python would import

# An object file per instruction set: only what runs after cpuid's consent may use its instructions.
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_FLAGS = {
    "kernels_avx512.cpp": (
        *_AVX2,
        *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "bf16", "vnni")),
    ),
    "kernels_avx2.cpp": _AVX2,
}
# No contraction: a product and a sum are fused where the source says so, in every tile alike. No
# traps: comparisons of numbers that are chosen between become masks, and loops of them vector code.
_COMMON = (
    *("-std=c++20", "-fPIC", "-fvisibility=hidden", "-fno-exceptions"),
    *("-ffp-contract=off", "-fno-trapping-math"),
)
_TIMEOUT_S = 600


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
    has_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    with tempfile.TemporaryDirectory() as directory:
        objects, calls = [], []
        for source in sorted(SOURCES.glob("*.cpp")):
            objects.append(f"{directory}/{source.stem}.o")
            special = _FLAGS.get(source.name, ()) if has_x86 else ()
            mark = f'-DBLAZR_SOURCES="{fingerprint()}"'
            end = ("-c", str(source), "-o", objects[-1])
            calls.append((compiler, *_COMMON, mark, *special, *flags, *end))
        built = f"{directory}/{target.name}"
        why = _run_all(calls) or _run_all([(compiler, *flags, "-shared", *objects, "-o", built)])
        if not why:
            # moved into place in one step: another process may be loading the old one
            beside = target.with_suffix(".new")
            shutil.copyfile(built, beside)
            beside.replace(target)
        return why


def _run_all(calls: Sequence[Sequence[str]]) -> str:
    """Run commands side by side; what the first that failed said, or an empty string."""
    try:
        running = [
            subprocess.Popen(call, stderr=subprocess.PIPE, text=True, errors="replace")
            for call in calls
        ]
    except OSError as error:
        return f"{calls[0][0]} does not start: {error.strerror}"
    why = ""
    for call, process in zip(calls, running, strict=True):
        _, said = process.communicate(timeout=_TIMEOUT_S)
        if process.returncode and not why:
            lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
            why = f"{Path(call[0]).name}: {lines[0] if lines else 'no message'}"
    return why
