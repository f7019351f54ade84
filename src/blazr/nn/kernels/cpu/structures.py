"""What kernels are given, declared once: C structures made from classes that list their fields."""

from __future__ import annotations

import ctypes
from typing import Annotated, TypeVar, dataclass_transform, get_type_hints

Pointer = Annotated[int | None, ctypes.c_void_p]  # an address, as ``Tensor.data_ptr`` gives it
Int64 = Annotated[int, ctypes.c_int64]
Int32 = Annotated[int, ctypes.c_int]
Float32 = Annotated[float, ctypes.c_float]

Call = TypeVar("Call", bound=ctypes.Structure)


@dataclass_transform()
def structure(cls: type[Call]) -> type[Call]:
    """Make the C structure that a class lists the fields of, in their order.

    Its docstring begins with its name in ``kernels.hpp``, which lists the same: a test compares.
    """
    hints = get_type_hints(cls, include_extras=True)
    cls._fields_ = [
        (name, *getattr(hints[name], "__metadata__", (hints[name],)))
        for name in cls.__annotations__
    ]
    return cls
