"""The examples, and the code in the documents, do what they say, on the built-in model."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import encoder_models

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "src" / "blazr" / "data" / "nano" / "model.safetensors"
SERVED = {"server_client.py"}  # these need a server beside them
ENCODED = {"search.py"}  # these need encoders
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT).as_posix()}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL), 1
    )
]


def test_the_built_in_model_is_there() -> None:
    assert NANO.is_file()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in SERVED | ENCODED])
def test_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert len(capsys.readouterr().out) > 60, "an example that shows nothing"


@encoder_models.NEEDS_TRANSFORMERS
@pytest.mark.parametrize("name", sorted(ENCODED))
def test_example_with_encoders_runs(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder_models.save_encoder(tmp_path / "vectors", "bert")
    encoder_models.save_classifier(tmp_path / "ranks", "bert", num_labels=1)
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "vectors"), str(tmp_path / "ranks")])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_documents_runs(block: str) -> None:
    exec(compile(block, "document", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """`blazr serve` in a process of its own, as a user starts it."""
    command = [sys.executable, "-m", "blazr", "serve", "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # noqa: TID251
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            pytest.fail("the server did not start: " + "".join(lines))
        yield found[0]
        process.terminate()
        assert process.wait(timeout=30) == 0, "a server that is asked to stop exits with 0"


@pytest.mark.parametrize("name", sorted(SERVED))
def test_client_runs(name: str, server_url: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, f"{server_url}/v1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 60
