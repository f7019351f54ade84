"""What Python declares of a kernel's arguments is what the library has been compiled with."""

from __future__ import annotations

from ctypes import sizeof
from importlib import import_module

import pytest

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.cpu.structures import STRUCTURES

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def test_structures_are_those_of_the_library() -> None:
    for row in KERNELS.values():
        if row.device == "cpu":
            import_module(row.target.partition(":")[0])
    found = {
        name: [
            sizeof(each),
            *(getattr(each, field).offset for field in each.__annotations__ if field != "library"),
        ]
        for name, each in STRUCTURES.items()
    }
    assert found == compiled.layouts()
