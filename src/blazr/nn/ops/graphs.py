"""Steps captured as graphs: what a device is asked for, and what a graph cannot hold.

A captured step is launched again by one call, on the addresses it was captured with. Nothing in it
may depend on numbers that the host has read, or come from the host's memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from blazr.nn.kernels.recording import UnrecordableError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The host waits for the device and looks at numbers.
_READS = frozenset(
    {
        Tensor.item,
        Tensor.tolist,
        Tensor.numpy,
        Tensor.cpu,
        Tensor.__bool__,
        Tensor.__int__,
        Tensor.__float__,
        Tensor.__index__,
        Tensor.__contains__,
        Tensor.__array__,
        torch.equal,
        torch.allclose,
        torch.is_nonzero,
    }
)
# The same, or the shape of what comes out depends on numbers.
_READING_OPS = frozenset(
    {
        "_local_scalar_dense",
        "is_nonzero",
        "equal",
        "nonzero",
        "masked_select",
        "unique_consecutive",
        "unique_dim",
        "_unique2",
        "repeat_interleave",
        "bincount",
    }
)
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
_CAPTURING = Lock()  # torch captures one graph at a time in a process


class GraphDevice(ABC):
    """Where steps are captured, and launched one after the other."""

    @abstractmethod
    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture what ``run`` does, which it does a few times meanwhile.

        Args:
            run: Reads and writes tensors that stay where they are, and puts nothing out.

        Returns:
            Does it again, within `launch`.

        Raises:
            UnrecordableError: A graph cannot hold it.
        """

    @abstractmethod
    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """Give the device some work, behind all that it was given before; this does not wait.

        Args:
            work: Operations on tensors, captured steps, and copies from and to `pinned` memory.

        Returns:
            Waits until it is done.
        """

    @abstractmethod
    def upload(self, values: Tensor) -> Tensor:
        """Within `launch`: bring values from `pinned` memory, which stay there until it is done."""

    @abstractmethod
    def download(self, values: Tensor, target: Tensor) -> None:
        """Within `launch`: bring values to `pinned` memory, where they are when it is done."""

    @abstractmethod
    def join(self) -> None:
        """Have operations outside of `launch` come behind all that was launched."""

    @abstractmethod
    def pinned(self, *shape: int) -> Tensor:
        """Memory of the host, int64, that is copied from and to without waiting for it."""


class CudaGraphs(GraphDevice):
    """Those of a GPU.

    Args:
        device: Which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()  # the graphs of all sizes take turns in it
        # torch's own stream for captures is one of the first GPU that captured in this process
        self._aside = torch.cuda.Stream(device)

    @override
    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """See `GraphDevice.capture`."""
        usual = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(usual)
        try:
            with torch.cuda.stream(self._aside):
                warm_up(run)
        finally:  # what it was refused behind is still under way
            usual.wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        # what other threads do on the GPU meanwhile is none of the graph's business
        whole = torch.cuda.graph(
            graph, pool=self._pool, stream=self._aside, capture_error_mode="thread_local"
        )
        with _CAPTURING, whole:
            run()
        return graph.replay

    @override
    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `GraphDevice.launch`."""
        work()
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event.synchronize

    @override
    def upload(self, values: Tensor) -> Tensor:
        """See `GraphDevice.upload`."""
        return values.to(self._device, non_blocking=True)

    @override
    def download(self, values: Tensor, target: Tensor) -> None:
        """See `GraphDevice.download`."""
        target.copy_(values, non_blocking=True)

    @override
    def join(self) -> None:
        """See `GraphDevice.join`: all is on one stream."""

    @override
    def pinned(self, *shape: int) -> Tensor:
        """See `GraphDevice.pinned`."""
        return torch.zeros(shape, dtype=torch.int64, pin_memory=True)


def graph_device(device: torch.device) -> GraphDevice | None:
    """What captures steps on this device, if anything does."""
    return CudaGraphs(device) if device.type == "cuda" else None


def warm_up(run: Callable[[], None]) -> None:
    """Run a step as often as it takes to know that a graph can hold it.

    Raises:
        UnrecordableError: ``run`` reads numbers on the host, or brings some from there.
    """
    run()  # layers prepare some tensors in their first step
    with UsedMemory() as used:
        run()
    with guarding_capture(CaptureGuard(used)):
        run()


class _UsedMemory:
    """What `UsedMemory` does with each operation.

    In a base class, for the reason that `_Dispatch` of ``kernels/recording.py`` gives.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: set[int] = {0}
        self._used: dict[int, Tensor] = {}  # the tensors, so that no other memory gets its address

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it, and note the memory that it takes and makes."""
        for each in tensors_in((args, kwargs)):
            if address_of(each) not in self._made:
                self._used.setdefault(address_of(each), each)
        found = func(*args, **(kwargs or {}))
        made = {address_of(each) for each in tensors_in(found)}
        self._made |= made - self._used.keys()
        return found

    def has(self, tensor: Tensor) -> bool:
        """Whether this is memory that was there before the run."""
        return address_of(tensor) in self._used


class UsedMemory(_UsedMemory, TorchDispatchMode):
    """Notes the memory that a run reads or writes but did not allocate.

    A captured graph uses the same addresses, so this memory has to stay where it is.
    """


class _CaptureGuard:
    """What `CaptureGuard` does with each operation; in a base class as that of `UsedMemory`.

    Args:
        used: Memory from before the run that may be used.
    """

    def __init__(self, used: UsedMemory) -> None:
        super().__init__()
        self.used = used
        self._made: set[int] = {0}

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it, or raise an UnrecordableError if a graph could not hold it."""
        kwargs = kwargs or {}
        # operations made of others are judged by these
        with self:  # type: ignore[attr-defined]  # a mode
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        name = func.overloadpacket.__name__
        given = tensors_in((args, kwargs))
        if name in _READING_OPS:
            raise UnrecordableError(f"{name}: the host would have to know numbers of the device")
        if name in _INDEXING and any(each.dtype == torch.bool for each in tensors_in(args[1])):
            raise UnrecordableError(f"{name}: how many a mask selects is known on the device alone")
        if any(address_of(each) not in self._made and not self.used.has(each) for each in given):
            raise UnrecordableError(
                f"{name}: memory of the host, or other than the run before used"
            )
        if len({each.device.type for each in given if each.dim()}) > 1:
            raise UnrecordableError(f"{name}: a copy between host and device")
        found = func(*args, **kwargs)
        self._made |= {address_of(each) for each in tensors_in(found)}
        self.keep(func, args, kwargs, found)
        return found

    def keep(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        found: object,
    ) -> None:
        """Called after each operation that a graph can hold."""


class CaptureGuard(_CaptureGuard, TorchDispatchMode):
    """Raises an UnrecordableError at an operation that a graph could not hold; runs all others."""


class _NoReads(TorchFunctionMode):
    """Raises an UnrecordableError where Python reads numbers of a tensor."""

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it unless the host would read by it."""
        if func in _READS:
            raise UnrecordableError(f"{func.__name__}: the host would wait for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def guarding_capture(guard: CaptureGuard) -> Iterator[None]:
    """Within, what a graph could not hold raises an UnrecordableError.

    Args:
        guard: Judges torch's operations; what Python reads of tensors is judged beside it.
    """
    with _NoReads(), guard:
        yield


def tensors_in(value: object) -> list[Tensor]:
    """The tensors among arguments, however deep."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [found for each in value for found in tensors_in(each)]
    return []


def address_of(tensor: Tensor) -> int:
    """Where its storage begins."""
    return tensor.untyped_storage().data_ptr()
