"""Workloads: the same seed draws the same, files are read or refused."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.bench.workload import BenchRequest, Workload, read_workload
from blazr.core.errors import ConfigError

SHORT = BenchRequest(prompt_tokens=12, output_tokens=3)


def draw(
    count: int = 6, *, salt: str = "", vocab_size: int = 50, **fields: object
) -> list[BenchRequest]:
    workload = Workload(**{"requests": [SHORT], **fields})
    return workload.draw(count, vocab_size=vocab_size, salt=salt)


@given(
    seed=st.integers(0, 99), count=st.integers(1, 8), rate=st.sampled_from([0.5, 20.0, math.inf])
)
def test_the_same_seed_asks_the_same(seed: int, count: int, rate: float) -> None:
    requests = draw(count, seed=seed, rate=rate)
    assert requests == draw(count, seed=seed, rate=rate)
    assert draw(count + 3, seed=seed, rate=rate)[:count] == requests, "more begin with the same"


def test_seeds_salts_and_numbers_ask_for_different_things() -> None:
    prompts = {request.prompt_ids for request in (*draw(), *draw(seed=1), *draw(salt="x"))}
    assert len(prompts) == 18
    assert {len(prompt) for prompt in prompts} == {12}


def test_ids_come_from_the_whole_vocabulary_and_nothing_else() -> None:
    seen = {i for request in draw(200, vocab_size=9) for i in request.prompt_ids}
    assert seen == set(range(9))


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    requests = draw(shared_prefix=8)
    assert len({request.prompt_ids[:8] for request in requests}) == 1
    assert len({request.prompt_ids[8:] for request in requests}) == len(requests)
    assert {len(request.prompt_ids) for request in draw(shared_prefix=40)} == {12}


def test_arrivals_are_poisson() -> None:
    due = [request.arrival_s for request in draw(2000, rate=50.0)]
    gaps = [after - before for before, after in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert due[0] == 0
    assert min(gaps) > 0
    assert mean == pytest.approx(1 / 50, rel=0.1)
    # an exponential's deviation is its mean; a clock's would be nothing
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(
        mean, rel=0.1
    )


def test_without_a_rate_nothing_is_due() -> None:
    assert {request.arrival_s for request in draw()} == {None}


def test_a_file_says_what_it_says_and_the_flags_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt_ids": [1, 2, 3], "arrival_s": 2}\n{"output_tokens": 9}\n')
    lines = read_workload(path, SHORT)
    requests = draw(3, requests=lines, rate=5.0)
    assert [request.output_tokens for request in requests] == [3, 9, 3]
    assert requests[0].prompt_ids == requests[2].prompt_ids == (1, 2, 3)
    assert len(requests[1].prompt_ids) == 12
    assert requests[0].arrival_s == 2
    assert requests[1].arrival_s not in {None, 2}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"prompt": "hello"}',
        '{"prompt_ids": [-1]}',
        '{"prompt_ids": ["a"]}',
        '{"prompt_tokens": 0}',
        '{"prompt_tokens": 16777217}',
        '{"output_tokens": 1.5}',
        '{"arrival_s": -1}',
        '{"arrival_s": "now"}',
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text("{}\n" + line + "\n{}\n")
    with pytest.raises(ConfigError, match="line 2 "):
        read_workload(path, SHORT)


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"output_tokens": 9}\n\n \t\r\n{"output_tokens": 8}\n\n')
    assert [request.output_tokens for request in read_workload(path, SHORT)] == [9, 8]
    path.write_text('{"output_tokens": 9}\n\n{\n')
    with pytest.raises(ConfigError, match="line 3 "):
        read_workload(path, SHORT)
    path.write_text("\n\n")
    with pytest.raises(ConfigError, match="empty"):
        Workload(requests=read_workload(path, SHORT))


def test_no_file_and_no_lines_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_workload(tmp_path / "none.jsonl", SHORT)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="empty"):
        Workload(requests=read_workload(tmp_path / "empty.jsonl", SHORT))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        Workload(requests=[SHORT], rate=rate)
