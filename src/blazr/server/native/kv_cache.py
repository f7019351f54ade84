"""``POST /kv_cache/export``: what is known of a prompt, for a server that goes on with it."""

from __future__ import annotations

from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from blazr.core.errors import RequestError
from blazr.engine.cache.transfer import export
from blazr.server.endpoint import Call
from blazr.server.kv_peers import ExportBody


class Blocks(StreamingResponse):
    """Pages and a state, as `blazr.engine.cache.transfer` frames them."""

    media_type = "application/octet-stream"


async def export_blocks(call: Call[ExportBody]) -> Blocks:
    """Send what is on disk of a prompt, for another server of the same model."""
    files = call.service.llm.core.engine.files
    if files is None:
        raise RequestError(
            "nothing is kept that could be sent.", hint="start this server with --cache-dir"
        )
    names = [bytes.fromhex(each) for each in call.body.blocks]
    return Blocks(iterate_in_threadpool(export(files, names, call.body.num_known)))
