"""From bytes to pools: how many superpages, sequences and tokens the memory holds."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from blazr.core.errors import CapacityError
from blazr.core.sizes import size_text
from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout
from blazr.engine.config import EngineConfig, parse_memory
from blazr.nn.device import Device
from blazr.nn.operands.step import GRID

AUTO_SHARE = {"cpu": 0.25, "cuda": 0.85, "xpu": 0.7, "mps": 0.4}
REUSE_SHARE = 4  # auto takes at most this many times what the running sequences could fill

_log = logging.getLogger(__name__)


def plan_caches(
    layouts: Sequence[CacheLayout],
    config: EngineConfig,
    *,
    device: Device,
    max_seq_len: int,
    step_bytes: int = 0,
) -> list[CacheShape]:
    """Divide the memory among models that read the same texts: room for as many tokens of each.

    Fewer sequences run at once when it is small, never none.

    Args:
        layouts: Sizes of pages, states and superpages of each model.
        config: What the user allows.
        device: Where the memory is.
        max_seq_len: Longest sequence, in tokens.
        step_bytes: What a step takes of the memory while it is computed.

    Raises:
        CapacityError: Not even one sequence of one block fits.
    """
    wanted = [_bytes_wanted(each, config, max_seq_len) for each in layouts]
    free = max(device.free_bytes() // config.sharers - step_bytes, 0)
    if config.memory == "auto":
        allowed = min(int(AUTO_SHARE[device.kind] * free), sum(wanted))
    else:
        allowed = parse_memory(config.memory, free_bytes=free)
        # Not what is free: the pages of files count as used in a control group, and give way.
        if allowed > device.total_bytes():
            raise CapacityError(
                "the caches may not take more memory than there is.",
                found=f"--memory {config.memory}",
                expected=f"at most {device.total_bytes() / 2**30:.1f} GiB, less what weights take",
                hint="--memory 0.5 takes half of what is free",
            )
    return [
        _plan(layout, config, allowed * own // sum(wanted), max_seq_len)
        for layout, own in zip(layouts, wanted, strict=True)
    ]


def _plan(layout: CacheLayout, config: EngineConfig, allowed: int, max_seq_len: int) -> CacheShape:
    running = config.max_running
    while running >= 1:
        left = allowed - running * layout.run_bytes
        superpages = left // layout.superpage_bytes if layout.superpage_bytes else 0
        shape = CacheShape(
            grid=GRID,
            num_superpages=superpages,
            pages_per_superpage=layout.pages_per_superpage,
            states_per_superpage=layout.states_per_superpage,
            max_running=running,
            max_blocks=-(-max_seq_len // GRID),
            num_bytes=superpages * layout.superpage_bytes + running * layout.run_bytes,
            page_bytes=layout.page_bytes,
            state_bytes=layout.state_bytes,
            working_copies=layout.working_copies,
        )
        if shape.num_superpages >= sum(shape.floor) and shape.max_tokens >= GRID:
            _log_shape(shape, config)
            return shape
        running = running // 2
    raise CapacityError(
        "the memory for caches holds not even one sequence.",
        found=size_text(allowed, binary=True),
        expected=f"at least {size_text(_bytes_for(layout, 1, 1, 0), binary=True)}",
        hint="raise --memory, or choose a smaller model",
    )


def _bytes_wanted(layout: CacheLayout, config: EngineConfig, max_seq_len: int) -> int:
    """Enough for what the running sequences could fill, and for some more to be reused."""
    wanted = REUSE_SHARE * config.max_running
    return _bytes_for(layout, config.max_running, wanted * -(-max_seq_len // GRID), wanted)


def _bytes_for(layout: CacheLayout, running: int, pages: int, states: int) -> int:
    """Enough for this many running sequences, pages and kept states."""
    superpages = 3
    if layout.pages_per_superpage:
        superpages += -(-pages // layout.pages_per_superpage)
    if layout.states_per_superpage:
        superpages += -(-(2 * running + 1 + states) // layout.states_per_superpage) + 1
    return superpages * layout.superpage_bytes + running * layout.run_bytes


def _log_shape(shape: CacheShape, config: EngineConfig) -> None:
    room = []
    if shape.has_pages:
        room.append(f"{shape.num_superpages * shape.pages_per_superpage * GRID} tokens")
    if shape.has_states:
        room.append(f"{shape.num_superpages * shape.states_per_superpage} recurrent states")
    _log.info(
        "caches: %.1f MiB for %d sequences at once, with room for %s",
        shape.num_bytes / 2**20,
        shape.max_running,
        " or ".join(room),
    )
    if shape.max_running < config.max_running:
        _log.warning(
            "the cache memory runs %d sequences at once, not %d; --memory raises it",
            shape.max_running,
            config.max_running,
        )
