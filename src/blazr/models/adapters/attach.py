"""An adapter beside a network: which of its matrices it changes, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from blazr.core.errors import CapacityError, CheckpointError
from blazr.models.adapters.experts import (
    ExpertChange,
    ExpertChanges,
    owner_of,
    select_rows,
    stack_of,
)
from blazr.models.adapters.file import AdapterFile, LowRankChange, WholeChange, spellings
from blazr.models.causal_lm import CausalLM
from blazr.models.families.hf.vision import IMAGE_PREFIXES
from blazr.models.families.rules import (
    AS_STORED,
    AsStored,
    Conv1d,
    Cut,
    Placement,
    Rows,
    RuleBook,
    TiledColumns,
    Transpose,
)
from blazr.nn.layers.embedding import Embedding
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.lora import Lora
from blazr.nn.layers.mla import Mla
from blazr.nn.layers.moe import Experts
from blazr.nn.operands.lora import LoraFactors, LoraTable
from blazr.nn.quant.weight import Weight

_HEAD = "lm_head.weight"
_HINT = (
    "merge it with blazr convert --merge-adapter or PEFT's merge_and_unload(), and serve what that "
    "saves"
)


def plan_adapter(adapter: AdapterFile, module: CausalLM, rules: RuleBook) -> dict[str, LoraFactors]:
    """What an adapter changes in a network, by the names of its modules.

    A change of a tensor whose rows belong to several matrices changes each of them, by the same
    rules that loading follows.

    Args:
        adapter: What its files say.
        module: The base model, with its weights.
        rules: From the names of its checkpoint's tensors to those of its parameters.

    Raises:
        CheckpointError: It is of another model, changes what no adapter can change here, or holds
            numbers that overflow in the network's dtype.
    """
    found: dict[str, LoraFactors] = {}
    experts = ExpertChanges(adapter, module, rules)
    for change in adapter.low_rank:
        made = dict(_factors_of_change(adapter, change, module, rules, experts=experts))
        _check_finite(adapter, change.name, made)
        if made.keys() & found.keys():
            raise adapter.changes_twice(change.name)
        found |= made
    # PEFT saves the embedding and the head along where they have changes, as they were
    whole = [each for each in adapter.whole if not _equals_own_weight(each, module, rules)]
    for replaced in whole:
        of_whole = _factors_of_whole(adapter, replaced, module, rules)
        _check_finite(adapter, replaced.name, of_whole)
        if of_whole.keys() & found.keys():
            raise _unsupported_whole(adapter.path, replaced)
        found |= of_whole
    return found


def _check_finite(adapter: AdapterFile, tensor: str, made: Mapping[str, LoraFactors]) -> None:
    """Refuse factors that are not finite in the dtype in which the network multiplies with them.

    Raises:
        CheckpointError: Some are not: every reply with the adapter would be NaN.
    """
    for factors in made.values():
        for part in (factors.a, factors.groups, factors.gain):
            if part is not None and not part.isfinite().all():
                dtype = str(part.dtype).removeprefix("torch.")
                raise CheckpointError(
                    f"{adapter.path}: the change of {tensor[:100]} is not finite in {dtype}.",
                    found="NaN or infinity, once it was scaled by alpha / rank and converted",
                    expected=f"numbers of at most {torch.finfo(part.dtype).max:.6g}",
                    hint="load the model with --dtype bfloat16 or float32, or take an earlier "
                    "checkpoint of the adapter: its training may have diverged",
                )


def _equals_own_weight(change: WholeChange, module: CausalLM, rules: RuleBook) -> bool:
    """Whether a whole tensor is what the model has anyway."""
    if change.rows is not None:
        return False
    for name in spellings(change.name):
        for placement in rules.placements(name)[:1]:
            is_tied_head = _is_tied_head(module, [placement])
            part = module.embed_tokens if is_tied_head else _module_of(module, placement.parameter)
            weight = None if part is None else part.weight
            if _is_plain(placement) and isinstance(weight, Tensor):
                own = change.numbers.to(weight.device, weight.dtype)
                return own.shape == weight.shape and bool((own == weight).all())
    return False


def _is_tied_head(module: CausalLM, placements: Sequence[Placement]) -> bool:
    """Whether a tensor would be the head of a network whose head is the embedding."""
    return any(
        each.parameter == _HEAD and _module_of(module, each.parameter) is None
        for each in placements
    )


def _factors_of_change(
    adapter: AdapterFile,
    change: LowRankChange,
    module: CausalLM,
    rules: RuleBook,
    *,
    experts: ExpertChanges,
) -> list[tuple[str, LoraFactors]]:
    """The factors of one change of a tensor, by the module that each is attached to."""
    of_experts = experts.of(change)
    if of_experts is not None:
        return _factors_of_experts(of_experts, module)
    known = [
        (meant, tensor, found)
        for meant in change.meanings
        for tensor in spellings(meant.name)
        if (found := rules.placements(tensor))
    ]
    if not known and change.name.startswith(IMAGE_PREFIXES):
        if change.b.any():
            raise _unsupported_tower(adapter.path, change)
        return []  # it was trained on text alone
    if not known:
        raise adapter.lacks(change.name)
    saved = change
    change, tensor, placements = known[0]
    placements = _turned(placements)
    left, right = change.factors
    size = len(left), right.shape[1]
    if any(_matrix_of(module, each.parameter) is None for each in placements):
        if adapter.is_redundant(saved):
            return []
        is_stack = [stack_of(module, each.parameter) is not None for each in placements]
        if change.magnitude is not None and all(is_stack):
            raise _unsupported_dora(adapter.path, change)
        if _is_tied_head(module, placements):
            raise adapter.changes_tied_head(change.name)
        raise _unsupported_change(adapter.path, change)
    adapter.check_rank(change)
    rows = _rows_of(adapter, tensor, placements, module, size=size)
    return [
        each
        for placement, own in zip(placements, rows, strict=True)
        for each in _factors_of_rows(change, module, placement, rows=own, path=adapter.path)
    ]


def _turned(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """What a change becomes of a matrix that is stored (in, out), and changed as (out, in)."""
    return tuple(
        replace(
            each,
            transform=AS_STORED,
            cut=replace(each.cut, dim=0) if isinstance(each.cut, Cut) else each.cut,
        )
        if isinstance(each.transform, Conv1d)
        else each
        for each in placements
    )


def _factors_of_whole(
    adapter: AdapterFile, change: WholeChange, module: CausalLM, rules: RuleBook
) -> dict[str, LoraFactors]:
    """The difference to a whole tensor of an adapter, or to rows of one, as factors, by module."""
    known = [(each, found) for each in spellings(change.name) if (found := rules.placements(each))]
    tensor, placements = next(iter(known), ("", ()))
    parts = [part for each in placements if (part := _changeable(module, each)) is not None]
    if _is_tied_head(module, placements):
        raise adapter.changes_tied_head(change.name, is_whole=True)
    if not known and not change.name.startswith(IMAGE_PREFIXES):
        raise adapter.lacks(change.name)  # as the head of a classifier
    if not parts or len(parts) < len(placements):
        raise _unsupported_whole(adapter.path, change)
    if change.rows is not None:
        if not all(_is_plain(each) for each in placements):
            raise _unsupported_whole(adapter.path, change)
        name = placements[0].parameter.removesuffix(".weight")
        return {name: _factors_of_tokens(adapter, change, module, parts[0])}
    size = tuple(change.numbers.shape)
    rows = _rows_of(adapter, tensor, placements, module, size=size)
    made: dict[str, LoraFactors] = {}
    for part, placement, own in zip(parts, placements, rows, strict=True):
        numbers = select_rows(change.numbers, own)
        weight = part.weight
        stored = placement.transform.read(numbers).to(weight.device, torch.float32)
        difference = stored - _as_floats(weight)
        outer, inner = difference.shape
        is_embedding = isinstance(part, Embedding)
        is_left = is_embedding or outer <= inner
        size_of_one = inner if is_embedding or not is_left else outer
        dtype = _adapter_dtype(part)
        one = torch.eye(size_of_one, dtype=dtype, device=weight.device)
        a = _contiguous_like(difference, weight, dtype) if is_left else one
        b = one if is_left else _contiguous_like(difference.T, weight, dtype)
        name = placement.parameter.removesuffix(".weight")
        made[name] = LoraFactors.of(a, b, is_whole=True)
    return made


def _is_plain(placement: Placement) -> bool:
    """Whether a tensor is all of one parameter, as it is stored."""
    return placement.cut is None and isinstance(placement.transform, AsStored)


def _factors_of_tokens(
    adapter: AdapterFile, change: WholeChange, module: CausalLM, part: Linear | Embedding
) -> LoraFactors:
    """The difference to some rows of the embedding or the head, as factors of as high a rank."""
    assert change.rows is not None
    if part is module.embed_tokens and module.config.tie_word_embeddings:
        raise _unsupported_tied_tokens(adapter.path, change)
    weight = part.weight
    change.check_rows(adapter.path, tuple(weight.shape))
    rows = torch.tensor(change.rows, device=weight.device)
    own = weight.rows(rows) if isinstance(weight, Weight) else weight[rows]
    difference = change.numbers.to(weight.device, torch.float32) - own.float()
    dtype = _adapter_dtype(part)
    picking = torch.zeros(weight.shape[0], len(rows), device=weight.device)
    picking[rows, torch.arange(len(rows), device=weight.device)] = 1
    is_embedding = isinstance(part, Embedding)
    a, b = (picking, difference) if is_embedding else (difference, picking.T)
    return LoraFactors.of(
        _contiguous_like(a, weight, dtype),
        _contiguous_like(b, weight, dtype),
        is_whole=True,
        rows=rows,
    )


def _rows_of(
    adapter: AdapterFile,
    tensor: str,
    placements: Sequence[Placement],
    module: CausalLM,
    *,
    size: tuple[int, ...],
) -> Sequence[Rows | None]:
    """Which rows of a tensor each parameter has; None for all as they are.

    Raises:
        CheckpointError: The tensor is of another size.
    """
    shapes = []
    for placement in placements:
        weight = _matrix_of(module, placement.parameter)
        assert weight is not None
        shapes.append(placement.transform.stored_shape(tuple(weight.shape)))
    cut = placements[0].cut
    whole = shapes[0] if cut is None else cut.whole(shapes)
    adapter.check_size(tensor, size, whole)
    return [None] if cut is None else cut.rows(shapes)


def _changeable(module: CausalLM, placement: Placement) -> Linear | Embedding | None:
    """The layer that multiplies with a matrix and can add an adapter's product; else None."""
    part = _module_of(module, placement.parameter)
    is_known = isinstance(placement.transform, AsStored | Transpose | TiledColumns)
    return part if is_known and isinstance(part, Linear | Embedding) else None


def _factors_of_experts(
    changes: Sequence[ExpertChange], module: CausalLM
) -> list[tuple[str, LoraFactors]]:
    """The factors of changes of experts, by expert's matrix."""
    found: list[tuple[str, LoraFactors]] = []
    for change in changes:
        stack = stack_of(module, change.parameter)
        assert stack is not None
        factors = LoraFactors.of(
            _contiguous_like(change.right, stack), _contiguous_like(change.left.T, stack)
        )
        found.append((f"{change.parameter}.{change.expert}", factors))
    return found


def _unsupported_change(path: Path, change: LowRankChange) -> CheckpointError:
    return _unsupported(path, f"of {change.name[:100]}", "changes")


def _unsupported_dora(path: Path, change: LowRankChange) -> CheckpointError:
    """The error for DoRA of what heads or experts multiply with one by one."""
    return CheckpointError(
        f"{path}: DoRA of {change.name[:100]} is not supported, as each head or expert "
        "multiplies with its part of it by itself.",
        found="lora_magnitude_vector, the lengths of its rows (use_dora)",
        expected="LoRA without lengths there; DoRA of other projections",
        hint=f"{_HINT}; or train it with use_dora=False, or without this one in target_modules",
    )


def _unsupported_tower(path: Path, change: LowRankChange) -> CheckpointError:
    return CheckpointError(
        f"{path}: adapters of {change.name[:100]} are not supported.",
        found="a change of what encodes images or sounds",
        expected="changes of the language model",
        hint="train it with exclude_modules or a pattern in target_modules, or merge it with "
        "PEFT's merge_and_unload()",
    )


def _unsupported_tied_tokens(path: Path, change: WholeChange) -> CheckpointError:
    return CheckpointError(
        f"{path}: rows of {change.name[:100]} for some tokens are not supported, as the model's "
        "head is its embedding.",
        found="trainable_token_indices, which changes both",
        expected="a model with a head of its own, or other changes",
        hint="merge it with blazr convert --merge-adapter, and serve what that saves",
    )


def _unsupported_whole(path: Path, change: WholeChange) -> CheckpointError:
    return _unsupported(path, f"that bring {change.name[:100]} along", "whole matrices")


def _unsupported(path: Path, which: str, known: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: adapters {which} are not supported.",
        expected=f"{known} of projections, of the embedding, and of a head of its own",
        hint=_HINT,
    )


def _module_of(module: CausalLM, parameter: str) -> nn.Module | None:
    """Whose weight a parameter is; None where there is none of that name."""
    part, leaf = owner_of(module, parameter)
    weight = getattr(part, "weight", None)
    return part if leaf == "weight" and isinstance(weight, Tensor | Weight) else None


def _heads_of(module: CausalLM, parameter: str) -> Tensor | None:
    """The matrices of all heads of latent attention that a parameter is; None for another."""
    part, leaf = owner_of(module, parameter)
    found = getattr(part, leaf, None) if isinstance(part, Mla) and leaf in part.loras else None
    return found if isinstance(found, Tensor) else None


def _matrix_of(module: CausalLM, parameter: str) -> Tensor | Weight | None:
    """What a parameter is that adapters may change; None where there is none of that name."""
    part = _module_of(module, parameter)
    found = _heads_of(module, parameter) if part is None else part.weight
    assert found is None or isinstance(found, Tensor | Weight)
    return found


def _factors_of_rows(
    change: LowRankChange,
    module: CausalLM,
    placement: Placement,
    *,
    rows: Rows | None,
    path: Path,
) -> list[tuple[str, LoraFactors]]:
    """The factors of a change of some rows of a tensor, by module, or by head of one."""
    left, right = change.factors
    left = select_rows(left, rows)
    heads = _heads_of(module, placement.parameter)
    if heads is not None:
        if rows is None:
            raise _unsupported_change(path, change)
        if change.magnitude is not None:
            raise _unsupported_dora(path, change)
        right = _contiguous_like(right, heads)
        # one for each head, (out, r); how they lie in memory is how they are multiplied
        lefts = _contiguous_like(left.unflatten(0, (len(heads), -1)).mT, heads)
        is_turned = isinstance(placement.transform, Transpose)
        pairs = [(own, right) if is_turned else (right, own) for own in lefts]
        return [
            (f"{placement.parameter}.{head}", LoraFactors.of(*pair))
            for head, pair in enumerate(pairs)
        ]
    part = _changeable(module, placement)
    if part is None:
        raise _unsupported_change(path, change)
    weight = part.weight
    transform = placement.transform
    if isinstance(transform, Transpose):
        left, right = right.T, left.T
    elif isinstance(transform, TiledColumns):
        right = transform.read(right)
    a, b = (left, right) if isinstance(part, Embedding) else (right, left.T)
    dtype = _adapter_dtype(part)
    factors = LoraFactors.of(_contiguous_like(a, weight, dtype), _contiguous_like(b, weight, dtype))
    lengths = change.lengths(path, change.name)
    if lengths is not None:
        lengths = select_rows(lengths, rows).to(weight.device)
        factors = replace(factors, lengths=lengths).beside(_as_floats(weight))
    return [(placement.parameter.removesuffix(".weight"), factors)]


def _as_floats(weight: Tensor | Weight) -> Tensor:
    return weight.dequantize(torch.float32) if isinstance(weight, Weight) else weight


def _adapter_dtype(part: Linear | Embedding) -> torch.dtype:
    """What factors beside its matrix are multiplied in."""
    return part.adapter_dtype if isinstance(part, Linear) else part.weight.dtype


def _contiguous_like(
    numbers: Tensor, weight: Tensor | Weight, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers as kernels read them beside a weight: contiguous, on its device and in its dtype."""
    return numbers.to(weight.device, dtype or weight.dtype).contiguous()


def _refit(table: LoraTable, old: Tensor, new: Tensor) -> None:
    """Adjust factors that depend on a matrix to the one that takes its place."""
    for slot, factors in table.factors.items():
        fitting = factors.plus(old.float() - new) if factors.is_whole else factors
        table.put(slot, fitting.beside(new))


class AdapterSlots:
    """The adapters that a network holds beside its matrices. One thread uses it.

    Args:
        module: The network.
        num_slots: Most adapters at once.
    """

    def __init__(self, module: CausalLM, num_slots: int) -> None:
        self._module = module
        self._num_slots = num_slots
        self._free = list(range(num_slots, 0, -1))
        self._loras: dict[str, Lora] = {}

    def put(self, factors: Mapping[str, LoraFactors]) -> tuple[int, bool]:
        """Hold an adapter.

        Args:
            factors: What it changes, by module.

        Returns:
            Its slot, and whether steps that were recorded before do not fit any more.

        Raises:
            CapacityError: There are too many.
        """
        if not self._free:
            raise CapacityError(
                "there is no room for another adapter.",
                found=f"{self._num_slots} adapters",
                expected="fewer",
                hint="unload one that is not needed",
            )
        slot = self._free.pop()
        is_new = False
        for name, each in factors.items():
            lora = self._loras.get(name)
            if lora is None:
                lora = self._loras[name] = Lora(self._module.step_adapters, self._num_slots + 1)
                self._attach(name, lora)
                is_new = True
            is_new = is_new or each.rank > lora.table.max_rank
            lora.table.put(slot, each)
        return slot, is_new

    def drop(self, slot: int) -> None:
        """Remove an adapter, so that its slot is free."""
        for lora in self._loras.values():
            lora.table.drop(slot)
        self._free.append(slot)

    def move(self, module: CausalLM) -> None:
        """Attach all adapters to another network of the same config."""
        module.step_adapters = self._module.step_adapters
        before, self._module = self._module, module
        for name, lora in self._loras.items():
            self._attach(name, lora)
            if any(x.lengths is not None or x.is_whole for x in lora.table.factors.values()):
                new, old = (_matrix_of(each, f"{name}.weight") for each in (module, before))
                assert new is not None
                assert old is not None
                _refit(lora.table, _as_floats(old), _as_floats(new))

    def _attach(self, name: str, lora: Lora) -> None:
        owner, _, leaf = name.rpartition(".")
        if leaf.isdecimal():
            path, _, matrix = owner.rpartition(".")
            stacks = self._module.get_submodule(path)
            assert isinstance(stacks, Experts | Mla)
            if isinstance(stacks, Mla):
                stacks.loras[matrix][int(leaf)] = lora
            else:
                stacks.loras.put(matrix.removesuffix("_proj"), int(leaf), lora)
            return
        part = self._module.get_submodule(name)
        assert isinstance(part, Linear | Embedding)
        part.lora = lora
