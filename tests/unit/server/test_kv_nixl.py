"""Memory that is lent through NIXL is read whole, and comes back. Needs the extra ``nixl``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import pytest

from blazr.engine.cache.transfer import TransferError
from blazr.server.kv_nixl import MOST_LENT_BYTES, Loan, Nixl, Offer

pytest.importorskip("nixl")

DATA = bytes(range(251)) * 40_000


@dataclass
class Ends:
    lender: Nixl
    reader: Nixl


@pytest.fixture(scope="module")
def ends() -> Ends:
    return Ends(Nixl(), Nixl())


def test_what_is_lent_is_read_and_comes_back(ends: Ends) -> None:
    async def lend_and_read() -> bytes:
        loan = Loan(ends.lender, DATA)
        waiting = asyncio.create_task(loan.wait())
        told = msgspec.json.decode(msgspec.json.encode(loan.offer), type=Offer)
        found = await asyncio.to_thread(ends.reader.read, told)
        async with asyncio.timeout(30):
            await waiting
        return found

    assert asyncio.run(lend_and_read()) == DATA


def test_several_at_once(ends: Ends) -> None:
    async def lend_and_read(number: int) -> None:
        data = DATA[number:]
        loan = Loan(ends.lender, data)
        found, _ = await asyncio.gather(
            asyncio.to_thread(ends.reader.read, loan.offer), loan.wait()
        )
        assert found == data

    async def all_of_them() -> None:
        await asyncio.gather(*(lend_and_read(number) for number in range(8)))

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    "changed",
    [{"agent": b"nobody"}, {"memory": b"nowhere"}, {"num_bytes": 0}, {"num_bytes": 2**60}],
    ids=str,
)
def test_an_offer_that_is_none_is_refused(ends: Ends, changed: dict[str, object]) -> None:
    loan = Loan(ends.lender, DATA)
    with pytest.raises(TransferError):
        ends.reader.read(msgspec.structs.replace(loan.offer, **changed))
    assert MOST_LENT_BYTES < 2**60
