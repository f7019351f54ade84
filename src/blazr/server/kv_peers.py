"""The servers from which prompts that they have read may be fetched, and how they are asked."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec

from blazr.core import log
from blazr.core.remote import auth_headers
from blazr.engine.cache.transfer import Incoming, TransferError
from blazr.server.config import ServerConfig
from blazr.server.kv_nixl import Nixl, Offer
from blazr.server.schema import END

EXPORT_PATH = "/kv_cache/export"
NIXL_HEADER = "X-Blazr-Nixl"
MOST_BLOCKS = 65_536  # of one prompt: four million tokens
PORTS = {"http": 80, "https": 443}
# Without what the client has sent, so that this is said once.
_NO_PEER = (
    "a request names a server that no --kv-peer is, and its prompt is computed here; remote_host "
    "and remote_port must be those of a --kv-peer; a server tells those under which it was asked"
)
_CONNECT_S = 2.0
_SILENT_S = 10.0  # of a server that sends
_LONGEST_S = 60.0
_PIECE_BYTES = 2**20

_log = logging.getLogger(__name__)


class KvTransferParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which other server reads the prompt, or has read it; null is as good as nothing."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: str | None = None
    remote_block_ids: list[Any] | None = None
    remote_host: str | None = None
    remote_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


BlockName = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}" + END)]


class ExportBody(msgspec.Struct, kw_only=True):
    """The names of a prompt's blocks, and after how many of them nothing is lacking.

    With ``nixl`` they may be lent, not sent: the answer then has no body and says where they are.
    """

    blocks: Annotated[list[BlockName], msgspec.Meta(max_length=MOST_BLOCKS)]
    num_known: Annotated[int, msgspec.Meta(ge=0)]
    model: str | None = None
    nixl: bool = False


class Peers:
    """The servers from which this one may fetch.

    Args:
        config: Has their addresses, and the operator's key that all share.

    Attributes:
        nixl: Reads their memory, and lends this server's; None where NIXL is not installed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.nixl = Nixl() if Nixl.is_installed() else None
        self._urls = [urlsplit(each) for each in config.kv_peers]
        key = next(iter(config.admin_api_keys + config.api_keys), None)
        self._headers = auth_headers(key)

    def find(self, params: KvTransferParams) -> SplitResult | None:
        """The server that a client names; None where the operator has not named it, too."""
        for url in self._urls:
            named = (params.remote_host, params.remote_port)
            if (url.hostname, url.port or PORTS[url.scheme]) == named:
                return url
        if self._urls:  # without any, a folder may be shared
            log.once(_log, logging.WARNING, _NO_PEER)
        return None

    async def fetch(self, url: SplitResult, body: ExportBody, incoming: Incoming) -> None:
        """Have a server send what it has of a prompt.

        Raises:
            httpx2.HTTPError: It does not answer, or refuses.
            TransferError: What it sends is of no use.
            OSError: It cannot be written, or takes too long.
        """
        path = url.path.rstrip("/") + EXPORT_PATH
        address = url._replace(path=path).geturl()
        content = msgspec.json.encode(msgspec.structs.replace(body, nixl=self.nixl is not None))
        async with (
            asyncio.timeout(_LONGEST_S),
            httpx2.AsyncClient(
                timeout=httpx2.Timeout(_SILENT_S, connect=_CONNECT_S),
                headers=self._headers,
                trust_env=False,
                verify=url.scheme == "https",  # certificates take a while to read
            ) as client,
            client.stream("POST", address, content=content) as response,
        ):
            response.raise_for_status()
            lent = response.headers.get(NIXL_HEADER)
            if lent is not None and self.nixl is not None:
                offer = _offer_of(lent)
                data = await asyncio.to_thread(self.nixl.read, offer)
                await asyncio.to_thread(incoming.feed, data)
            async for data in response.aiter_raw(_PIECE_BYTES):
                await asyncio.to_thread(incoming.feed, data)
        incoming.end()


def _offer_of(header: str) -> Offer:
    try:
        return msgspec.json.decode(header, type=Offer)
    except msgspec.DecodeError as error:
        raise TransferError(f"it lends what is no memory: {error}") from error
