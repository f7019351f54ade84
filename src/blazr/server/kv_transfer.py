"""Prompts read by one server and continued by another, in vLLM's words: ``kv_transfer_params``.

The server that reads a prompt is asked for one token and ``do_remote_decode``. It answers when all
is on its disk, and says where it can be reached. The one that continues gets that as it is: it
fetches the files that it lacks from there, if the operator has named that server, and looks into
its own directory, which both may share. Whatever cannot be had is computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec

from blazr.core.errors import RequestError
from blazr.engine.cache.transfer import Incoming, TransferError, num_resumable
from blazr.engine.request import Request
from blazr.server.endpoint import Call
from blazr.server.kv_peers import MOST_BLOCKS, PORTS, ExportBody, KvTransferParams

_log = logging.getLogger(__name__)


class KvTransfer:
    """What a request asks to be moved.

    Args:
        call: The request.
        params: Its ``kv_transfer_params``.
        is_streamed: Whether its reply is.

    Raises:
        RequestError: It asks for what this server cannot do.
    """

    def __init__(self, call: Call[object], params: KvTransferParams, *, is_streamed: bool) -> None:
        self._params = params
        self._call = call
        self._engine = call.llm.core.engine
        self._requests: Sequence[Request] = ()
        if not (self._params.do_remote_decode or self._params.do_remote_prefill):
            return
        if self._engine.files is None:
            raise RequestError(
                "this server has nowhere to keep what is moved.",
                param="kv_transfer_params",
                hint="start it with --cache-dir",
            )
        if self._params.do_remote_decode and is_streamed:
            raise RequestError(
                "where to fetch a prompt is told at the end of a reply that is not streamed.",
                param="kv_transfer_params",
                found="do_remote_decode with stream",
                expected='"stream": false',
            )

    async def before(self, requests: Sequence[Request]) -> None:
        """Fetch what another server has computed of some prompts; what fails is computed here."""
        self._requests = requests
        if not self._params.do_remote_prefill:
            return
        peer = self._call.state.peers.find(self._params)
        if peer is None:
            return
        for request in requests:
            try:
                await self._fetch(peer, request)
            except (httpx2.HTTPError, httpx2.InvalidURL, TransferError, OSError) as error:
                why = str(error) or type(error).__name__
                _log.warning("a prompt is computed, not fetched from %s: %s", peer.netloc, why)

    async def after(self) -> KvTransferParams | msgspec.UnsetType:
        """Have the prompts' files written, and tell where they are, if that was asked for."""
        if not self._params.do_remote_decode:
            return msgspec.UNSET
        files = self._engine.files
        assert files is not None, "the request was refused"
        await asyncio.to_thread(self._engine.keep_prompts, self._requests)
        host, port = self._reached()
        return KvTransferParams(
            do_remote_decode=False,
            do_remote_prefill=True,
            remote_engine_id=files.fingerprint.hex(),
            remote_host=host,
            remote_port=port,
        )

    def _reached(self) -> tuple[str | None, int | None]:
        """Under which name and port the client has reached this server; None where it says none."""
        scheme = "http" if self._call.model.config.tls_cert is None else "https"
        try:
            address = urlsplit(f"//{self._call.host}")
            return address.hostname, address.port or PORTS[scheme]
        except ValueError:  # a client may write anything there
            return None, None

    async def _fetch(self, peer: SplitResult, request: Request) -> None:
        files = self._engine.files
        names = await asyncio.to_thread(self._engine.block_names, request)
        if files is None or not 0 < len(names) <= MOST_BLOCKS:
            return
        num_known = await asyncio.to_thread(num_resumable, files, names)
        if num_known == len(names):
            return
        body = ExportBody(
            blocks=[name.hex() for name in names],
            num_known=num_known,
            model=self._call.name,
        )
        incoming = Incoming(files, names, num_known)
        await self._call.state.peers.fetch(peer, body, incoming)
