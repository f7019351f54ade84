"""Where tensors live: the device, which ``auto`` chooses here and nowhere else, and its memory."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from blazr.core import log
from blazr.core.errors import CapacityError, ConfigError

_log = logging.getLogger(__name__)

_LARGE_PAGE = 2**21
# Names of the instructions in /proc/cpuinfo, of x86 and ARM.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "avx_ne_convert"}
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_NUM_THREADS = torch.get_num_threads()  # as torch chose
_EXACTNESS = {"is_exact": False}  # of this process


@dataclass(frozen=True, slots=True)
class Device:
    """A place to compute.

    Args:
        kind: ``"cpu"``, ``"cuda"``, or one of those that run references alone, ``"mps"`` and
            ``"xpu"``.
        description: For people: the processor's or the card's name.
        index: Which of several cards; None where there is one of the kind.
    """

    kind: str
    description: str
    index: int | None = None

    @property
    def torch_device(self) -> torch.device:
        """The same for torch."""
        return torch.device(self.kind) if self.index is None else torch.device(self.name)

    @property
    def name(self) -> str:
        """As `resolve_device` takes it."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def use(self) -> None:
        """Have the calling thread compute here: kernels go to a thread's GPU, not to a tensor's."""
        if self.kind == "cuda" and self.index is not None:
            torch.cuda.set_device(self.index)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """The most memory that work takes here while it runs, in bytes; 0 where nobody counts."""
        if self.kind != "cuda":
            return 0
        where = self.torch_device
        torch.cuda.synchronize(where)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(where)
        torch.cuda.reset_peak_memory_stats(where)
        work()
        torch.cuda.synchronize(where)
        peak = torch.cuda.max_memory_allocated(where)
        torch.cuda.empty_cache()  # what it took is free again, for all to see
        return peak - before

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether torch has fast matrix products in ``dtype`` here.

        bfloat16 on a CPU works everywhere in torch, but without instructions for it float32 is
        both faster and more precise; float16 is slow on every CPU. blazr's own kernels are another
        matter: see `blazr.nn.ops.op.Op.has_kernel`.
        """
        if dtype == torch.float32:
            return True
        if self.kind == "cuda":
            return dtype == torch.float16 or torch.cuda.is_bf16_supported()
        if self.kind != "cpu":
            return dtype in {torch.float16, torch.bfloat16}
        return dtype == torch.bfloat16 and not _BF16_FLAGS.isdisjoint(
            _proc_line("cpuinfo", "flags", "Features").split()
        )

    @property
    def num_threads(self) -> int:
        """Threads of the CPU that operations are computed with."""
        return torch.get_num_threads()

    def free_bytes(self) -> int:
        """Memory that can still be taken here, in bytes."""
        if self.kind != "cpu":
            return self._card_bytes()[0]
        # what the system calls available, less where a control group allows less
        available = _proc_line("meminfo", "MemAvailable:")
        if available:
            free = int(available.split()[0]) * 1024
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit, used = _group_bytes("memory.max"), _group_bytes("memory.current")
        return free if limit is None or used is None else min(free, max(0, limit - used))

    def total_bytes(self) -> int:
        """Memory of all programs here, in bytes, as far as a control group grants it."""
        if self.kind != "cpu":
            return self._card_bytes()[1]
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = _group_bytes("memory.max")
        return total if limit is None else min(total, limit)

    def _card_bytes(self) -> tuple[int, int]:
        """Memory that is free on the card, and all of it, in bytes."""
        if self.kind == "mps":
            total = torch.mps.recommended_max_memory()
            return max(total - torch.mps.driver_allocated_memory(), 0), total
        card = torch.xpu if self.kind == "xpu" else torch.cuda
        free, total = card.mem_get_info(self.index)
        return free, total

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def limit_threads() -> None:
    """Compute on no more threads than the control group has processors (``docker run --cpus``).

    Torch counts the machine's processors; more threads than are granted would stop in turn.
    Nothing changes where somebody has chosen: ``OMP_NUM_THREADS``, ``torch.set_num_threads``.
    """
    try:
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="utf-8").split()
        # the quota is the time of so many processors, rounded up
        granted = _NUM_THREADS if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return
    is_chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != _NUM_THREADS  # noqa: TID251  (it is OpenMP's)
    if granted < _NUM_THREADS and not is_chosen:
        torch.set_num_threads(granted)


def release_threads() -> None:
    """End the threads that torch keeps ready for the calling thread's parallel work.

    Every thread that computes has such a set of its own. GNU OpenMP lets idle ones wait actively,
    which makes short operations half as fast again, only while all sets together are no more than
    the processor's cores: a thread that is done computing should not keep its own. It gets a new
    one when it computes again.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(1)  # soft: only what can be had again


def resolve_device(name: str = "auto") -> Device:
    """Turn a device's name into a Device.

    Args:
        name: ``auto``, ``cpu``, ``cuda``, ``mps`` or ``xpu``; ``cuda:1`` is the second GPU. Without
            a number it is the GPU that the calling thread uses, which is the first.

    Raises:
        ConfigError: The name is unknown, or there is no such device.
    """
    kind, colon, number = name.partition(":")
    is_number = number.isascii() and number.isdigit()
    is_card = kind in _CARDS and (not colon or (is_number and kind != "mps"))
    if name not in {"auto", "cpu"} and not is_card:
        is_gpu = kind.lower() in {"gpu", "cuda", "nvidia", "hip", "rocm"}
        raise ConfigError(
            "unknown device.",
            found=repr(name)[:100],
            expected="auto, cpu, cuda, cuda:1, ..., xpu or mps",
            hint="cuda is the name of the GPU, cuda:1 of the second" if is_gpu else "",
        )
    cards = _cards("cuda" if name == "auto" else kind)
    if name == "cpu" or (name == "auto" and not cards):
        name = _proc_line("cpuinfo", "model name") or "unknown processor"
        count = torch.get_num_threads()
        return Device(
            "cpu", f"{name}, {count} thread" if count == 1 else f"{name}, {count} threads"
        )
    kind = "cuda" if name == "auto" else kind
    if not cards:
        raise ConfigError(
            f"{kind} was asked for, but torch sees no such device.",
            found=f"torch {torch.__version__}",
            expected=_everything(),
            hint=_CARDS[kind],
        )
    if len(number) > 9 or int(number or 0) >= len(cards):
        raise ConfigError(
            f"there is no {name[:20]}.",
            found=", ".join(f"{kind}:{place} ({card})" for place, card in enumerate(cards)),
            expected=_everything(),
        )
    if kind == "mps":
        index = None
    elif number or kind == "xpu":
        index = int(number or 0)
    else:
        index = torch.cuda.current_device()
    if kind != "cuda":
        log.once(
            _log,
            logging.WARNING,
            f"on {kind} every operation is torch's: there are no kernels for it, it is slow,"
            " and it has not been tried",
        )
    return Device(kind, cards[index or 0], index)


# By kind of card, what to try where torch sees none.
_CARDS = {
    "cuda": "install a CUDA build of torch and check nvidia-smi, or use --device cpu",
    "xpu": "install torch's build for Intel GPUs, or use --device cpu",
    "mps": "it takes macOS on Apple's processors; elsewhere use --device cpu",
}


def _cards(kind: str) -> list[str]:
    """The names of the cards of a kind."""
    if kind == "mps":
        return ["Apple's GPU"] if torch.backends.mps.is_available() else []
    if kind == "xpu":
        count = torch.xpu.device_count() if torch.xpu.is_available() else 0
        return [torch.xpu.get_device_name(index) for index in range(count)]
    has_cuda = kind == "cuda" and torch.cuda.is_available()  # noqa: TID251  (the one place that asks)
    count = torch.cuda.device_count() if has_cuda else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def _everything() -> str:
    """The devices that are there, for people."""
    names = [f"{kind}:{place}" for kind in _CARDS for place in range(len(_cards(kind)))]
    return f"one of {', '.join(['cpu', *names])}" if names else "cpu, the only one here"


def use_threads(count: int) -> None:
    """Compute on so many threads of the CPU."""
    torch.set_num_threads(count)


def use_gpu(index: int) -> None:
    """Have the calling thread compute on this one of several GPUs.

    Raises:
        ConfigError: There are not so many.
    """
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            "there is no GPU for every rank.",
            found=f"{count} GPUs",
            expected=f"at least {index + 1}",
            hint="lower --tp, or compute on the CPU (--device cpu)",
        )
    torch.cuda.set_device(index)


def cuda_capability() -> tuple[int, int] | None:
    """What the GPU's architecture is called, such as (9, 0); None where torch sees no GPU."""
    if not torch.cuda.is_available():  # noqa: TID251  (as above)
        return None
    return torch.cuda.get_device_capability()


def zero_bytes(shape: torch.Size, device: torch.device | None = None) -> Tensor:
    """Bytes that are zero; on a CPU each page is taken when it is first touched.

    They lie in large pages where the system has them: with pages of 4 KiB a processor that reads
    from end to end spends a sixth of the time looking up where they are. Memory that the allocator
    had before would come in the small pages it has.

    Args:
        shape: Of the result.
        device: Where; None for a CPU.

    Returns:
        A tensor, uint8.

    Raises:
        CapacityError: The system does not give that much.
    """
    size = shape.numel()
    is_cpu = device is None or device.type == "cpu"
    if not is_cpu or size < _LARGE_PAGE or sys.platform != "linux":
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        own = mmap.mmap(-1, size + _LARGE_PAGE, flags=flags)
    except OSError as error:
        raise CapacityError(
            f"the system does not give {size / 2**20:,.0f} MiB of memory.",
            found=error.strerror or "an error",
            hint="close other programs, or ask for less (--memory)",
        ) from None
    first = -torch.frombuffer(own, dtype=torch.uint8).data_ptr() % _LARGE_PAGE
    # whole pages only: of the rest no more is taken than is used
    own.madvise(mmap.MADV_HUGEPAGE, first, size // _LARGE_PAGE * _LARGE_PAGE)
    # its storage begins where it does: views by absolute offsets find it
    return torch.frombuffer(own, dtype=torch.uint8, count=size, offset=first).view(shape)


def fetch(tensors: Sequence[Tensor], device: torch.device) -> Callable[[], list[Tensor]]:
    """Begin to bring tensors to another device.

    Args:
        tensors: All on one device.
        device: Where to.

    Returns:
        Waits until they are there. What is computed meanwhile on a GPU that they come from is not
        waited for.
    """
    if device.type != "cpu" or not tensors[0].is_cuda:
        moved = [each.to(device, non_blocking=True) for each in tensors]
        return lambda: moved
    copies = [
        torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
        for each in tensors
    ]
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensors[0].device))

    def wait() -> list[Tensor]:
        event.synchronize()
        return copies

    return wait


def zero_rows(rows: Tensor, ids: Sequence[int]) -> None:
    """Fill the rows ``ids`` with zeros.

    On a CPU the calling thread does it. Torch would share it out among its threads, and these wait
    for each other: beside other programs longer than the memory takes.

    Args:
        rows: (N, ...), contiguous.
        ids: Which.
    """
    if rows.device.type == "cpu":
        size = rows.stride(0) * rows.element_size()
        for each in ids:
            ctypes.memset(rows.data_ptr() + each * size, 0, size)
    else:  # by slices: a list of places would be copied to the device, and waited for
        for first, last in _runs(ids):
            rows.view(torch.uint8)[first:last].zero_()


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other: the first, and what is behind the last."""
    for _, group in groupby(enumerate(sorted(ids)), lambda pair: pair[1] - pair[0]):
        run = [each for _, each in group]
        yield run[0], run[-1] + 1


def copy_row(rows: Tensor, source: int, target: int) -> None:
    """Copy a row over another, on a CPU by the calling thread.

    Args:
        rows: (N, ...), contiguous.
        source: The one.
        target: The other.
    """
    if rows.device.type == "cpu":
        size = rows.stride(0) * rows.element_size()
        ctypes.memmove(rows.data_ptr() + target * size, rows.data_ptr() + source * size, size)
    else:
        rows[target] = rows[source]


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Within, torch's generators of the CPU and of this device begin with a seed.

    They get their states back. Torch would keep those of all GPUs, also of others than this one,
    on each of which that takes memory.

    Args:
        device: Where something is drawn.
        seed: Of what is drawn.
    """
    cards = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(cards, device_type=device.type):
        torch.manual_seed(seed)
        yield


def _proc_line(file: str, *keys: str) -> str:
    """The first line of a file of /proc with one of these keys; empty where there is none."""
    try:
        for line in Path("/proc", file).read_text(encoding="utf-8").splitlines():
            if line.startswith(keys):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def _group_bytes(name: str) -> int | None:
    """What a file of the control group says; None where there is no such, or it says "max"."""
    try:
        return int((_CONTROL_GROUP / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_exact() -> bool:
    """Whether a row's numbers must not depend on how many rows there are, where that costs time.

    On a CPU they never do. On a GPU cuBLAS chooses by the number of rows in which order it adds up.
    """
    return _EXACTNESS["is_exact"]


def require_exact() -> None:
    """Ask for it, for all networks of this process."""
    _EXACTNESS["is_exact"] = True


@contextmanager
def exactness(*, is_exact: bool) -> Iterator[None]:
    """Within, it is asked for or not."""
    before, _EXACTNESS["is_exact"] = _EXACTNESS["is_exact"], is_exact
    try:
        yield
    finally:
        _EXACTNESS["is_exact"] = before
