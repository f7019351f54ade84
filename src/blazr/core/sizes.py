"""Numbers of bytes as people read them."""

from __future__ import annotations


def size_text(num_bytes: float, *, binary: bool = False) -> str:
    """A number of bytes in the largest unit of which it is a whole one, with one decimal at most.

    Args:
        num_bytes: 0 or more.
        binary: Whether units are powers of 1024, as caches are divided, or of 1000, as disks are.
    """
    base, units = (1024, "KiB MiB GiB TiB") if binary else (1000, "kB MB GB TB")
    size, unit = num_bytes, "bytes"
    for larger in units.split():
        # what would be rounded to a whole one of the next, too
        if size < base - 0.05:
            break
        size, unit = size / base, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
