"""What `tests/support/kernel_builds.py` says of a library that cannot be opened here."""

from __future__ import annotations

import platform
import shutil
import struct
from pathlib import Path

import pytest

from tests.support import kernel_builds

EM_X86_64, EM_AARCH64 = 62, 183


def header(machine: int) -> bytes:
    """How a shared library for a processor begins; there is nothing behind it."""
    return b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack("<HH", 3, machine)


@pytest.mark.parametrize("data", [b"", b"hello", header(EM_X86_64), header(EM_X86_64) * 50])
def test_what_does_not_load_is_not_emulated(data: bytes, tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    library.write_bytes(data)
    with pytest.raises(pytest.UsageError, match="does not load"):
        kernel_builds.open_here(library)


def test_what_is_no_file(tmp_path: Path) -> None:
    for library in (None, tmp_path, tmp_path / "kernels.so"):
        with pytest.raises(pytest.UsageError, match="names no file"):
            kernel_builds.open_here(library)


@pytest.mark.skipif(platform.machine() == "aarch64", reason="it would be tried here")
@pytest.mark.parametrize("has_emulator", [False, True])
def test_what_is_for_another_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_emulator: bool
) -> None:
    library = tmp_path / "kernels.so"
    library.write_bytes(header(EM_AARCH64))
    monkeypatch.setattr(shutil, "which", lambda name: name if has_emulator else None)
    if has_emulator:
        assert not kernel_builds.open_here(library)
        return
    with pytest.raises(pytest.UsageError, match="qemu"):
        kernel_builds.open_here(library)
