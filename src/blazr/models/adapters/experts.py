"""What an adapter changes in experts, matrix by matrix, however their tensors are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.models.adapters.file import AdapterFile, LowRankChange, spellings
from blazr.models.causal_lm import CausalLM
from blazr.models.families.rules import Cut, Placement, Rows, RuleBook, Transpose
from blazr.nn.layers.moe import Experts
from blazr.nn.quant.weight import Weight

# Of PEFT: the release that took stacks for (E, out, in) where modules say that they are (E, in,
# out), and the first one that does where they do not say so. Others take them for (E, in, out).
_CROSSED, _UPRIGHT = (0, 19), (0, 20)


@dataclass(frozen=True, slots=True)
class ExpertChange:
    """A change of one matrix: ``W + left @ right``.

    Args:
        parameter: Of the network, a stack of all experts' matrices.
        expert: Which of them.
        left: (out, r), float32, scaled.
        right: (r, in), float32.
    """

    parameter: str
    expert: int
    left: Tensor
    right: Tensor


class ExpertChanges:
    """The changes of experts in an adapter.

    PEFT's factors of experts in one tensor are those of the stored matrices or of the transposed
    ones: that depends on its release, and their sizes show it where matrices are not square.

    Args:
        adapter: What its files say.
        module: The base model; weights are not read.
        rules: From the names of its checkpoint's tensors to those of its parameters.
    """

    def __init__(self, adapter: AdapterFile, module: CausalLM, rules: RuleBook) -> None:
        self._release = adapter.release
        self._module = module
        self._rules = rules
        # one release writes all of a file, so that what is plain of one stack holds for the others
        fitting = [self._fitting(each) for each in adapter.low_rank]
        self._is_turned = next((True in each for each in fitting if len(each) == 1), None)

    def of(self, change: LowRankChange) -> list[ExpertChange] | None:
        """The matrices of experts that a change is of; None where it is of no experts.

        A file has a matrix for each expert, or those of all in one tensor. There the change is a
        stack, too: A is (E * r, in), and B is (out, r * E), the experts' numbers side by side.
        """
        # PEFT does not say which of a module's parameters is meant
        known = list(self._placed(change))
        for is_exact in (True, False):
            for meant, placements in known:
                is_turned = self._expects_turned(placements)
                if self._fits(meant, placements, is_turned=is_turned is is_exact):
                    return self._split(meant, placements, is_turned=is_turned is is_exact)
        return None

    def _placed(
        self, change: LowRankChange
    ) -> Iterator[tuple[LowRankChange, tuple[Placement, ...]]]:
        """What a change may mean, where that is matrices of experts."""
        if change.magnitude is not None or change.is_flipped:
            return
        named = ((meant, name) for meant in change.meanings for name in spellings(meant.name))
        for meant, name in named:
            placements = self._rules.placements(name)
            stacks = [stack_of(self._module, each.parameter) for each in placements]
            if stacks and all(each is not None for each in stacks):
                yield meant, placements

    def _fitting(self, change: LowRankChange) -> set[bool]:
        """Of a change of a stack, whether it fits as it is, and whether it fits transposed."""
        return {
            is_turned
            for meant, placements in self._placed(change)
            if placements[0].slot is None
            for is_turned in (False, True)
            if self._fits(meant, placements, is_turned=is_turned)
        }

    def _expects_turned(self, placements: Sequence[Placement]) -> bool:
        """Whether the factors of a stack are those of its transposed matrices."""
        if placements[0].slot is not None or self._release is None:
            return False
        if self._is_turned is not None:
            return self._is_turned
        lies_on_side = isinstance(placements[0].transform, Transpose)
        says_so = self._is_in_turns(placements[0])  # GPT-OSS's modules do, and Llama 4's do not
        is_upright = self._release == _CROSSED if says_so else self._release >= _UPRIGHT
        return is_upright == lies_on_side

    def _fits(
        self, change: LowRankChange, placements: Sequence[Placement], *, is_turned: bool
    ) -> bool:
        """Whether both factors have the sizes of these matrices."""
        is_one = placements[0].slot is not None
        stacks = self._shapes(placements)
        ranks = change.a.shape[0], change.b.shape[1]
        wanted = change.rank * (1 if is_one else stacks[0][0])
        size = (sum(rows for _, rows, _ in stacks), stacks[0][2])
        found = (change.b.shape[0], change.a.shape[1])
        is_rank = ranks[0] == ranks[1] and (is_one or ranks[0] == wanted)
        return is_rank and found == (size[::-1] if is_turned else size)

    def _split(
        self, change: LowRankChange, placements: Sequence[Placement], *, is_turned: bool
    ) -> list[ExpertChange]:
        is_one = placements[0].slot is not None
        stacks = self._shapes(placements)
        count = 1 if is_one else stacks[0][0]
        left = change.b.float().unflatten(1, (-1, count)).movedim(-1, 0) * change.scale
        right = change.a.float().unflatten(0, (count, -1))
        if is_turned:
            left, right = right.mT, left.mT
        rows: Sequence[Rows | None] = [None]
        if isinstance(placements[0].cut, Cut):
            # rows of gate and up in turns are those of files with clamped activations (GPT-OSS);
            # other models have them joined where transformers has loaded them, whatever their
            # files have
            cut = Cut(groups="rows" if self._is_in_turns(placements[0]) else 1)
            rows = cut.rows([shape[1:] for shape in stacks])
        return [
            ExpertChange(
                placement.parameter,
                index if placement.slot is None else placement.slot,
                select_rows(left[index], own),
                right[index],
            )
            for placement, own in zip(placements, rows, strict=True)
            for index in range(count)
        ]

    def _shapes(self, placements: Sequence[Placement]) -> list[tuple[int, ...]]:
        """(E, out, in) of each stack."""
        stacks = [stack_of(self._module, each.parameter) for each in placements]
        return [tuple(stack.shape) for stack in stacks if stack is not None]

    def _is_in_turns(self, placement: Placement) -> bool:
        """Whether rows of gate and up take turns."""
        owner, _ = owner_of(self._module, placement.parameter)
        return isinstance(owner, Experts) and owner.config.swiglu_limit is not None


def owner_of(module: CausalLM, parameter: str) -> tuple[nn.Module | None, str]:
    """The module a parameter belongs to, None where there is none, and what it is called there."""
    name, _, leaf = parameter.rpartition(".")
    try:
        return module.get_submodule(name), leaf
    except AttributeError:
        return None, leaf


def stack_of(module: CausalLM, parameter: str) -> Tensor | Weight | None:
    """The matrices of all experts that a parameter is; None where it is another."""
    part, leaf = owner_of(module, parameter)
    stack = getattr(part, leaf, None) if isinstance(part, Experts) else None
    return stack if isinstance(stack, Tensor | Weight) and len(stack.shape) == 3 else None


def select_rows(numbers: Tensor, rows: Rows | None) -> Tensor:
    """Some rows, in their order; None for all as they are."""
    if rows is None:
        return numbers
    return torch.cat([numbers[run.start : run.stop : run.step] for run in rows])
