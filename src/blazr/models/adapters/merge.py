"""An adapter merged into the tensors of its base model, as they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.models.adapters.experts import ExpertChange, ExpertChanges, stack_of
from blazr.models.adapters.file import AdapterFile, LowRankChange, WholeChange, spellings
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.rules import (
    AsStored,
    Conv1d,
    Placement,
    RuleBook,
    Shape,
    Stack,
    Transpose,
)

_EMBEDDING = ("embed_tokens.weight", "embeddings.weight", "wte.weight", "word_embeddings.weight")
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class StoredChange:
    """What becomes of a stored matrix: rows of ``left @ right`` are added, or it is replaced.

    Args:
        left: (out, r), float32, scaled; of a replacement the other matrix.
        right: (r, in), float32; None for a replacement.
        lengths: (out,), float32, which the rows of the sum get (DoRA); None leaves theirs.
    """

    left: Tensor
    right: Tensor | None
    lengths: Tensor | None = None

    def apply(self, rows: slice, numbers: Tensor) -> Tensor:
        """Change some rows of the matrix, given as plain numbers; the sum is in float32.

        Source: Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353.
        """
        if self.right is None:  # a vector is one row
            return self.left.reshape(-1, numbers.shape[-1])[rows]
        merged = numbers.float() + self.left[rows] @ self.right
        if self.lengths is not None:
            merged *= (self.lengths[rows] / merged.norm(dim=1))[:, None]
        return merged


@dataclass(frozen=True, slots=True)
class RowsChange:
    """What becomes of a stored matrix of which some rows are replaced.

    Args:
        rows: Which.
        numbers: The others, (r, in), float32.
    """

    rows: tuple[int, ...]
    numbers: Tensor

    def apply(self, rows: slice, numbers: Tensor) -> Tensor:
        """Replace some of the rows of a part of the matrix, given as plain numbers."""
        merged = numbers.float().clone()
        for row, other in zip(self.rows, self.numbers, strict=True):
            if rows.start <= row < rows.stop:
                merged[row - rows.start] = other
        return merged


@dataclass(frozen=True, slots=True)
class StackedChange:
    """What becomes of a stored stack of matrices, those of experts in one tensor.

    Args:
        height: Rows of each matrix as it is stored.
        changes: Of some of the matrices, by their number.
    """

    height: int
    changes: Mapping[int, StoredChange]

    def apply(self, rows: slice, numbers: Tensor) -> Tensor:
        """Change some rows of all matrices one below the other; see `StoredChange.apply`."""
        parts = []
        for index in range(rows.start // self.height, -(-rows.stop // self.height)):
            first = index * self.height
            low, high = max(rows.start, first), min(rows.stop, first + self.height)
            own = numbers[low - rows.start : high - rows.start]
            change = self.changes.get(index)
            within = slice(low - first, high - first)
            parts.append(own.float() if change is None else change.apply(within, own))
        return torch.cat(parts)


Change = StoredChange | RowsChange | StackedChange


def plan_merge(
    adapter: AdapterFile,
    checkpoint: Checkpoint,
    rules: RuleBook,
    module: CausalLM,
) -> dict[str, Change]:
    """What an adapter changes in a checkpoint, by the names of its tensors.

    Args:
        adapter: What its files say.
        checkpoint: The base model.
        rules: From the names of its tensors to those of parameters.
        module: The network, whose weights are not read.

    Raises:
        CheckpointError: The adapter is of another model, or changes what merging cannot change.
    """
    is_tied = module.config.tie_word_embeddings
    experts = ExpertChanges(adapter, module, rules)
    of_experts: dict[tuple[str, int], ExpertChange] = {}
    found = _replacements(adapter, checkpoint, rules, is_tied=is_tied)
    redundant = []
    for change in adapter.low_rank:
        split = experts.of(change)
        if split is not None:
            own = {(each.parameter, each.expert): each for each in split}
            if own.keys() & of_experts.keys():
                raise adapter.changes_twice(change.name)
            of_experts |= own
            continue
        known = ((each, _info_of(each.name, checkpoint, rules)) for each in change.meanings)
        meant, info = next((pair for pair in known if pair[1] is not None), (change, None))
        if info is None:
            if not adapter.is_redundant(change):
                is_head = is_tied and any(each.name.endswith(_HEAD) for each in change.meanings)
                lacks = adapter.changes_tied_head if is_head else adapter.lacks
                raise lacks(change.name)
            redundant.append(change.name)
            continue
        if info.name.endswith(_EMBEDDING) and is_tied:
            raise _unsupported_embedding(adapter, info.name)
        first = rules.match(info.name)
        if first is not None and isinstance(first.transform, Conv1d):
            meant = replace(meant, is_flipped=True)
        found[info.name] = _stored(adapter, meant, info, found.get(info.name))
    stacked = _of_experts(adapter, of_experts.values(), checkpoint, rules, module=module)
    for name in stacked.keys() & found.keys():
        raise adapter.changes_twice(name)
    if redundant and not found and not stacked:
        raise adapter.lacks(redundant[0])
    return {**found, **stacked}


def _of_experts(
    adapter: AdapterFile,
    changes: Iterable[ExpertChange],
    checkpoint: Checkpoint,
    rules: RuleBook,
    *,
    module: CausalLM,
) -> dict[str, Change]:
    """Changes of experts, by the names of the tensors that hold these, one by one or together."""
    parts: dict[str, dict[int | None, list[StoredChange]]] = {}
    for change in changes:
        names = rules.sources(change.parameter, change.expert)
        name = next((each for each in names if each in checkpoint.tensors), None)
        if name is None:
            raise adapter.lacks(change.parameter)
        placements = rules.placements(name)
        own = next(each for each in placements if each.parameter == change.parameter)
        if not isinstance(own.transform, AsStored | Stack | Transpose):
            raise CheckpointError(
                f"{adapter.path}: the change of {name[:100]} cannot be merged.",
                found="experts that are stored in blocks of four-bit numbers",
                expected="a checkpoint of plain numbers",
                hint="serve it with --adapter, or merge it into a copy of the model in bfloat16",
            )
        shapes = [_stored_shape(each, module) for each in placements]
        whole = shapes[0] if own.cut is None else own.cut.whole(shapes)
        adapter.check_size(name, whole, checkpoint.tensors[name].shape)
        left = change.left
        if own.cut is not None:  # rows of others stay as they are
            rows = own.cut.rows(shapes)[placements.index(own)]
            left = left.new_zeros(whole[own.cut.dim], left.shape[1])
            left[[row for run in rows for row in run]] = change.left
        stored = StoredChange(left, change.right)
        if isinstance(own.transform, Transpose):
            stored = StoredChange(change.right.T, left.T)
        index = change.expert if own.slot is None else None
        parts.setdefault(name, {}).setdefault(index, []).append(stored)
    found: dict[str, Change] = {}
    for name, by_expert in parts.items():
        sums = {index: _sum_of(each) for index, each in by_expert.items()}
        height = checkpoint.tensors[name].shape[-2]
        stack = {index: each for index, each in sums.items() if index is not None}
        found[name] = StackedChange(height, stack) if stack else sums[None]
    return found


def _stored_shape(placement: Placement, module: CausalLM) -> Shape:
    """The shape of a tensor of experts, had it no others' rows."""
    stack = stack_of(module, placement.parameter)
    assert stack is not None
    return placement.transform.stored_shape(tuple(stack.shape))


def _sum_of(changes: Sequence[StoredChange]) -> StoredChange:
    """Changes of low rank of one matrix, as of gate and up together, as one."""
    rights = [each.right for each in changes if each.right is not None]
    return StoredChange(torch.cat([each.left for each in changes], dim=1), torch.cat(rights))


def _replacements(
    adapter: AdapterFile, checkpoint: Checkpoint, rules: RuleBook, *, is_tied: bool
) -> dict[str, Change]:
    found: dict[str, Change] = {}
    for replaced in adapter.whole:
        name = replaced.name
        if is_tied and name.endswith(_HEAD) and name not in checkpoint.tensors:
            _check_same_head(adapter, replaced, checkpoint)
            continue
        info = _info_of(name, checkpoint, rules)
        if info is None:
            raise adapter.lacks(name)
        if info.name in found:
            raise adapter.changes_twice(name)
        if replaced.rows is not None:  # where the head is the embedding, PEFT changes both
            replaced.check_rows(adapter.path, info.shape)
            found[info.name] = RowsChange(replaced.rows, replaced.numbers.float())
            continue
        adapter.check_size(info.name, tuple(replaced.numbers.shape), info.shape)
        if is_tied and info.name.endswith(_EMBEDDING):
            _check_head_follows(adapter, replaced, checkpoint.read(info.name))
        found[info.name] = StoredChange(replaced.numbers.float(), None)
    return found


def _info_of(name: str, checkpoint: Checkpoint, rules: RuleBook) -> TensorInfo | None:
    """The tensor that an adapter calls by a name, or by another one of the same parameters.

    transformers names modules of models that see or hear otherwise than their files do.
    """
    tensors = checkpoint.tensors
    known = [each for each in spellings(name) if each in tensors]
    for each in () if known else spellings(name):
        placements = rules.placements(each)
        for first in placements[:1]:
            sources = rules.sources(first.parameter, first.slot)
            known += [
                other
                for other in sources
                if other in tensors and rules.placements(other) == placements
            ]
    return tensors[known[0]] if known else None


def _unsupported_embedding(adapter: AdapterFile, name: str) -> CheckpointError:
    return CheckpointError(
        f"{adapter.path}: the change of {name[:100]} cannot be merged.",
        found="an embedding that is the head, too",
        expected="an adapter of projections, or a model with a head of its own",
        hint="serve it with --adapter, which changes the embedding alone",
    )


def _check_head_follows(adapter: AdapterFile, embedding: WholeChange, own: Tensor) -> None:
    """Refuse another embedding without its head: PEFT trains it beside the head as it was."""
    has_head = any(each.name.endswith(_HEAD) for each in adapter.whole)
    if not has_head and not torch.equal(embedding.numbers.float(), own.float()):
        raise _unsupported_embedding(adapter, embedding.name)


def _check_same_head(adapter: AdapterFile, head: WholeChange, checkpoint: Checkpoint) -> None:
    """PEFT saves a head along with an embedding that has changes, also where both are one."""
    names = [each for each in checkpoint.tensors if each.endswith(_EMBEDDING)]
    others = [
        each.numbers
        for each in adapter.whole
        if each.name.endswith(_EMBEDDING) and each.rows is None
    ]
    others += [checkpoint.read(name) for name in names[:1]]
    if not others or not torch.equal(others[0].float(), head.numbers.float()):
        raise adapter.changes_tied_head(head.name, is_whole=True)


def _stored(
    adapter: AdapterFile, change: LowRankChange, info: TensorInfo, before: Change | None
) -> StoredChange:
    """A change of low rank, of the tensor as it is stored, or of the one that took its place."""
    adapter.check_rank(change)
    left, right = change.factors
    adapter.check_size(info.name, (left.shape[0], right.shape[1]), info.shape)
    added = StoredChange(left, right, change.lengths(adapter.path, info.name))
    if before is None:
        return added
    if not isinstance(before, StoredChange) or before.right is not None:
        raise adapter.changes_twice(change.name)
    # PEFT saves a wrapped embedding as it was, beside its change
    return StoredChange(added.apply(slice(None), before.left), None)
