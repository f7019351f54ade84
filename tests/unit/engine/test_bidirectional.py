"""Tokens that see each other in both directions are computed in one step."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
import torch
from typing_extensions import override

from blazr.engine.request import PromptEmbeddings, Request
from blazr.engine.runner import StepResult
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import StepPlan
from blazr.engine.sequence import Sequence
from tests.unit.engine.test_scheduler import House


def _image(start: int, end: int, *, is_bidirectional: bool = True) -> PromptEmbeddings:
    vectors = torch.zeros(end - start, 1)
    digest = bytes([start])
    return PromptEmbeddings(
        start=start, vectors=vectors, digest=digest, is_bidirectional=is_bidirectional
    )


def _request(length: int, *images: PromptEmbeddings) -> Request:
    params = SamplingParams(temperature=0, max_tokens=3)
    return Request(prompt_ids=(1,) * length, embeddings=images, params=params)


@pytest.mark.parametrize(
    ("computed", "asked", "wanted"),
    [
        (0, 4, 4),
        (0, 10, 10),  # ends where the first image begins
        (0, 11, 10),
        (0, 19, 10),
        (0, 20, 20),
        (10, 1, 10),
        (10, 9, 10),
        (10, 12, 12),
        (10, 16, 15),  # before the second
        (15, 3, 5),  # within the first, which a reused prefix may end in
        (18, 1, 2),
        (25, 3, 15),
        (41, 5, 5),  # the third image is like text
    ],
)
def test_a_step_cuts_none(computed: int, asked: int, wanted: int) -> None:
    images = _image(10, 20), _image(25, 40), _image(43, 48, is_bidirectional=False)
    request = _request(60, *images)
    sequence = Sequence(
        request_id=0,
        request=request,
        index=0,
        order=(0, 0, 0),
        tokens=array("i", request.prompt_ids),
        seed=0,
        max_length=63,
        max_output=3,
        computed=computed,
    )
    assert sequence.whole_chunk(asked) == wanted


class _House(House):
    """Writes down which part of which sequence each step computes."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget=budget)
        self.parts: list[tuple[int, int, Sequence]] = []

    @override
    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.rows:
            start = row.sequence.computed
            self.parts.append((start, start + row.num_tokens, row.sequence))
        return super().execute(plan)


@pytest.mark.parametrize("budget", [8, 24, 64])
def test_whatever_runs_beside_it(budget: int) -> None:
    """Small budgets, prompts that part within an image or behind it, short and long text."""
    images = _image(5, 37), _image(50, 82)
    whole = _request(100, *images)
    requests = [
        whole,
        replace(whole, prompt_ids=whole.prompt_ids[:82]),  # ends with the second image
        replace(whole, prompt_ids=(*whole.prompt_ids[:90], 2, 3)),
        _request(70, images[0]),
        *(_request(length) for length in (3, 20, 90)),
    ]
    house = _House(budget)
    for number, request in enumerate(requests * 2):
        house.engine.add(request, request_id=number + 1, now=0.0, seed=0)
        house.step()
    house.run()
    assert len(house.ended) == 2 * len(requests)
    for start, end, sequence in house.parts:
        for first, last in sequence.bidirectional_spans:
            assert not (start < last and first < end < last)
    assert any(
        first < start < last for start, _, s in house.parts for first, last in s.bidirectional_spans
    )


@pytest.mark.parametrize("budget", [8, 24, 64])
def test_whole_prompts_that_see_ahead(budget: int) -> None:
    """None is cut, and a prefix is shared with the same prompt and the same images alone."""
    image = _image(5, 37)
    whole = replace(_request(100, image), is_bidirectional=True)
    requests = [
        whole,
        replace(whole, prompt_ids=(*whole.prompt_ids[:90], 2, 3)),
        replace(whole, embeddings=(replace(image, digest=b"other"),)),
        _request(70),
        whole,
    ]
    house = _House(budget)
    for number, request in enumerate(requests):
        house.engine.add(request, request_id=number + 1, now=0.0, seed=0)
        house.run()
    ends = {sequence: end for _, end, sequence in reversed(house.parts)}
    starts = {sequence: start for start, _, sequence in reversed(house.parts)}
    readers = [each for each in ends if each.request.is_bidirectional]
    assert all(ends[each] >= each.num_prompt for each in readers)
    readers.sort(key=lambda each: each.request_id)
    assert [starts[each] for each in readers] == [
        0,
        0,
        0,
        99 // house.memory.shape.grid * house.memory.shape.grid,
    ]
