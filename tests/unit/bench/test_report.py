"""The arithmetic: what a figure means, on records made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.bench.load import Record
from blazr.bench.report import origin, parse_goals, speculation_figures, spread_of, summarize
from blazr.core.errors import ConfigError


def record(arrival_s: float, *token_s: float, prompt: int = 100, **fields: object) -> Record:
    values = {"output_tokens": len(token_s), "end_s": max(token_s, default=arrival_s) + 0.1}
    return Record(
        prompt_tokens=prompt, arrival_s=arrival_s, token_s=list(token_s), **{**values, **fields}
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_percentiles_are_numpys(values: list[float]) -> None:
    spread = spread_of(values)
    expected = np.percentile(values, [50, 90, 99])
    assert [spread["p50"], spread["p90"], spread["p99"]] == pytest.approx(list(expected), abs=1e-6)
    assert spread["mean"] == pytest.approx(np.mean(values))


def test_of_nothing_there_is_no_spread() -> None:
    assert spread_of([]) is None


def test_one_reply_gives_the_figures_by_their_definitions() -> None:
    figures = summarize([record(10.0, 10.5, 10.6, 10.8, cached_tokens=25)], {})
    assert figures["ttft_ms"]["p50"] == pytest.approx(500)
    assert figures["e2e_ms"]["p50"] == pytest.approx(800)
    assert figures["itl_ms"]["mean"] == pytest.approx(150), "of the gaps 100 and 200"
    assert figures["prefill_tokens_per_s"]["p50"] == pytest.approx(200), "L / TTFT"
    assert figures["decode_tokens_per_s"]["p50"] == pytest.approx(2 / 0.3), "(n-1) / (last-first)"
    assert figures["duration_s"] == pytest.approx(0.9), "to the end of the last request"
    assert figures["output_tokens_per_s"] == pytest.approx(3 / 0.9)
    assert figures["total_tokens_per_s"] == pytest.approx(103 / 0.9)
    assert figures["cached_share"] == 0.25
    assert figures["goodput_share"] is None


def test_several_tokens_in_one_piece_count_as_several() -> None:
    """Over HTTP a piece of text may hold more than one token; the server counts them."""
    figures = summarize([record(0.0, 1.0, 2.0, output_tokens=9)], {})
    assert figures["decode_tokens_per_s"]["p50"] == pytest.approx(8)
    assert figures["output_tokens"] == 9


def test_goodput_counts_the_failed_and_the_late() -> None:
    good = record(0.0, 0.1, 0.12, 0.14)
    late = record(0.0, 0.3, 0.32, 0.34)
    slow = record(0.0, 0.1, 0.2, 0.3)
    failed = record(0.0, 0.1, error="gone")
    silent = record(0.0)
    records = [good, late, slow, failed, silent]
    figures = summarize(records, parse_goals("ttft:200, itl:50"))
    assert figures["goodput_share"] == 1 / 5
    assert figures["goodput_requests_per_s"] == pytest.approx(1 / figures["duration_s"])
    assert summarize(records, parse_goals("itl:50"))["goodput_share"] == 2 / 5
    assert summarize(records, parse_goals("e2e:310"))["goodput_share"] == 2 / 5


def test_failures_are_counted_and_not_timed() -> None:
    figures = summarize([record(0.0, 0.5), record(0.0, 9.0, error="gone")], {})
    assert figures["num_requests"] == 2
    assert figures["num_errors"] == 1
    assert figures["first_error"] == "gone"
    assert figures["ttft_ms"]["p99"] == pytest.approx(500)
    assert figures["prompt_tokens"] == 100


def test_where_everything_failed_there_are_no_times() -> None:
    figures = summarize([record(0.0, error="gone")], {"ttft": 1.0})
    assert figures["ttft_ms"] is figures["decode_tokens_per_s"] is figures["cached_share"] is None
    assert figures["output_tokens_per_s"] == figures["goodput_share"] == 0


def test_a_single_token_has_no_speed_of_decoding() -> None:
    figures = summarize([record(0.0, 0.5)], {"itl": 0.001})
    assert figures["decode_tokens_per_s"] is figures["itl_ms"] is None
    assert figures["goodput_share"] == 1


def test_speculation_is_compared_with_the_same_level_without() -> None:
    counts = {"draft_tokens": 60, "kept_draft_tokens": 40, "draft_steps": 20}
    counts["generated_tokens"] = 100
    assert speculation_figures(counts, {"p50": 50.0}, {"p50": 75.0}) == {
        "draft_depth": 3.0,
        "draft_acceptance": 40 / 60,
        "tokens_per_step": 100 / 60,
        "speculation_gain": 1.5,
    }
    nothing = speculation_figures(dict.fromkeys(counts, 0), {"p50": 50.0}, None)
    assert set(nothing.values()) == {None}


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:", "ttft:x", "speed:3", "ttft:-1", "ttft:1,,", ":1"]
)
def test_goals_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="goal"):
        parse_goals(text)


def test_goals_are_milliseconds() -> None:
    assert parse_goals("ttft:200,itl:0.5,e2e:3000") == {"ttft": 200, "itl": 0.5, "e2e": 3000}
    assert parse_goals("") == {}


def test_a_run_says_where_it_was_made() -> None:
    facts = origin()
    assert {"time", "blazr", "commit", "machine"} == set(facts)
    assert facts["machine"]["processors"] >= 1
