"""Every client of the table against a real server; those that are not installed are skipped.

``make clients`` installs them in environments of their own under build/clients, and runs this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.integration.clients.coder import coder
from tests.integration.clients.table import CLIENTS, NPM, ROOT, Client, is_installed, programs
from tests.support.loopback import serving, serving_models

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
# Nothing leaves this machine, whatever a program thinks of it: it does not report, look for news or
# fetch files, and what tries to finds no proxy.
ALONE = {
    **dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    ),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
    **dict.fromkeys(("DO_NOT_TRACK", "DISABLE_TELEMETRY", "SCARF_NO_ANALYTICS"), "1"),
    "ANONYMIZED_TELEMETRY": "false",
    "DISABLE_AUTOUPDATER": "1",
    "HF_HUB_OFFLINE": "1",
    "OFFLINE_MODE": "true",  # of Open WebUI
    "OMP_NUM_THREADS": "1",  # or the threads of a small model wait for each other
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
Outcomes = dict[str, str | None]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that lm-eval also runs by itself: with a beginning-of-text token and without."""
    folder = tmp_path_factory.mktemp("models")
    parts = GOLDEN / "stories260k", GOLDEN / "tokenizers" / "stories260k"
    for name in ("stories", "stories-without-bos"):
        (folder / name).mkdir()
        for file in (each for part in parts for each in part.iterdir()):
            shutil.copy(file, folder / name)
    edit(folder / "stories" / "tokenizer_config.json", chat_template=CHAT_TEMPLATE)
    plain = folder / "stories-without-bos"
    edit(plain / "tokenizer_config.json", add_bos_token=False, bos_token=None)
    edit(plain / "tokenizer.json", post_processor=None)
    return folder


def edit(path: Path, **changes: object) -> None:
    """Change entries of a JSON file; None takes one away."""
    entries = {**json.loads(path.read_text("utf-8")), **changes}
    kept = {name: value for name, value in entries.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    def source(name: str, model: str) -> ModelSource:
        return ModelSource(name=name, open=lambda: AsyncLLM(model, device="cpu"))

    # The first is meant where none is named, as when lm-eval asks for the tokenizer.
    names = ("stories-without-bos", "stories")
    known = [source(name, str(models / name)) for name in names] + [source("nano", "nano")]
    with serving_models(Models(known, ServerConfig(host="127.0.0.1", port=0))) as running:
        yield running.url


@pytest.fixture(scope="module")
def coder_url() -> Iterator[str]:
    with serving(coder()) as running:
        yield running.url


@pytest.fixture(scope="module")
def outcomes_of(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Client], Outcomes]:
    """Run a client's script, once, and return what became of each of its checks."""

    @cache
    def run(client: Client) -> Outcomes:
        url = request.getfixturevalue("coder_url" if client.is_launched else "url")
        return run_script(client, url, models, tmp_path_factory.mktemp("home"))

    return run


def run_script(client: Client, url: str, models: Path, home: Path) -> Outcomes:
    installed = programs(client.environment)
    interpreter = installed / "python"
    node = Path(shutil.which("node") or "node")
    if client.environment in NPM:
        interpreter = node if client.path.suffix == ".mjs" else Path(sys.executable)
    report = home / "outcomes.json"
    done = subprocess.run(
        [interpreter, client.path, url, report, models],
        cwd=home,
        env={
            **ALONE,
            "HOME": str(home),
            "PATH": f"{installed}:{node.parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src") if client.is_launched else "",
            "LANG": "C.UTF-8",
            "NODE_PACKAGES": str(installed.parent),
        },
        capture_output=True,
        text=True,
        timeout=1100,
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
