"""Requests made up from the OpenAPI document, valid and not: what comes back is what it says.

It needs ``blazr[clients]``; run it with ``-m clients``. By hand, with a model and every check:
``schemathesis run http://127.0.0.1:8080/openapi.json --exclude-path /models/sse`` (it has no end).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loopback import serving
from tests.scripted import scripted_core

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "use_after_free",
)


def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    with serving(scripted_core()) as running:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "5"),
            *("--checks", ",".join(CHECKS), "--seed", "1", "--no-color"),
            *("--exclude-path", "/models/sse"),  # it has no end
        ]
        env = {**os.environ, "HYPOTHESIS_DATABASE_DIRECTORY": str(tmp_path)}  # noqa: TID251
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    (num_cases,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(num_cases) >= 2000
    assert done.stdout.count("✅") >= 4, done.stdout[-2000:]  # no phase was left out
