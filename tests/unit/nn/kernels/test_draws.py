"""Draws follow their definition: filters, order, equals, edges; and the distribution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import compiled, sampling
from blazr.nn.ops import OPS
from tests.support.seeds import run_seed

NEVER = float("-inf")
ALMOST_ONE = 1 - 2**-53
NEAR = 1e-9  # probabilities are rounded to 2**-42 of the largest, and exp is exact to as much

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def with_gaps(size: int) -> Tensor:
    scores = torch.randn(size) * 3
    return scores.masked_fill(torch.rand(size) < 0.7, NEVER).index_fill(0, torch.tensor(0), 1.0)


def one_finite(size: int) -> Tensor:
    scores = torch.full((size,), NEVER)
    scores[torch.randint(size, ())] = -3.0
    return scores


def spread(size: int) -> Tensor:
    return torch.randn(size) * 10.0 ** torch.randint(-30, 38, (size,))


KINDS: dict[str, Callable[[int], Tensor]] = {
    "flat": torch.randn,
    "peaked": lambda size: torch.randn(size) * 5,
    "rounded": lambda size: (torch.randn(size) * 3).bfloat16().float(),
    "few values": lambda size: torch.randint(-2, 3, (size,)).float(),
    "equal": lambda size: torch.full((size,), 7.25),
    "close": lambda size: 100 + torch.rand(size) / 1000,
    "signed zeros": lambda size: torch.randn(size).sign().clamp(max=0) * 0.0,
    "gaps": with_gaps,
    "one finite": one_finite,
    "spread": spread,
}


def some_wishes(count: int, size: int) -> Tensor:
    """As people ask, at the edges of what may be asked, and anything."""

    def pick(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), (count,))]

    anything = torch.rand(4, count, dtype=torch.float64)
    top_p = torch.where(anything[0] < 0.5, pick(0, 1e-12, 0.5, 0.9, ALMOST_ONE, 1, 1), anything[1])
    top_k = torch.where(anything[1] < 0.6, pick(0, 0, 1, 40, size, size + 9), anything[2] * size)
    min_p = torch.where(anything[2] < 0.7, pick(0, 0, 0, 1e-15, 0.05, 1), anything[3])
    uniform = torch.where(anything[3] < 0.2, pick(0, ALMOST_ONE), torch.rand_like(anything[0]))
    temperature = pick(1e-310, 0.01, 0.3, 0.7, 1, 1, 1.3, 2)
    return torch.stack((temperature, top_k.floor(), top_p, min_p, uniform), 1)


def sorted_shares(scores: Tensor, wish: Tensor) -> tuple[Tensor, Tensor]:
    """The definition as one would write it down, in float64: sort and cut; shares, and whose."""
    temperature, top_k, top_p, min_p, _ = wish.tolist()
    falling, order = scores.double().sort(descending=True, stable=True)
    shares = ((falling - falling[0]) / max(temperature, 1e-300)).softmax(0)
    if top_k:
        shares[int(top_k) :] = 0
    shares /= shares.sum()
    if top_p < 1:
        cut = shares.cumsum(0) - shares >= top_p
        cut[0] = False
        shares[cut] = 0
    shares[shares < min_p * shares[0]] = 0
    return shares / shares.sum(), order


def is_drawn(scores: Tensor, wish: Tensor, token: int) -> bool:
    """Whether the number falls into the token's share."""
    shares, order = sorted_shares(scores, wish)
    place = int((order == token).nonzero())
    high = float(shares[: place + 1].sum())
    low = high - float(shares[place])
    return shares[place] > 0 and low - NEAR <= wish[4] <= high + NEAR


def assert_drawn(scores: Tensor, wish: Tensor, token: int) -> None:
    """The token is the definition's, or that for cuts that can hardly be told apart."""
    assert is_drawn(scores, wish, token) or any(
        is_drawn(scores, (wish + torch.tensor([0, 0, p, m, 0])).clamp(min=0), token)
        for p, m in product((-NEAR, NEAR, 0), repeat=2)
    ), (wish.tolist(), token)


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_definition(kind: str, isa: str) -> None:
    torch.manual_seed(run_seed(len(kind) * 7 + len(isa)))
    for size, count in ((1, 3), (2, 9), (7, 12), (40, 20), (511, 8), (700, 15), (6000, 4)):
        scores = torch.stack([KINDS[kind](size) for _ in range(count)])
        wishes = some_wishes(count, size)
        drawn = sampling.draw(scores, wishes)
        reference = OPS["draw"].reference(scores, wishes)
        assert (drawn != reference).sum() <= 1  # a sum may be a unit of 2**-42 aside
        for row in range(count):
            assert_drawn(scores[row], wishes[row], int(drawn[row]))


@pytest.mark.parametrize("kind", ["flat", "rounded", "equal"])
def test_large_vocabularies(kind: str) -> None:
    torch.manual_seed(run_seed(len(kind)))
    scores, wishes = KINDS[kind](200_000)[None], some_wishes(3, 200_000)
    for wish in wishes:
        assert_drawn(scores[0], wish, int(sampling.draw(scores, wish[None])))


def test_a_row_alone_is_that_row_in_a_batch(isa: str) -> None:
    torch.manual_seed(run_seed(1))
    scores = torch.stack([KINDS["rounded"](40_000), KINDS["peaked"](40_000), KINDS["flat"](40_000)])
    scores = scores.repeat(3, 1)[:, 5:39_000]
    wishes = some_wishes(9, 38_995)
    first = sampling.draw(scores, wishes)
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        together = sampling.draw(scores, wishes)
        alone = [sampling.draw(scores[i : i + 1], wishes[i : i + 1]) for i in range(9)]
        assert torch.equal(together, first), isa
        assert torch.equal(torch.cat(alone), first)
        assert torch.equal(sampling.likeliest(scores), scores.argmax(1))


def chi_square(counts: Tensor, expected: Tensor) -> float:
    seen = expected > 0
    assert counts[~seen].sum() == 0
    return float(((counts - expected)[seen] ** 2 / expected[seen]).sum())


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_draws_are_distributed_as_the_softmax(temperature: float) -> None:
    torch.manual_seed(run_seed(3))
    size, count = 50, 10_000
    scores = (torch.randn(size) * 1.5).bfloat16().float()
    uniform = torch.rand(count, dtype=torch.float64)
    wishes = torch.tensor([[temperature, 0, 1, 0, 0]], dtype=torch.float64).repeat(count, 1)
    wishes[:, 4] = uniform
    counts = sampling.draw(scores.expand(count, -1), wishes).bincount(minlength=size)
    expected = (scores.double() / temperature).softmax(0) * count
    assert chi_square(counts.double(), expected) < 100  # of 49 degrees: once in 20,000 seeds
    wishes[:, 1] = 10
    counts = sampling.draw(scores.expand(count, -1), wishes).bincount(minlength=size)
    kept = expected.clone()
    kept[scores.argsort(descending=True, stable=True)[10:]] = 0
    assert chi_square(counts.double(), kept / kept.sum() * count) < 38  # of 9


def test_what_is_not_finite_is_not_drawn(isa: str) -> None:
    scores = torch.zeros(5, 1300)
    scores[0, 1299], scores[1, 3], scores[2] = float("nan"), float("inf"), NEVER
    scores[3, 1100], scores[4, 600] = 1.0, NEVER
    wishes = torch.tensor([[0.7, 40, 0.9, 0, 0.0]], dtype=torch.float64).repeat(5, 1)
    expected = [-1, -1, -1, 1100, 0]
    for op in (OPS["likeliest"].reference, sampling.likeliest):
        assert op(scores).tolist() == expected, isa
    for op in (OPS["draw"].reference, sampling.draw):
        assert op(scores, wishes).tolist() == expected


def test_what_does_not_go_together_is_refused() -> None:
    scores = torch.zeros(2, 3)
    with pytest.raises(ShapeError):
        sampling.draw(scores, torch.zeros(2, 5))
    with pytest.raises(ShapeError):
        sampling.draw(scores, torch.zeros(1, 5, dtype=torch.float64))
    with pytest.raises(ShapeError):
        sampling.likeliest(scores[:, :0])
    for count in (0, 4):
        with pytest.raises(ShapeError):
            sampling.best(scores, count)
