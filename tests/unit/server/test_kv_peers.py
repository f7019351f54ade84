"""What a server says that another lends it is checked before it is read."""

from __future__ import annotations

import pytest

from blazr.engine.cache.transfer import TransferError
from blazr.server.kv_peers import _offer_of


@pytest.mark.parametrize("header", ["", "{", "[]", '{"num_bytes": -1}'])
def test_what_is_no_offer_is_of_no_use(header: str) -> None:
    with pytest.raises(TransferError, match="lends what is no memory"):
        _offer_of(header)
