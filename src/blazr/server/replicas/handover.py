"""The responses that a replica has stored, for the process that replaces it."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from pathlib import Path

from blazr.server.openai.responses.endpoints import StoredResponse
from blazr.server.store import Store

_log = logging.getLogger(__name__)


def save_responses(responses: Store[object], path: Path) -> None:
    """Write down the stored responses that have ended; nobody else can read the folder."""
    entries = [
        (*key, replace(value, log=None), num_bytes)
        for key, value, num_bytes in responses.entries()
        if isinstance(value, StoredResponse) and value.task is None
    ]
    try:
        path.write_bytes(pickle.dumps(entries))
    except OSError as error:
        _log.error("stored responses are lost: %s", error.strerror)


def restore_responses(responses: Store[object], path: Path) -> None:
    """Read what the process before has left, if it did; only once."""
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return
    try:
        entries = pickle.loads(data)
    except Exception:  # noqa: BLE001  (another version of blazr may have)
        _log.warning("the responses that the process before has stored cannot be read")
        return
    for tenant, name, value, num_bytes in entries:
        responses.put(tenant, name, value, num_bytes=num_bytes)
