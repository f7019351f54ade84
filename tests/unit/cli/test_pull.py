"""Fetching from a Hub of our own on a loopback port, by the Hub's real client."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from blazr.cli.cache import pull
from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import find_model, open_checkpoint
from blazr.pipelines.kinds import PIPELINES, kind_of
from blazr.text.sidecars import own_templates

STORIES = Path(__file__).parents[2] / "golden" / "gguf" / "stories260K-q4_0.gguf"
SHA = "d" * 40
REPO = "org/stories-GGUF"
FILES: Mapping[str, bytes] = {
    "README.md": b"# stories",
    "config.json": b"{}",
    "stories-Q4_0.gguf": STORIES.read_bytes(),
    "big/stories-00001-of-00002.gguf": b"first",
    "big/stories-00002-of-00002.gguf": b"second",
    "big/other-00001-of-00002.gguf": b"another",
}
WANTED: Mapping[str, bytes] = {
    "config.json": b"{}",
    "model.safetensors": save({"norm.weight": np.zeros(2, np.float32)}),
    "tokenizer.model": b"pieces",
    "tekken.json": b"{ }",
    "chat_template.jinja": b"a",
    "additional_chat_templates/tool_use.jinja": b"b",
}
UNWANTED = (
    "README.md",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "onnx/config.json",
    "onnx/model.safetensors",
    "tokenizer/merges.txt",
    "tokenizer/model.bin",
    "a/b/c.model",
)
WHOLE = "org/whole"
PIPELINE = "org/pipeline"
PARTS: Mapping[str, bytes] = {
    "model_index.json": b"{}",
    "unet/config.json": b"{ }",
    "unet/diffusion_pytorch_model-00001-of-00002.safetensors": b"weights",
    "tokenizer/merges.txt": b"merges",
}
NO_PARTS = (
    "one_file.safetensors",
    "config.json",
    "unet/diffusion_pytorch_model.fp16.safetensors",
    "unet/diffusion_pytorch_model.non_ema.safetensors",
    "unet/diffusion_pytorch_model.bin",
    "unet/code.py",
    "a/b/config.json",
)
REPOS = {
    REPO: FILES,
    WHOLE: {**WANTED, **dict.fromkeys(UNWANTED, b"")},
    PIPELINE: {**PARTS, **dict.fromkeys(NO_PARTS, b"")},
}


class Hub(BaseHTTPRequestHandler):
    """One repository, as far as the client asks for it."""

    protocol_version = "HTTP/1.1"
    fetched: set[str]

    def log_message(self, *args: object) -> None:  # type: ignore[override]
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        repo = next((each for each in REPOS if f"{each}/" in path), "")
        files = REPOS.get(repo, {})
        if path.startswith(f"/api/models/{repo}/revision/"):
            self.answer(json.dumps({"id": repo, "sha": SHA, "siblings": []}).encode())
        elif path.startswith(f"/api/models/{repo}/tree/"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": digest(data)}
                for name, data in files.items()
            ]
            self.answer(json.dumps(listed).encode())
        elif path.startswith(f"/{repo}/resolve/{SHA}/"):
            name = path.removeprefix(f"/{repo}/resolve/{SHA}/")
            if self.command == "GET":
                type(self).fetched.add(name)
            self.answer(files[name], {"ETag": f'"{digest(files[name])}"', "X-Repo-Commit": SHA})
        else:
            self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

    def answer(self, data: bytes, headers: Mapping[str, str] = {}, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of the files that were fetched."""
    Hub.fetched = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    template = constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield Hub.fetched
    server.shutdown()
    server.server_close()


def test_one_file_is_fetched_and_found(
    fetched: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pull([f"{REPO}:stories-Q4_0.gguf"])
    path = Path(capsys.readouterr().out.strip())
    assert path.read_bytes() == STORIES.read_bytes()
    assert fetched == {"stories-Q4_0.gguf"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = find_model(f"{REPO}:stories-Q4_0.gguf")
    assert found.name == "stories-Q4_0"
    assert open_checkpoint(found.path).metadata["general.architecture"] == "llama"


def test_a_part_brings_the_others(fetched: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    pull([f"{REPO}:big/stories-00002-of-00002.gguf"])
    path = Path(capsys.readouterr().out.strip())
    assert path.read_bytes() == b"second"
    assert fetched == {name for name in FILES if "big/stories" in name}


def test_of_a_repository_only_what_is_read_is_fetched(
    fetched: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pull([WHOLE])
    assert fetched == WANTED.keys()
    directory = Path(capsys.readouterr().out.strip())
    assert own_templates(directory) == {"default": "a", "tool_use": "b"}


def test_of_a_pipeline_its_parts_are_fetched(
    fetched: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pull([PIPELINE])
    assert fetched == PARTS.keys()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    directory = Path(capsys.readouterr().out.strip())
    assert find_model(PIPELINE).path == directory
    assert kind_of(directory) is PIPELINES["diffusers"]


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("file", ["stories-Q9.gguf", "big/../../x.gguf"])
def test_a_file_that_is_not_there_is_told_with_those_that_are(file: str) -> None:
    with pytest.raises(CheckpointError, match="has no file") as caught:
        pull([f"{REPO}:{file}"])
    assert "stories-Q4_0.gguf" in caught.value.found


def test_a_repository_of_gguf_files_alone_asks_which(fetched: set[str]) -> None:
    with pytest.raises(CheckpointError, match="GGUF files alone") as caught:
        pull([REPO])
    assert "stories-Q4_0.gguf" in caught.value.expected
    assert f"{REPO}:" in caught.value.hint
    assert fetched == {"config.json"}


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("name", ["org/nothing", "org/nothing:x.gguf"])
def test_an_unknown_repository(name: str) -> None:
    with pytest.raises(CheckpointError, match="neither here nor on the Hub"):
        pull([name])
