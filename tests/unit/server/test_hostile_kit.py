"""Requests written by hand, at a server that has switched on what needs no model."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.hostile_kit import KEY, KINDS, Attack, attacks
from tests.support.hostile_requests import send
from tests.support.loopback import serving
from tests.support.scripted import scripted_core, wait_until

LIMIT_S = 30.0
FOLDERS = ("files_dir", "weights_dir", "adapter_dir")
# What only an engine with a disk or a network has.
OTHERS = ("slot", "/v1/load_lora_adapter")


@pytest.mark.slow
@pytest.mark.timeout(600)
# a file that a form leaves open is closed with the form's parser
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_no_request_breaks_the_server(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    folders = {name: tmp_path / name for name in FOLDERS}
    with (
        caplog.at_level(logging.ERROR),
        serving(scripted_core(), api_keys=(KEY,), body_timeout_s=5.0, **folders) as running,
        ThreadPoolExecutor(4) as clients,
    ):
        host, port = running.url.removeprefix("http://").split(":")
        headers = {"Authorization": f"Bearer {KEY}"}

        def answer() -> str:
            body = {"prompt": "a", "max_tokens": 8, "temperature": 0}
            reply = running.client.post("/v1/completions", json=body, headers=headers)
            return reply.json()["choices"][0]["text"]

        def one(attack: Attack) -> str:
            status, took_s = send(host, int(port), attack.request, timeout_s=LIMIT_S)
            # 501 is what this server says of endpoints that it does not have
            is_fine = took_s < LIMIT_S and (status < 500 or status in {501, 503})
            return "" if is_fine else f"{status} after {took_s:.1f} s: {attack.name}"

        before = answer()
        asked = [each for each in attacks(kind) if not any(name in each.name for name in OTHERS)]
        assert not [wrong for wrong in clients.map(one, asked) if wrong]
        wait_until(lambda: not running.state.num_working)
        assert answer() == before
    assert not [record.getMessage() for record in caplog.records]
