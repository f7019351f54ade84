"""What `benchmarks.moved_state` counts is what pages and states say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import moved_state

FRAME, HEADER = 16, 60


@pytest.mark.parametrize("shape", ["nano", "qwen2-0.5b"])
def test_all_pages_and_one_state_move(shape: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(moved_state, "MEMORY", "64MiB")
    found = moved_state.measure(shape, 200, "auto", tmp_path)
    assert found["computed_again"] == 8
    items = 3 * [found["page_bytes"]] + [found["state_bytes"]] * (found["state_bytes"] > 0)
    least = sum(items) + len(items) * (FRAME + HEADER)
    # what rounding to whole items leaves over moves, too
    assert least <= found["moved_bytes"] < 1.05 * least
