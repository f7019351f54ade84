"""Experts that are as good as others but for rounding: a comparison follows the engine's choice.

A router's scores of two experts may be nearer to each other than its inputs' rounding. Either
choice is right then, and what comes out is another. So the network in float64 takes the engine's
scores where those choose otherwise and are its own but for rounding, and its own everywhere else: a
wrong score, or a wrong choice by right scores, stays different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.bench.independent import relative
from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.moe import Moe
from blazr.nn.ops.moe import route


@dataclass(slots=True)
class Tally:
    """Choices of experts: one for each token and router.

    Args:
        total: How many were compared.
        followed: How many were the engine's, as both were right.
    """

    total: int = 0
    followed: int = 0


_Hook = Callable[[nn.Module, object, Tensor], Tensor | None]


@contextmanager
def recorded_scores(model: CausalLM) -> Iterator[list[list[Tensor]]]:
    """What each router of a network puts out, (T, E), in pieces, while the engine runs."""
    mixtures = _mixtures(model)
    scores: list[list[Tensor]] = [[] for _ in mixtures]
    with ExitStack() as hooks:
        for moe, own in zip(mixtures, scores, strict=True):
            hooks.enter_context(moe.router.register_forward_hook(_record(own)))
        yield scores


@contextmanager
def following(
    model: CausalLM, scores: Sequence[Sequence[Tensor]], *, allowed: float, tally: Tally
) -> Iterator[None]:
    """Let routers of the network, and of copies made meanwhile, follow the engine in near ties.

    Args:
        model: The network.
        scores: What `recorded_scores` gave for the same tokens.
        allowed: The relative error of a token's scores that rounding explains.
        tally: Where choices are counted.
    """
    with ExitStack() as hooks:
        for moe, pieces in zip(_mixtures(model), scores, strict=True):
            hook = _follow(moe, torch.cat([*pieces]), allowed, tally)
            hooks.enter_context(moe.router.register_forward_hook(hook))
        yield


def _record(scores: list[Tensor]) -> _Hook:
    def hook(router: nn.Module, inputs: object, output: Tensor) -> None:
        del router, inputs
        scores.append(output.clone())

    return hook


def _follow(moe: Moe, scores: Tensor, allowed: float, tally: Tally) -> _Hook:
    # a function and no partial one: copies of a layer have functions themselves, and count as well
    def hook(router: nn.Module, inputs: object, output: Tensor) -> Tensor:
        del router, inputs
        found = scores.to(output)
        is_other = (_chosen(moe, found) != _chosen(moe, output)).any(-1)
        follows = is_other & (relative(found, output) <= allowed)
        tally.total += len(output)
        tally.followed += int(follows.sum())
        return torch.where(follows.unsqueeze(-1), found, output)

    return hook


def _mixtures(model: CausalLM) -> list[Moe]:
    return [part for part in model.layers.modules() if isinstance(part, Moe)]


def _chosen(moe: Moe, scores: Tensor) -> Tensor:
    """The experts that scores choose, in ascending order: (T, E) to (T, k)."""
    correction = None if moe.correction_bias is None else moe.correction_bias.to(scores)
    return route(scores.detach(), moe.config.routing, correction)[1].sort(-1).values
