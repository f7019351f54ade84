"""``POST /kv_cache/export``: what is known of a prompt, for a server that goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain

import msgspec
from starlette.background import BackgroundTask
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from blazr.core.errors import RequestError
from blazr.engine.cache.transfer import export
from blazr.server.endpoint import Call
from blazr.server.kv_nixl import MOST_LENT_BYTES, Loan
from blazr.server.kv_peers import NIXL_HEADER, ExportBody


class Blocks(StreamingResponse):
    """Pages and a state, as `blazr.engine.cache.transfer` frames them."""

    media_type = "application/octet-stream"


async def export_blocks(call: Call[ExportBody]) -> Blocks:
    """Send what is on disk of a prompt, for another server of the same model; or lend it."""
    files = call.llm.core.engine.files
    if files is None:
        raise RequestError(
            "nothing is kept that could be sent.", hint="start this server with --cache-dir"
        )
    names = [bytes.fromhex(each) for each in call.body.blocks]
    pieces = export(files, names, call.body.num_known)
    nixl = call.state.peers.nixl
    if nixl is None or not call.body.nixl:
        return Blocks(iterate_in_threadpool(pieces))
    start = await asyncio.to_thread(_first, pieces)
    data = b"".join(start)
    if not 0 < len(data) <= MOST_LENT_BYTES:
        return Blocks(iterate_in_threadpool(chain(start, pieces)))
    loan = await asyncio.to_thread(Loan, nixl, data)
    return Blocks(
        iterate_in_threadpool(()),
        headers={NIXL_HEADER: msgspec.json.encode(loan.offer).decode()},
        background=BackgroundTask(loan.wait),
    )


def _first(pieces: Iterator[bytes]) -> list[bytes]:
    """All that may be lent at once, and a piece more where that is not all."""
    found: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        found.append(piece)
        num_bytes += len(piece)
        if num_bytes > MOST_LENT_BYTES:
            break
    return found
