"""Bounds that hold on every processor: no more is lost than float32 loses anyway.

How far two right computations lie apart depends on the model, its random weights and the order of
its sums, and so on the processor: a bound in absolute numbers is right or wrong by chance. The
measure here is what float32 loses in this model at these inputs: by how much another float32
computation misses the float64 one, or how far the output moves when weights are off in their last
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

# The loss is measured once, and varies with chance; the floor is for outputs that lose none.
ALLOWED, FLOOR = 10, 2e-5
_LAST_BIT = 2.0**-23


def error(found: Tensor, truth: Tensor) -> float:
    """The greatest difference."""
    return float((found.double() - truth.double()).abs().max())


def sensitivity(model: nn.Module, output_of: Callable[[nn.Module], Tensor]) -> float:
    """How far an output moves when every weight is off by up to its last bit of float32.

    Args:
        model: It is copied, not changed.
        output_of: What it computes.
    """
    before, moved = output_of(model), 0.0
    chance = torch.Generator().manual_seed(0)
    for _ in range(2):
        other = deepcopy(model)
        for parameter in other.parameters():
            noise = torch.rand(parameter.shape, generator=chance, dtype=torch.float64) * 2 - 1
            parameter.data.copy_(parameter.double() * (1 + _LAST_BIT * noise))
        moved = max(moved, error(output_of(other), before))
    return moved


def assert_same_network(found: nn.Module, expected: Tensor | nn.Module, ids: Tensor) -> None:
    """Two of our networks with the same weights, or one and recorded scores, are the same.

    Args:
        found: The network that is tried.
        expected: Another, or the last rows of the scores, (J, V).
        ids: Token ids of one sequence, (1, T).
    """

    def scores(model: nn.Module) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model.forward_sequences(ids)  # type: ignore[operator]
        return logits[0]

    is_network = isinstance(expected, nn.Module)
    wanted = scores(expected) if is_network else expected
    loss = sensitivity(expected if is_network else found, scores)  # packed weights cannot be moved
    assert_as_right(scores(found)[-len(wanted) :], wanted, loss)


def allowed_error(loss: float, expected: Tensor) -> float:
    """By how much a right computation may differ from what is expected.

    Args:
        loss: What float32 loses.
        expected: Whose scale counts.
    """
    return ALLOWED * loss + FLOOR * float(expected.abs().max())


def assert_as_right(found: Tensor, expected: Tensor, loss: float, said: object = "") -> None:
    """`found` differs from `expected` by about what float32 loses, at most.

    Args:
        found: In float32.
        expected: The truth, or the same computed otherwise.
        loss: What float32 loses here.
        said: What to say of the case where it is not so.
    """
    off, allowed = error(found, expected), allowed_error(loss, expected)
    assert off <= allowed, f"off by {off:.2e}; allowed are {allowed:.2e} {said}"


def assert_greedy(tokens: Sequence[int], expected: Tensor, loss: float) -> None:
    """Each token has the greatest score, or one that float32 does not tell from it.

    Args:
        tokens: Chosen one after another.
        expected: The scores that they should be chosen from, (tokens, V).
        loss: What float32 loses here.
    """
    gaps = expected.amax(-1) - expected[range(len(tokens)), list(tokens)]
    allowed = 2 * allowed_error(loss, expected)
    assert float(gaps.max()) <= allowed, f"{list(tokens)} leave {gaps.tolist()} to the greatest"
