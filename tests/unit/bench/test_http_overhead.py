"""What HTTP costs: the best of the rounds, and the differences between its layers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.http_overhead import summary

ROOT = Path(__file__).parents[3]


def test_figures_are_differences_of_the_best_rounds() -> None:
    costs = {"engine": (3, 2), "text": (12, 20), "http": (62, 70)}
    rates = {"engine": (900, 800), "text": (700, 750), "http": (500, 400)}
    found = {
        role: [
            {"loop_us_per_token": cost, "tokens_per_s": rate}
            for cost, rate in zip(costs[role], rates[role], strict=True)
        ]
        for role in costs
    }
    paired = [{"engine_ms": 5, "http_later_ms": 2}, {"engine_ms": 4, "http_later_ms": 3}]
    report = summary(found, paired)
    assert report["text_core_percent_per_1000_tokens_per_s"] == 1
    assert report["http_core_percent_per_1000_tokens_per_s"] == 5
    assert report["tokens_per_s"] == {"engine": 900, "text": 750, "http": 500}
    assert (report["engine_ttft_ms"], report["http_ttft_later_ms"]) == (4, 2)


@pytest.mark.slow
def test_the_whole_runs() -> None:
    line = "nano --concurrency 2 --requests 4 --rounds 1 --output-tokens 8"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_overhead", *line.split()],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    report = json.loads(done.stdout)
    assert report["http_core_percent_per_1000_tokens_per_s"] > 0
    assert report["http_ttft_later_ms"] > 0
