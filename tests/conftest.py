"""What every test gets: two threads, fixed seeds, no network, and a budget of time."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Set before anything imports torch or the hub's client, which read them once.
os.environ.setdefault("OMP_NUM_THREADS", "2")  # noqa: TID251  (torch's variable, not ours)
os.environ["HF_HUB_OFFLINE"] = "1"  # noqa: TID251
for name in list(os.environ):  # noqa: TID251
    if name.startswith("BLAZR_") or name == "RUST_LOG":
        del os.environ[name]  # noqa: TID251  (a developer's shell must not change the tests)
os.environ["BLAZR_NO_HISTORY"] = "1"  # noqa: TID251

ROOT = Path(__file__).resolve().parent.parent
# What several tests share is imported as `tests.x` or, from the top of tests, as `x`.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# The same examples in every run, and no opinion on how busy the machine is.
settings.register_profile("blazr", deadline=None, derandomize=True)
settings.load_profile("blazr")
UNIT = ROOT / "tests" / "unit"
# Of the test's own thread, so that a busy machine does not fail it. The aim is a tenth of this.
UNIT_BUDGET_S = 5.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --torch-free: the run fails where anything imports torch."""
    parser.addoption("--torch-free", action="store_true", help="fail where torch is imported")


def pytest_configure(config: pytest.Config) -> None:
    """Make `import torch` an error in a torch-free run."""
    if config.getoption("--torch-free"):
        sys.modules["torch"] = None  # type: ignore[assignment]  # how Python spells "not to be had"


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _budget(request: pytest.FixtureRequest) -> Iterator[None]:
    start = time.thread_time()
    yield
    spent = time.thread_time() - start
    is_slow = request.node.get_closest_marker("slow") is not None
    if UNIT in request.path.parents and not is_slow and spent > UNIT_BUDGET_S:
        pytest.fail(f"a unit test took {spent:.1f} s; make it smaller or mark it slow")
