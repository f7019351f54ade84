"""One server for each module; its engine says the script to everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with serving(scripted_core()) as running:
        yield running
