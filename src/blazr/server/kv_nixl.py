"""Memory of one server, read by another through NIXL, which takes RDMA where machines have it.

The server that sends lends a buffer and says where it is; the other one reads it, and with the last
byte comes a notice that it has. Both ends keep what is moved in the files of ``--cache-dir``. See
https://github.com/ai-dynamo/nixl.
"""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from threading import Lock
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import NDArray

from blazr.engine.cache.transfer import TransferError

MOST_LENT_BYTES = 2**30  # of one prompt; more is streamed, so that memory need not hold all of it
_LOOK_S = 0.01  # between two looks for a notice
_READ_S = 0.001
_LONGEST_S = 60.0


class Offer(msgspec.Struct):
    """Where lent memory is.

    Args:
        agent: Of the server that lends it, as NIXL describes it.
        memory: The buffer, as NIXL describes it.
        num_bytes: Its length.
        notice: What its owner is told when it has been read.
    """

    agent: bytes
    memory: bytes
    num_bytes: int
    notice: str


class Loan:
    """A buffer that another server may read, until `wait` is over.

    Args:
        nixl: Whose.
        data: What it holds; not empty.
    """

    def __init__(self, nixl: Nixl, data: bytes) -> None:
        self._nixl = nixl
        self._data = np.frombuffer(data, np.uint8)  # which stays where it is
        self._registered, memory = nixl.register(self._data)
        self.offer = Offer(nixl.description(), memory, len(data), uuid4().hex)

    async def wait(self) -> None:
        """Wait until it has been read, a minute at most, and take it back."""
        end = monotonic() + _LONGEST_S
        try:
            while not self._nixl.was_read(self.offer.notice) and monotonic() < end:
                await asyncio.sleep(_LOOK_S)
        finally:
            self._nixl.deregister(self._registered)


class Nixl:
    """This process's part in NIXL, made when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: Any = None
        self._notices: set[str] = set()

    @staticmethod
    def is_installed() -> bool:
        """Whether there is NIXL here."""
        return find_spec("nixl") is not None

    def read(self, offer: Offer) -> bytes:
        """Read what another server lends.

        Raises:
            TransferError: It cannot be read, or not within a minute.
        """
        if not 0 < offer.num_bytes <= MOST_LENT_BYTES:
            raise TransferError(f"it lends {offer.num_bytes:,} bytes, {MOST_LENT_BYTES:,} at most")
        data = np.empty(offer.num_bytes, np.uint8)
        registered, _ = self.register(data)
        try:
            self._read(offer, registered)
        except TransferError:
            raise
        except Exception as error:  # NIXL's own are of many kinds
            raise TransferError(f"NIXL cannot read it: {error}") from error
        finally:
            self.deregister(registered)
        return data.tobytes()

    def register(self, data: NDArray[np.uint8]) -> tuple[object, bytes]:
        """Make a buffer known to NIXL: what `deregister` takes, and a description for others."""
        with self._lock:
            agent = self._agent()
            registered = agent.register_memory([(data.ctypes.data, data.nbytes, 0, "")], "DRAM")
            return registered, agent.get_serialized_descs(registered.trim())

    def deregister(self, registered: object) -> None:
        """Forget a buffer."""
        with self._lock:
            self._agent().deregister_memory(registered)

    def description(self) -> bytes:
        """How others reach this process."""
        with self._lock:
            found: bytes = self._agent().get_agent_metadata()
            return found

    def was_read(self, notice: str) -> bool:
        """Whether a notice has come; it is told once."""
        with self._lock:
            for texts in self._agent().get_new_notifs().values():
                self._notices.update(text.decode() for text in texts)
            was_read = notice in self._notices
            self._notices.discard(notice)
            return was_read

    def _read(self, offer: Offer, registered: Any) -> None:
        with self._lock:
            agent = self._agent()
            name = agent.add_remote_agent(offer.agent)
            handle = agent.initialize_xfer(
                "READ",
                registered.trim(),
                agent.deserialize_descs(offer.memory),
                name,
                offer.notice.encode(),
            )
            state = agent.transfer(handle)
        end = monotonic() + _LONGEST_S
        while state == "PROC" and monotonic() < end:
            sleep(_READ_S)
            with self._lock:
                state = agent.check_xfer_state(handle)
        with self._lock:
            agent.release_xfer_handle(handle)
        if state != "DONE":
            raise TransferError(f"NIXL could not read it: {state}")

    def _agent(self) -> Any:
        if self._made is None:
            from nixl._api import nixl_agent, nixl_agent_config

            name = f"blazr-{os.getpid()}-{uuid4().hex}"
            self._made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        return self._made
