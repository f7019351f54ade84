"""An adapter that requests may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Adapter:
    """An adapter in memory.

    Args:
        slot: Where the network has it, from 1 on.
        fingerprint: A hash of all that it holds, in hexadecimal.
        is_loaded: Whether new requests may use it; once it is not, it goes with the last of those
            that do.
        successor: What has taken its place under the same name, if anything has.
    """

    slot: int
    fingerprint: str
    is_loaded: bool = True
    successor: Adapter | None = None

    @property
    def latest(self) -> Adapter:
        """What is in its place now: itself, or the last of its successors."""
        found = self
        while found.successor is not None:
            found = found.successor
        return found

    def salt(self, salt: str) -> str:
        """A salt for the prefixes of requests with this adapter; no other request has it."""
        return f"{salt}\0{self.fingerprint}"

    def salt_without(self, salt: str) -> str:
        """What `salt` was made from."""
        return salt.removesuffix(f"\0{self.fingerprint}")
