"""Parameters in the form that operations take: made once, when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class DerivedModule(nn.Module):
    """A module with properties that are `derived`; they are forgotten when parameters are cast."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        self.__dict__.pop("_derived", None)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's


M = TypeVar("M", bound=DerivedModule)


def derived(make: Callable[[M], T]) -> T:
    """A property that is kept; while gradients are recorded it is made each time it is asked for.

    Args:
        make: The getter, of a `DerivedModule`.
    """
    name = make.__name__

    def get(module: M) -> T:
        if torch.is_grad_enabled():
            return make(module)
        kept: dict[str, T] = module.__dict__.setdefault("_derived", {})
        if name not in kept:
            kept[name] = make(module)
        return kept[name]

    return property(get, doc=make.__doc__)  # type: ignore[return-value]  # as attributes are typed
