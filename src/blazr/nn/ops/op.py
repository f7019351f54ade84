"""Op: a tensor function with a reference anyone can read, and kernels that may stand in for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from blazr.nn.kernels.resolve import resolve

P = ParamSpec("P")
Samples = Callable[[torch.dtype], Iterable[tuple[object, ...]]]
S = TypeVar("S", bound=Samples)


class Op(Generic[P]):
    """A named tensor function.

    Calling it runs the kernel that KERNELS has for the first argument's device and dtype, or the
    reference: looked up once, remembered after. The reference also stands in where arguments are
    larger than the kernel has room for, as ``limited_to`` says, and where gradients are being
    recorded, as kernels compute none.

    Args:
        name: Its name in OPS and KERNELS.
        reference: The definition, in plain torch. Its first argument decides which kernel runs.
        samples: Arguments in a dtype, on which every kernel must agree with the reference.
        roundings: How often numbers are rounded to the dtype on their way.
        has_memory: Whether arguments hold what sequences remember, which is read and written.
            Such an operation is a whole step of a mixer: its terms cancel, so that kernels are
            judged by all numbers of a tensor together.
    """

    def __init__(
        self,
        name: str,
        *,
        reference: Callable[P, Tensor],
        samples: Samples | None = None,
        roundings: int = 1,
        has_memory: bool = False,
    ) -> None:
        self.name = name
        self.reference = reference
        self.samples: Samples = samples or _none
        self.roundings = roundings
        self.has_memory = has_memory
        self.__doc__ = reference.__doc__
        self._chosen: dict[tuple[torch.device, torch.dtype], Callable[P, Tensor]] = {}

    def sample(self, samples: S) -> S:
        """Take these samples: a decorator of the function that makes them."""
        self.samples = samples
        return samples

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """Run it."""
        if torch.is_grad_enabled():
            return self.reference(*args, **kwargs)
        first: Tensor = args[0]  # type: ignore[assignment]  # the contract of `reference`
        key = (first.device, first.dtype)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = resolve(self.name, first.device.type, first.dtype) or self.reference
            self._chosen[key] = chosen
        fits = getattr(chosen, "fits", None)
        if fits is not None and not fits(*args, **kwargs):
            return self.reference(*args, **kwargs)
        return chosen(*args, **kwargs)


def op(*, roundings: int = 1, has_memory: bool = False) -> Callable[[Callable[P, Tensor]], Op[P]]:
    """Make an operation of its reference, under the reference's name; see `Op`."""

    def make(reference: Callable[P, Tensor]) -> Op[P]:
        name = reference.__name__
        return Op(name, reference=reference, roundings=roundings, has_memory=has_memory)

    return make


def _none(_: torch.dtype) -> Iterable[tuple[object, ...]]:
    return ()
