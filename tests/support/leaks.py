"""What must have come back when nothing runs any more."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from blazr.engine.cache.arena import ItemClass
from blazr.engine.engine import Engine


def check_memory_is_back(engine: Engine) -> None:
    """Every page, state and run slot of an idle engine is free, or the prefix cache's.

    The prefix cache is emptied by this.

    Raises:
        AssertionError: Something is lost.
    """
    memory = engine.scheduler.memory
    assert not engine.has_work(), "something runs that nobody waits for"
    assert not engine._by_request, "a request is kept"
    slots = sorted(memory.free_run_slots)
    assert slots == list(range(memory.shape.max_running)), "a run slot is lost"
    for item_class in ItemClass:
        while memory.trie.evict(item_class):
            pass
    assert memory.trie.num_nodes == 0, "a block is locked"
    assert memory.arena.used(ItemClass.PAGE) == 0, "a page is lost"
    assert memory.arena.used(ItemClass.STATE) == 1, "a state is lost"


def resident_bytes() -> int:
    """Memory of this process that is not swapped out, garbage left aside."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
