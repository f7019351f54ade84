"""What a step costs: fitted to steps that were timed, or from a device's rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from blazr.engine.scheduler import StepPlan


class Device(Protocol):
    """Says how long a step takes."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds, from the plan alone."""


def features(plan: StepPlan) -> tuple[float, float, float, float, float]:
    """What a step's time depends on.

    One; sequences that decode; tokens before theirs; tokens of prompts; and the sum over these of
    the tokens before each.
    """
    decodes = before = tokens = pairs = 0.0
    for row in plan.rows:
        start = row.sequence.computed
        if row.decodes:
            decodes += 1
            before += start
        else:
            tokens += row.num_tokens
            pairs += row.num_tokens * (start + row.num_tokens / 2)
    return 1.0, decodes, before, tokens, pairs


@dataclass(frozen=True)
class FittedDevice:
    """Seconds for each of `features`."""

    weights: tuple[float, ...]

    def step_s(self, plan: StepPlan) -> float:
        """Seconds of a step."""
        return sum(a * b for a, b in zip(self.weights, features(plan), strict=True))


def fit(samples: Sequence[tuple[Sequence[float], float]]) -> FittedDevice:
    """Fit timed steps, so that relative errors are small; no weight is negative.

    Steps that took twice as long as that says, or half, were held up: they are left out, and the
    rest is fitted again.

    Args:
        samples: Features of steps, and their seconds.
    """
    rows = np.array([given for given, _ in samples])
    seconds = np.array([taken for _, taken in samples])
    rows = rows / seconds[:, None]
    weights = _positive(rows)
    ratio = rows @ weights
    return FittedDevice(tuple(_positive(rows[(ratio > 0.5) & (ratio < 2)]).tolist()))


def _positive(rows: np.ndarray) -> np.ndarray:
    """The weights under which each row sums to one, as nearly as can be."""
    used = list(range(rows.shape[1]))
    while True:  # without those that would be negative
        found, *_ = np.linalg.lstsq(rows[:, used], np.ones(len(rows)), rcond=None)
        if (found >= 0).all():
            break
        del used[int(found.argmin())]
    weights = np.zeros(rows.shape[1])
    weights[used] = found
    return weights


@dataclass(frozen=True)
class RooflineDevice:
    """A device that is bound by what it reads or by what it multiplies, whichever takes longer.

    Args:
        weight_bytes: Read once in every step.
        token_bytes: Keys, values and latents of a token.
        sequence_bytes: States and logs of a sequence that every step of it reads or writes.
        parameters: Of which each token is multiplied with all.
        attention_width: Heads times head size, summed over the layers with attention.
        bytes_per_s: What memory gives.
        operations_per_s: What products reach.
        overhead_s: Of a step, besides.
    """

    weight_bytes: float
    token_bytes: float
    sequence_bytes: float
    parameters: float
    attention_width: float
    bytes_per_s: float
    operations_per_s: float
    overhead_s: float

    def step_s(self, plan: StepPlan) -> float:
        """Seconds of a step."""
        _, decodes, before, tokens, pairs = features(plan)
        prefills = len(plan.rows) - decodes
        read = before + sum(row.sequence.computed for row in plan.rows if not row.decodes)
        nbytes = self.weight_bytes + self.token_bytes * read
        nbytes += self.sequence_bytes * (decodes + prefills)
        operations = 2 * self.parameters * (decodes + tokens)
        operations += 4 * self.attention_width * (before + pairs)
        bound_s = max(nbytes / self.bytes_per_s, operations / self.operations_per_s)
        return self.overhead_s + bound_s
