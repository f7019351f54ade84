"""What Python declares of a kernel's arguments is what the library has been compiled with."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import Structure, sizeof
from importlib import import_module

import pytest

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled, repeats

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def test_structures_are_those_of_the_library() -> None:
    found = {
        (each.__doc__ or "").split("``")[1]: [
            sizeof(each),
            *(getattr(each, field).offset for field in each.__annotations__ if field != "library"),
        ]
        for each in _structures()
    }
    assert found == compiled.layouts()


def _structures() -> Iterator[type[Structure]]:
    modules = {row.target.partition(":")[0] for row in KERNELS.values() if row.device == "cpu"}
    for name in (*modules, compiled.__name__, repeats.__name__):
        for each in vars(import_module(name)).values():
            if not isinstance(each, type) or each is compiled.Call:
                continue
            if issubclass(each, Structure) and each.__module__ == name:
                yield each
