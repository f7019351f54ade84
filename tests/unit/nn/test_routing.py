"""Which experts a token is given, and how they are weighed."""

from __future__ import annotations

import pytest
import torch

from blazr.nn.operands.experts import ExpertGroups, Routing
from blazr.nn.ops.activation import clamped_swiglu
from blazr.nn.ops.moe import route

pytestmark = pytest.mark.smoke

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 4.0, 0.0]])


def test_a_normalised_softmax_over_all_is_a_softmax_over_the_chosen() -> None:
    weights, chosen = route(LOGITS, Routing(2))
    expected_weights, expected = route(LOGITS, Routing(2, "softmax of chosen"))
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(weights, expected_weights)


def test_unnormalised_weights_are_the_scores_times_the_scale() -> None:
    weights, chosen = route(LOGITS, Routing(3, "sigmoid", normalize=False, scale=2.5))
    assert chosen[0].tolist() == [3, 0, 5]
    torch.testing.assert_close(weights, LOGITS.gather(1, chosen).sigmoid() * 2.5)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    bias = torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0, 0.0])
    weights, chosen = route(LOGITS[:1], Routing(2, "sigmoid"), bias)
    assert chosen.tolist() == [[1, 3]]
    scores = LOGITS[0, [1, 3]].sigmoid()
    torch.testing.assert_close(weights[0], scores / scores.sum())


@pytest.mark.parametrize(("judged_by", "chosen"), [(1, [3, 2]), (2, [0, 1])])
def test_groups_are_judged_by_their_best(judged_by: int, chosen: list[int]) -> None:
    """The best expert is in the second group, the best pair in the first."""
    logits = torch.tensor([[2.0, 1.9, -3.0, 2.1, -3.0, -3.0]])
    routing = Routing(2, "sigmoid", groups=ExpertGroups(3, 1, judged_by))
    assert route(logits, routing)[1].tolist() == [chosen]


def test_ties_go_to_the_lower_index() -> None:
    for scoring in ("softmax", "sigmoid", "softmax of chosen"):
        assert route(torch.zeros(1, 4), Routing(2, scoring))[1].tolist() == [[0, 1]]
    groups = ExpertGroups(2, 1)
    assert route(torch.zeros(1, 4), Routing(3, groups=groups))[1].tolist()[0][:2] == [0, 1]


def test_clamps() -> None:
    gate, up = torch.tensor([9.0, -9.0, 1.0]), torch.tensor([9.0, -9.0, 0.5])
    found = clamped_swiglu(gate, up, alpha=2.0, limit=3.0)
    wide = torch.tensor([3.0, -9.0, 1.0])
    torch.testing.assert_close(
        found, wide * torch.sigmoid(2 * wide) * torch.tensor([4.0, -2.0, 1.5])
    )
