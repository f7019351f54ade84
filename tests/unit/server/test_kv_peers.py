"""Which servers are asked for what they know of a prompt, and what they say is checked."""

from __future__ import annotations

import pytest

from blazr.core import log
from blazr.engine.cache.transfer import TransferError
from blazr.server.config import ServerConfig
from blazr.server.kv_peers import KvTransferParams, Peers, _offer_of


@pytest.mark.parametrize("header", ["", "{", "[]", '{"num_bytes": -1}'])
def test_what_is_no_offer_is_of_no_use(header: str) -> None:
    with pytest.raises(TransferError, match="lends what is no memory"):
        _offer_of(header)


@pytest.mark.parametrize(("urls", "lines"), [(("http://127.0.0.1:8100",), 1), ((), 0)])
def test_that_a_client_names_no_peer_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    urls: tuple[str, ...],
    lines: int,
) -> None:
    monkeypatch.setattr(log, "_seen", set())
    peers = Peers(ServerConfig(kv_peers=urls))
    for host in ("localhost", "other"):
        assert peers.find(KvTransferParams(remote_host=host, remote_port=8100)) is None
    assert [each.message.partition(",")[0] for each in caplog.records] == [
        "a request names a server that no --kv-peer is"
    ] * lines
    found = peers.find(KvTransferParams(remote_host="127.0.0.1", remote_port=8100))
    assert (found is None) == (not urls)
