"""Numbers of bytes as people read them."""

from __future__ import annotations

import pytest

from blazr.core.sizes import size_text


@pytest.mark.parametrize(
    ("num_bytes", "decimal", "binary"),
    [
        (0, "0 bytes", "0 bytes"),
        (999, "999 bytes", "999 bytes"),
        (1000, "1 kB", "1000 bytes"),
        (1024, "1 kB", "1 KiB"),
        (999_960, "1 MB", "976.5 KiB"),
        (2**20 - 1, "1 MB", "1 MiB"),
        (67_512_345, "67.5 MB", "64.4 MiB"),
        (24 * 2**30, "25.8 GB", "24 GiB"),
        (5e12, "5 TB", "4.5 TiB"),
        (2**60, "1152921.5 TB", "1048576 TiB"),
    ],
)
def test_a_size_has_a_unit_that_shows_something(
    num_bytes: float, decimal: str, binary: str
) -> None:
    assert size_text(num_bytes) == decimal
    assert size_text(num_bytes, binary=True) == binary
