"""Large memory on the processor's side: fresh pages that cost nothing before they are touched."""

from __future__ import annotations

import mmap
import sys

import torch
from torch import Tensor

_LARGE_PAGE = 2**21


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
    """
    size = shape.numel()
    is_cpu = device is None or device.type == "cpu"
    if not is_cpu or size < _LARGE_PAGE or sys.platform != "linux":
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    own = mmap.mmap(-1, size + _LARGE_PAGE, flags=flags)
    whole = torch.frombuffer(own, dtype=torch.uint8)
    first = -whole.data_ptr() % _LARGE_PAGE
    # whole pages only: of the rest no more is taken than is used
    own.madvise(mmap.MADV_HUGEPAGE, first, size // _LARGE_PAGE * _LARGE_PAGE)
    return whole[first : first + size].view(shape)
