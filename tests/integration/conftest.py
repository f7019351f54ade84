"""A tiny hybrid model with random weights, in the size of a real vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save(tiny.Tiny(layers=("Mamba2", "MlaWithMoe"), vocab_size=100315, hidden_size=16), path)
    return path
