"""What kernels of a mixture of experts are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from blazr.nn.operands.floats import StoredMatrix
from blazr.nn.operands.lora import LoraTable
from blazr.nn.operands.packing import Packed


class Matrix(Protocol):
    """A matrix that is no plain tensor."""

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x W.T + bias``."""


class Matrices(Protocol):
    """One for each expert."""

    def select(self, index: int) -> Matrix:
        """An expert's."""


Stack = Tensor | Packed | StoredMatrix | Matrices


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Experts in groups of equal size, one after the other.

    Args:
        count: Groups.
        kept: Groups that a token may choose from.
        judged_by: A group is as good as the sum of this many of its best experts.
    """

    count: int
    kept: int
    judged_by: int = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts are chosen and weighed.

    Args:
        k: Experts per token; more than there are means all.
        scoring: What makes scores of logits: a softmax or a sigmoid over all experts; or the logits
            themselves choose, and a softmax over the chosen weighs them.
        normalize: Whether the weights of a token are divided by their sum.
        groups: Only experts of the best groups are chosen [arXiv:2405.04434, section 2.2.2].
        scale: Applied to the weights.
    """

    k: int
    scoring: Literal["softmax", "sigmoid", "softmax of chosen"] = "softmax"
    normalize: bool = True
    groups: ExpertGroups | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertAdapters:
    """What adapters change in the experts' matrices, for some tokens.

    Args:
        tables: By ``"gate"``, ``"up"`` or ``"down"`` and the expert; others are not changed.
        entries: By name, those of all experts' tables, (E, slots, 4).
        slots: Of the tokens' adapters, (T,), int64.
    """

    tables: Mapping[tuple[str, int], LoraTable]
    entries: Mapping[str, Tensor]
    slots: Tensor

    @property
    def max_rank(self) -> int:
        """The largest rank there is room for."""
        return max(table.max_rank for table in self.tables.values())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExpertMlps:
    """The experts' MLPs: ``down(act(gate(x)) * up(x))``, or ``down(act(up(x)))``.

    Args:
        up: (E, I, C).
        down: (E, C, I).
        gate: (E, I, C); None where there is none.
        activation: A name of ACTIVATIONS.
        up_bias: (E, I), or None.
        gate_bias: (E, I), or None.
        down_bias: (E, C), or None.
        limit: Clamps the inner activations [see `clamped_swiglu`]; None for none.
        alpha: Steepness of the clamped form.
        adapters: What adapters change in them for the tokens; None for nothing.
    """

    up: Stack
    down: Stack
    gate: Stack | None = None
    activation: str = "silu"
    up_bias: Tensor | None = None
    gate_bias: Tensor | None = None
    down_bias: Tensor | None = None
    limit: float | None = None
    alpha: float = 1.0
    adapters: ExpertAdapters | None = None
