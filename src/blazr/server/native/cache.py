"""``GET /debug/cache``: why prefixes are reused, or are not."""

from __future__ import annotations

import msgspec

from blazr.server.endpoint import Call
from blazr.server.state import PrefixReport

_REASON = "reuse_"


class Pages(msgspec.Struct):
    """Pages of memory for keys and values; one takes ``bytes_each`` for all layers."""

    used: int
    idle: int
    free: int
    evictions: int
    bytes_each: int


class States(msgspec.Struct):
    """Slots for the states of recurrent layers; one takes ``bytes_each`` for all of them."""

    used: int
    free: int
    evictions: int
    bytes_each: int


class Disk(msgspec.Struct):
    """What ``--cache-dir`` holds, and how it has been used since the start."""

    bytes: int
    read_pages: int
    read_states: int
    written: int
    deleted: int
    spoiled: int
    skipped: int
    errors: int
    sent_bytes: int
    received_bytes: int


class CacheReport(msgspec.Struct):
    """What the caches hold, and why prefixes were reused or not."""

    pages: Pages
    states: States
    disk: Disk | None
    blocks: int
    prompt_tokens: int
    cached_tokens: int
    reasons: dict[str, int]
    recent: list[PrefixReport]


async def show_cache(call: Call[None]) -> CacheReport:
    """A model's: what the caches hold, how often prefixes were reused, the latest requests."""
    stats = call.llm.core.engine.stats()

    def count(name: str) -> int:
        return int(stats.get(name, 0))

    disk = None
    if "disk_bytes" in stats:
        disk = Disk(**{name: count(f"disk_{name}") for name in Disk.__struct_fields__})
    return CacheReport(
        pages=Pages(
            used=count("pages_used"),
            idle=count("pages_idle"),
            free=count("pages_free"),
            evictions=count("page_evictions"),
            bytes_each=count("page_bytes"),
        ),
        states=States(
            used=count("states_used"),
            free=count("states_free"),
            evictions=count("state_evictions"),
            bytes_each=count("state_bytes"),
        ),
        disk=disk,
        blocks=count("prefix_blocks"),
        prompt_tokens=count("prompt_tokens"),
        cached_tokens=count("cached_tokens"),
        reasons={
            name.removeprefix(_REASON): int(number)
            for name, number in stats.items()
            if name.startswith(_REASON)
        },
        recent=[each for each in call.state.reports(call.tenant) if each.model == call.name],
    )
