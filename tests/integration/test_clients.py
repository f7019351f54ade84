"""Every client of the table against a real server; those that are not installed are skipped.

``make clients`` installs them in environments of their own under build/clients, and runs this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.integration.clients.table import CLIENTS, NODE, Client, is_installed, program
from tests.support.loopback import serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

Outcomes = dict[str, str | None]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(load_text_engine(LoadOptions(device="cpu"))) as running:
        yield running.url


@pytest.fixture(scope="module")
def outcomes_of(url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Client], Outcomes]:
    """Run a client's script, once, and return what became of each of its checks."""

    @cache
    def run(client: Client) -> Outcomes:
        return run_script(client, url, tmp_path_factory.mktemp("home"))

    return run


def run_script(client: Client, url: str, home: Path) -> Outcomes:
    interpreter = program(client.environment)
    if client.environment == NODE:
        interpreter = Path(shutil.which("node") or "node")
    report = home / "outcomes.json"
    environment = {
        "HOME": str(home),
        "PATH": f"{interpreter.parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it looks for prices in the internet
        "NODE_PACKAGES": str(program(NODE)),
    }
    done = subprocess.run(
        [interpreter, client.path, url, report],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,  # what failed is in the report
    )
    if not report.exists():
        return dict.fromkeys(client.checks, done.stdout + done.stderr)
    outcomes = json.loads(report.read_text("utf-8"))
    assert tuple(outcomes) == client.checks, "the script's checks are not those of the table"
    return outcomes


def checks_of(client: Client) -> Iterator[object]:
    reason = f"{client.packages[0]} is not installed, try `make clients`"
    skip = pytest.mark.skipif(not is_installed(client.environment), reason=reason)
    for check in client.checks:
        yield pytest.param(client, check, id=f"{client.name}-{check}", marks=skip)


@pytest.mark.parametrize(
    ("client", "check"), [each for client in CLIENTS for each in checks_of(client)]
)
def test_clients(client: Client, check: str, outcomes_of: Callable[[Client], Outcomes]) -> None:
    trouble = outcomes_of(client)[check]
    assert trouble is None, trouble
