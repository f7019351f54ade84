"""A server whose model's files are overwritten or cut answers as before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.models.loading.convert import convert
from tests.integration.test_fallback import write as write_gpt2
from tests.support import tiny
from tests.support.loopback import serving

MODEL = tiny.Tiny(
    layers=("StandardTransformer", "StandardTransformer"), hidden_size=256, num_heads=4,
    head_dim=64, intermediate_size=256, vocab_size=97,
)  # fmt: skip


def save(kind: str, directory: Path) -> Path:
    """Write a model; returns what to load."""
    if kind == "transformers":
        write_gpt2("gpt2", directory)
    else:
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        tiny.save(MODEL, directory, layout="hf", dtype=dtype)
    if kind == "gguf":
        convert(str(directory), directory / "model.gguf", quantize="q4_k")
        return directory / "model.gguf"
    return directory


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "gguf", "transformers"])
def test_answers_stay_the_same(tmp_path: Path, kind: str) -> None:
    model = save(kind, tmp_path / "model")
    dtype = "bfloat16" if kind == "bfloat16" else "float32"
    impl = "transformers" if kind == "transformers" else "auto"
    options = LoadOptions(
        str(model), device="cpu", dtype=dtype, memory="24MiB", max_running=4, model_impl=impl
    )
    with serving(load_text_engine(options)) as running:

        def tokens(first: int) -> list[int]:
            body = {"prompt": [first, 5, 7, 11], "n_predict": 8, "temperature": 0}
            reply = running.client.post(
                "/completion", json={**body, "return_tokens": True, "ignore_eos": True}
            )
            assert reply.is_success, reply.text
            found: list[int] = reply.json()["tokens"]
            return found

        expected = [tokens(first) for first in range(20)]
        files = [path for path in (tmp_path / "model").iterdir() if path.suffix != ".json"]
        for path in files:
            with path.open("r+b") as file:
                file.write(b"\xff" * path.stat().st_size)
        assert [tokens(first) for first in range(20)] == expected
        for path in files:
            os.truncate(path, 0)
        assert [tokens(first) for first in range(20)] == expected
        assert running.client.get("/health").is_success
