"""A device beside the CPU, for tests: tensors of both do not mix, as on a machine with a GPU.

Its tensors wrap tensors of the CPU, and their operations are computed there. So networks and
engines run with real numbers, and an operation that is given a tensor of each device raises: one
was made without saying where, or was not brought over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import backend_registration
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from blazr.engine.cache import budget
from blazr.nn import device as devices
from blazr.nn.device import Device

OTHER = "other:0"  # as `resolve_device` takes it, within `other_device`
_KIND = "other"
_CPU = torch.device("cpu")
_FREE_BYTES, _TOTAL_BYTES = 2**30, 2**31
_aten = torch.ops.aten
# Torch's own fill a tensor of no elements, which they make larger: a wrapper would not notice.
_FACTORIES = ("arange", "arange.start", "arange.start_step", "eye", "eye.m")
_COPIES = (_aten.copy_.default, _aten._copy_from.default, _aten._to_copy.default)
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)


class OtherTensor(Tensor):
    """Has a tensor of the CPU, and says that it lies elsewhere."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> OtherTensor:
        # torch refuses to make a view, which is an inference tensor, of one that is not
        with torch.inference_mode(mode=False):
            made: OtherTensor = Tensor._make_wrapper_subclass(
                cls,
                raw.size(),
                strides=raw.stride(),
                storage_offset=raw.storage_offset(),
                dtype=raw.dtype,
                device=torch.device(OTHER),
            )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _compute(func, *args, **(kwargs or {}))

    # what torch does in C++, without the operations above

    def tolist(self) -> list[object]:
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def __repr__(self, **_: object) -> str:
        return f"{_KIND}({self.raw!r})"


@contextmanager
def other_device() -> Iterator[Device]:
    """Within, torch and blazr know such a device.

    Yields:
        The device. Its memory is said to be a gibibyte.
    """
    _register()
    cards = devices._cards
    future: Any = torch.__future__
    was = future.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        # these two fill a tensor in C++, too
        patch.setattr(torch, "tensor", partial(_made_here, torch.tensor))
        patch.setattr(torch, "as_tensor", partial(_made_here, torch.as_tensor))
        patch.setattr(OtherTensor, "new_tensor", _new_tensor)
        patch.setitem(budget.AUTO_SHARE, _KIND, 0.25)
        patch.setitem(devices._CARDS, _KIND, "")
        patch.setattr(devices, "_cards", lambda kind: ["wrapped"] if kind == _KIND else cards(kind))
        patch.setattr(Device, "_card_bytes", lambda _: (_FREE_BYTES, _TOTAL_BYTES))
        # else a parameter keeps its wrapper when its module is brought to another dtype
        future.set_overwrite_module_params_on_conversion(True)
        try:
            yield devices.resolve_device(OTHER)
        finally:
            future.set_overwrite_module_params_on_conversion(was)


class _Module:
    """What ``torch.other`` is asked for."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_rng_state(self, device: object) -> Tensor:
        """Chance is the CPU's."""
        return torch.zeros(1)

    def set_rng_state(self, state: Tensor, device: object) -> None:
        """As above."""

    def manual_seed_all(self, seed: int) -> None:
        """Chance is the CPU's."""


@cache
def _register() -> list[torch.library.Library]:
    """Tell torch of the device, which it does not forget; the list keeps its operations alive."""
    backend_registration._setup_privateuseone_for_python_backend(_KIND, backend_module=_Module())
    _device_constructors()  # remembers the functions that `other_device` puts others in place of
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_compute, "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for name in _FACTORIES:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(_aten, packet), overload or "default")
        factories.impl(name, partial(_compute, func), "PrivateUse1")
    return [everything, factories]


def _compute(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute an operation on the CPU, unless it is given tensors of both devices.

    Raises:
        RuntimeError: It is.
    """
    if func.overloadpacket is _aten.to:  # made of copies, which are judged
        return func.decompose(*args, **kwargs)
    wrappers: dict[int, OtherTensor] = {}
    call_args, call_kwargs = tree_map(partial(_unwrap, func, args, wrappers), (args, kwargs))
    call_kwargs.pop("pin_memory", None)
    found = func(*call_args, **call_kwargs)
    for wrapper in wrappers.values():
        assert wrapper.shape == wrapper.raw.shape, f"{func} made a tensor larger"
    if func is _aten.copy_.default and not isinstance(args[0], OtherTensor):
        return args[0]
    return tree_map(partial(_wrap, wrappers), found) if _stays(func, args, kwargs) else found


def _unwrap(
    func: OpOverload, args: tuple[Any, ...], wrappers: dict[int, OtherTensor], value: Any
) -> Any:
    """An argument for the CPU; notes what was wrapped by the identity of its tensor."""
    if isinstance(value, OtherTensor):
        wrappers[id(value.raw)] = value
        return value.raw
    if isinstance(value, Tensor) and value.dim() and func not in _COPIES:
        is_place = func.overloadpacket in _INDEXING and any(value is each for each in args[1])
        if not is_place:
            raise RuntimeError(f"{func}: a tensor on {value.device}, {tuple(value.shape)}")
    return _CPU if isinstance(value, torch.device) else value


def _wrap(wrappers: dict[int, OtherTensor], value: Any) -> Any:
    """A result; one that was changed in place is the tensor that was given."""
    if not isinstance(value, Tensor):
        return value
    return wrappers[id(value)] if id(value) in wrappers else OtherTensor(value)


def _stays(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result lies on the other device."""
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device).type == _KIND
    return func is not _aten._to_copy.default or isinstance(args[0], OtherTensor)


def _made_here(make: Callable[..., Tensor], data: Any, **kwargs: Any) -> Tensor:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != _KIND:
        return make(data, **kwargs)
    return make(data, **kwargs | {"device": _CPU}).to(device)


def _new_tensor(like: Tensor, data: Any, **kwargs: Any) -> Tensor:
    return torch.tensor(data, **{"dtype": like.dtype, "device": like.device} | kwargs)


def _without_lists(index: Any) -> Any:
    """An index with tensors instead of lists, which torch would make of them on the device."""
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(index) if isinstance(index, list) else index
