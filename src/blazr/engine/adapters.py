"""An adapter that requests may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Adapter:
    """An adapter in memory.

    Args:
        slot: Where the network has it, from 1 on.
        is_loaded: Whether new requests may use it; once it is not, it goes with the last of those
            that do.
    """

    slot: int
    is_loaded: bool = True
