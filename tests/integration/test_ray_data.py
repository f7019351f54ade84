"""Ray Data answers a dataset with two models side by side, each row once and in order.

Needs the extra ``ray``: Ray starts a dozen processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.llm import LLM
from blazr.ray_data import Processor

ray = pytest.importorskip("ray")
data = pytest.importorskip("ray.data")

_log = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
]

GREEDY = {"temperature": 0, "max_tokens": 8}
ROWS = [{"id": i, "prompt": f"Once upon a time there were {i}"} for i in range(60)]


@pytest.fixture
def cluster() -> Iterator[None]:
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src")])}
    ray.init(address="local", num_cpus=3, include_dashboard=False, runtime_env={"env_vars": paths})
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_each_row_is_answered_once() -> None:
    dataset = data.from_items([*ROWS, {"id": 60, "prompt": "word " * 50_000}])
    answered = dataset.map_batches(
        Processor,
        fn_constructor_kwargs={
            "model": "nano",
            "sampling_params": GREEDY,
            "device": "cpu",
            "memory": "64MiB",
        },
        batch_size=8,
        concurrency=2,
        num_cpus=1,
    )
    rows = sorted(answered.take_all(), key=lambda row: row["id"])
    with LLM("nano", device="cpu", memory="64MiB") as llm:
        expected = llm.generate([row["prompt"] for row in ROWS], SamplingParams(**GREEDY))
    assert [row["id"] for row in rows] == list(range(61))
    assert [row["generated_text"] for row in rows[:60]] == [each.text for each in expected]
    assert rows[60]["finish_reason"] == "error"
    _log.info("answered %d rows, %d refused", len(rows), sum(bool(row["error"]) for row in rows))
