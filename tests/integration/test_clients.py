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
from tests.integration.clients.table import CLIENTS, NODE, Client, is_installed, program
from tests.support import tiny
from tests.support.loopback import serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

Outcomes = dict[str, str | None]


@pytest.fixture(scope="module")
def nano_url() -> Iterator[str]:
    with serving(load_text_engine(device="cpu")) as running:
        yield running.url


@pytest.fixture(scope="module")
def long_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A random model by the same name, for clients that send more than nano's context holds."""
    path = tmp_path_factory.mktemp("models") / "nano"
    tiny.save(tiny.Tiny(vocab_size=100315, hidden_size=16, max_seq_len=16384), path)
    with serving(load_text_engine(str(path), device="cpu")) as running:
        yield running.url


@pytest.fixture(scope="module")
def outcomes_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Client], Outcomes]:
    """Run a client's script, once, and return what became of each of its checks."""

    @cache
    def run(client: Client) -> Outcomes:
        url = request.getfixturevalue("long_url" if client.long_context else "nano_url")
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


@pytest.mark.parametrize(
    ("client", "check"),
    [pytest.param(row, check, id=f"{row.name}-{check}") for row in CLIENTS for check in row.checks],
)
def test_clients(client: Client, check: str, outcomes_of: Callable[[Client], Outcomes]) -> None:
    if not is_installed(client.environment):
        pytest.skip(f"{client.packages[0]} is not installed, try `make clients`")
    trouble = outcomes_of(client)[check]
    assert trouble is None, trouble
