"""Rules: from a checkpoint's tensor names to the network's parameter names.

A rule is one line::

    Rule("layers.{i}.moe.experts.{e}.{p}_proj.weight", "layers.{i}.feed_forward.experts.{p}_proj",
         Stack("e"), p=("gate", "up", "down"))

``{i}`` and ``{e}`` stand for whole numbers, ``{p}`` for one of the words of ``p``. A rule that has
no placeholders is about one tensor, and goes before those about many.

A tensor whose rows belong to several parameters names them all, in the order of the rows::

    Rule("layers.{i}.mlp.gate_up_proj.{p}",
         ("layers.{i}.feed_forward.gate_proj.{p}", "layers.{i}.feed_forward.up_proj.{p}"), p=PARTS)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
Rows = tuple[range, ...]
"""Which rows of a stored tensor a parameter is made of, in its own order."""

# What the names of a layer's parameters begin with, and words that stand in many of them.
OURS = "layers.{i}."
MIXER, FEED = OURS + "mixer.", OURS + "feed_forward."
MTP = "mtp."  # what those of the module for multi-token prediction begin with
PARTS = ("weight", "bias")
GATE_UP_DOWN = ("gate", "up", "down")

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBERED = re.compile(r"^layers\.(\d+)\.", re.ASCII)
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def split_layer(parameter: str) -> tuple[int | None, str]:
    """The number of the layer that a parameter is of, None for others, and its name there."""
    found = _NUMBERED.match(parameter)
    return (None, parameter) if found is None else (int(found[1]), parameter[found.end() :])


@dataclass(frozen=True, slots=True)
class Transform:
    """What happens to stored tensors on their way to a parameter."""

    def stored_shape(self, shape: Shape) -> Shape:
        """The shape of a tensor that a parameter of this shape is made of."""
        return shape

    def fits(self, found: Shape, stored: Shape) -> bool:
        """Whether a tensor of one shape can stand where another is expected."""
        return found == stored

    def slots(self, shape: Shape) -> Sequence[int | None]:
        """The slots of a parameter, each of one tensor; None for a tensor that is all of it."""
        del shape
        return (None,)

    def slot_of(self, numbers: Mapping[str, str]) -> int | None:
        """The slot of a tensor, by the numbers in its name.

        Args:
            numbers: By placeholder.
        """
        del numbers
        return None

    def numbers_of(self, slot: int) -> Mapping[str, str] | None:
        """The opposite of `slot_of`; None where no tensor of this kind has that slot."""
        del slot
        return {}

    def read(self, stored: Tensor) -> Tensor:
        """The numbers of the parameter, perhaps in another shape of as many."""
        return stored

    def write(self, numbers: Tensor) -> Tensor:
        """The opposite of `read`, for a whole matrix or vector."""
        return numbers


@dataclass(frozen=True, slots=True)
class AsStored(Transform):
    """Nothing happens."""


AS_STORED = AsStored()


@dataclass(frozen=True, slots=True)
class Stack(Transform):
    """Many tensors become the slices of one parameter.

    Args:
        index: The placeholder that says which slice.
    """

    index: str

    @override
    def stored_shape(self, shape: Shape) -> Shape:
        return shape[1:]

    @override
    def slots(self, shape: Shape) -> Sequence[int | None]:
        return range(shape[0])

    @override
    def slot_of(self, numbers: Mapping[str, str]) -> int:
        return int(numbers[self.index])

    @override
    def numbers_of(self, slot: int) -> Mapping[str, str]:
        return {self.index: str(slot)}


@dataclass(frozen=True, slots=True)
class Squeeze(Transform):
    """A dimension of size one goes.

    Args:
        dim: Which.
    """

    dim: int

    @override
    def stored_shape(self, shape: Shape) -> Shape:
        return (*shape[: self.dim], 1, *shape[self.dim :])

    @override
    def read(self, stored: Tensor) -> Tensor:
        return stored.squeeze(self.dim)

    @override
    def write(self, numbers: Tensor) -> Tensor:
        return numbers.unsqueeze(self.dim)


@dataclass(frozen=True, slots=True)
class DecayLog(Transform):
    """The decay rates ``-exp(a_log)`` are stored, perhaps as a column; ``a_log`` is wanted.

    Args:
        sign: Of what is stored.
    """

    sign: Literal[1, -1] = -1

    @override
    def fits(self, found: Shape, stored: Shape) -> bool:
        wide, wanted = ([size for size in each if size != 1] for each in (found, stored))
        return wide == wanted

    @override
    def read(self, stored: Tensor) -> Tensor:
        return (self.sign * stored.float()).log()

    @override
    def write(self, numbers: Tensor) -> Tensor:
        return self.sign * numbers.float().exp()


@dataclass(frozen=True, slots=True)
class Reshape(Transform):
    """The same numbers in another shape."""

    @override
    def fits(self, found: Shape, stored: Shape) -> bool:
        return prod(found) == prod(stored)


@dataclass(frozen=True, slots=True)
class Transpose(Transform):
    """The last two dimensions change places."""

    @override
    def stored_shape(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    @override
    def read(self, stored: Tensor) -> Tensor:
        return stored.mT

    @override
    def write(self, numbers: Tensor) -> Tensor:
        return numbers.mT


@dataclass(frozen=True, slots=True)
class Conv1d(Transpose):
    """The same of a matrix whose module is a ``Conv1D`` of transformers.

    Adapters change what such a module multiplies with, (out, in), as that of any other.
    """


@dataclass(frozen=True, slots=True)
class Mxfp4(Transform):
    """One of the two tensors that hold four-bit numbers in blocks of 32.

    Args:
        part: 0 for the numbers, two in a byte; 1 for the exponents, one a block.
    """

    part: int

    @override
    def stored_shape(self, shape: Shape) -> Shape:
        blocks = (*shape[:-1], shape[-1] // 32)
        return blocks if self.part else (*blocks, 16)

    @override
    def slots(self, shape: Shape) -> Sequence[int | None]:
        return (0, 1)

    @override
    def slot_of(self, numbers: Mapping[str, str]) -> int:
        return self.part

    @override
    def numbers_of(self, slot: int) -> Mapping[str, str] | None:
        return {} if slot == self.part else None


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of a tensor belong to several parameters.

    Args:
        dim: Which dimension of the stored tensor counts its rows; 1 for stacks of matrices.
        groups: The tensor is so many equal groups of rows, and each has rows of every parameter, in
            their order. ``"rows"``: each group has one row of every parameter. ``"all"``: every
            parameter is the whole tensor. ``"heads"``: parameters are stacks of one matrix for each
            head, and each group is a head.
    """

    dim: int = 0
    groups: int | Literal["rows", "all", "heads"] = 1

    def whole(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the tensor that holds parameters of these shapes."""
        if self.groups == "all":
            return shapes[0]
        if self.groups == "heads":
            return (sum(heads * size for heads, size, _ in shapes), shapes[0][-1])
        sizes = [shape[self.dim] for shape in shapes]
        return (*shapes[0][: self.dim], sum(sizes), *shapes[0][self.dim + 1 :])

    def rows(self, shapes: Sequence[Shape]) -> tuple[Rows, ...]:
        """Which rows of the tensor those of each parameter are."""
        is_stack = self.groups == "heads"
        sizes = [prod(shape[:-1]) if is_stack else shape[self.dim] for shape in shapes]
        count = sum(sizes)
        if self.groups == "all":
            return tuple((range(size),) for size in sizes)
        if self.groups == "rows":
            return tuple((range(first, count, len(sizes)),) for first in range(len(sizes)))
        groups = shapes[0][0] if self.groups == "heads" else self.groups
        step = count // groups
        found = []
        first = 0
        for size in sizes:
            own = size // groups
            starts = range(first, count, step) if step else range(0)
            found.append(tuple(range(start, start + own) for start in starts))
            first += own
        return tuple(found)


@dataclass(frozen=True, slots=True)
class HeadsOfKinds:
    """Each head has rows of several kinds, and a parameter has those of some kinds, kind by kind.

    Args:
        heads: How many.
        kinds: The rows of a head, in the order of the tensor: for each parameter, of each kind.
    """

    heads: int
    kinds: tuple[tuple[int, ...], ...]
    dim: ClassVar[int] = 0

    def whole(self, shapes: Sequence[Shape]) -> Shape:
        """See `Cut.whole`."""
        return (self.heads * sum(map(sum, self.kinds)), *shapes[0][1:])

    def rows(self, shapes: Sequence[Shape]) -> tuple[Rows, ...]:
        """See `Cut.rows`."""
        del shapes  # they are told by the kinds
        step = sum(map(sum, self.kinds))
        first = 0
        found: list[Rows] = []
        for own in self.kinds:
            rows: list[range] = []
            for size in own:
                starts = range(first, first + step * self.heads, step)
                rows += [range(start, start + size) for start in starts]
                first += size
            found.append(tuple(rows))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Channels of a head that lie side by side are to lie half of them apart.

    Args:
        head_dim: Rows of a head.
        paired: How many of these are pairs, the first ones; the others stay.
    """

    head_dim: int
    paired: int
    dim: ClassVar[int] = 0

    def whole(self, shapes: Sequence[Shape]) -> Shape:
        """See `Cut.whole`."""
        return shapes[0]

    def rows(self, shapes: Sequence[Shape]) -> tuple[Rows, ...]:
        """See `Cut.rows`."""
        heads = range(0, shapes[0][0], self.head_dim)
        parts = ((0, self.paired, 2), (1, self.paired, 2), (self.paired, self.head_dim, 1))
        return (
            tuple(range(h + first, h + stop, step) for h in heads for first, stop, step in parts),
        )


@dataclass(frozen=True, slots=True)
class TiledHeads:
    """Heads of values that share a key lie ``key_heads`` apart, and are to lie side by side.

    Args:
        key_heads: Heads of keys.
        heads: Heads of values.
        before: Rows before those of values, which stay.
    """

    key_heads: int
    heads: int
    before: int = 0
    dim: ClassVar[int] = 0

    def order(self) -> list[int]:
        """Which of the stored heads each wanted one is."""
        return [
            head for key in range(self.key_heads) for head in range(key, self.heads, self.key_heads)
        ]

    def stored_order(self) -> list[int]:
        """Which of the wanted heads each stored one is."""
        return sorted(range(self.heads), key=self.order().__getitem__)

    def whole(self, shapes: Sequence[Shape]) -> Shape:
        """See `Cut.whole`."""
        return shapes[0]

    def rows(self, shapes: Sequence[Shape]) -> tuple[Rows, ...]:
        """See `Cut.rows`."""
        size = (shapes[0][0] - self.before) // self.heads
        starts = (self.before + head * size for head in self.order())
        return ((range(self.before), *(range(low, low + size) for low in starts)),)


@dataclass(frozen=True, slots=True)
class Halves:
    """The second half stands before the first."""

    heads: ClassVar[int] = 2

    def order(self) -> list[int]:
        """Where each of the halves is."""
        return [1, 0]

    stored_order = order


@dataclass(frozen=True, slots=True)
class TiledColumns(Transform):
    """Columns of a matrix that lie in another order, head by head or half by half.

    Args:
        heads: Whose columns these are.
    """

    heads: TiledHeads | Halves

    @override
    def read(self, stored: Tensor) -> Tensor:
        return in_order(stored, self.heads.order())

    @override
    def write(self, numbers: Tensor) -> Tensor:
        return in_order(numbers, self.heads.stored_order())


def in_order(matrix: Tensor, order: Sequence[int]) -> Tensor:
    """Its columns, or bytes of whole blocks, as equal pieces in another order."""
    return matrix.unflatten(-1, (len(order), -1))[..., list(order), :].flatten(-2)


Selection = Cut | HeadsOfKinds | Pairs | TiledHeads


@dataclass(frozen=True, slots=True)
class Rule:
    """One way a tensor becomes a parameter.

    Args:
        source: Pattern of the tensor's name.
        target: Pattern of the parameter's name, or of those of several parameters, each of some
            rows of the tensor.
        transform: What happens on the way, after the cut; one for each parameter where these
            differ.
        p: Words that ``{p}`` stands for.
        cut: Which rows each parameter has. None for all that one has, or for one parameter's behind
            the other's.
    """

    source: str
    target: str | tuple[str, ...]
    transform: Transform | tuple[Transform, ...] = AS_STORED
    p: tuple[str, ...] = ()
    cut: Selection | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The patterns of all its parameters."""
        return (self.target,) if isinstance(self.target, str) else self.target

    def of_layer(self, number: str) -> Rule:
        """The same for one layer alone."""
        source, *targets = (n.replace("{i}", number) for n in (self.source, *self.targets))
        return replace(self, source=source, target=tuple(targets))


def renamed(theirs: str, ours: str, names: Mapping[str, str]) -> Iterator[Rule]:
    """Rules for modules that are called otherwise: one for weight and bias of each.

    Args:
        theirs: What the names of the tensors begin with.
        ours: What those of the parameters do.
        names: What follows, ours by theirs.
    """
    for name, own in names.items():
        yield Rule(f"{theirs}{name}.{{p}}", f"{ours}{own}.{{p}}", p=PARTS)


def gate_and_up(at: str, end: str) -> tuple[str, ...]:
    """Both upward projections of an MLP, the rows of which one tensor holds."""
    return (f"{at}gate{end}", f"{at}up{end}")


def queries_keys_values(at: str, end: str) -> tuple[str, ...]:
    """Parameters of queries, keys and values, the rows of which one tensor holds."""
    return tuple(f"{at}{name}{end}" for name in "qkv")


# Of Qwen, of DeepSeek, of DeepSeek in GGUF, of Nemotron, and of MiMo, which has the hidden state
# before the embedded token.
_MTP_RULES = (
    Rule(MTP + "fc.weight", MTP + "projection.weight"),
    Rule(MTP + "pre_fc_norm_embedding.weight", MTP + "embedding_norm.weight"),
    Rule(MTP + "pre_fc_norm_hidden.weight", MTP + "hidden_norm.weight"),
    Rule(MTP + "norm.weight", MTP + "norm.weight"),
    Rule(MTP + "layers.0.eh_proj.weight", MTP + "projection.weight"),
    Rule(MTP + "layers.0.enorm.weight", MTP + "embedding_norm.weight"),
    Rule(MTP + "layers.0.hnorm.weight", MTP + "hidden_norm.weight"),
    Rule(MTP + "layers.0.shared_head.norm.weight", MTP + "norm.weight"),
    Rule(MTP + "layers.0.nextn.eh_proj.weight", MTP + "projection.weight"),
    Rule(MTP + "layers.0.nextn.enorm.weight", MTP + "embedding_norm.weight"),
    Rule(MTP + "layers.0.nextn.hnorm.weight", MTP + "hidden_norm.weight"),
    Rule(MTP + "layers.0.nextn.shared_head_norm.weight", MTP + "norm.weight"),
    Rule(MTP + "layers.0.final_layernorm.weight", MTP + "norm.weight"),
    Rule(MTP + "layers.0.input_proj.weight", MTP + "projection.weight", TiledColumns(Halves())),
    Rule(MTP + "layers.0.token_layernorm.weight", MTP + "embedding_norm.weight"),
    Rule(MTP + "layers.0.hidden_layernorm.weight", MTP + "hidden_norm.weight"),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """What one tensor becomes.

    Args:
        parameter: The parameter's name.
        slot: Which of its slots the tensor is; None for all of it.
        transform: The rule's transform.
        cut: Which rows of the tensor it is; None for all as they are.
    """

    parameter: str
    slot: int | None
    transform: Transform = AS_STORED
    cut: Selection | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """A rule without words: numbers are ``#`` in source and target, in the order of ``order``."""

    source: str
    target: str
    transform: Transform
    cut: Selection | None
    order: tuple[str, ...]  # placeholders of the source
    used: tuple[str, ...]  # placeholders of the target


class RuleBook:
    """Rules, looked up by name in constant time.

    Args:
        rules: The rules; several may lead to one target, for names with aliases.
        renamed: Beginnings of names, and what rules have in their place.
        joined: Names of tensors whose rows lie in several, and those of these, in their order.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        renamed: Mapping[str, str] | None = None,
        joined: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._rules = rules = tuple(rules)
        self._renamed = renamed or {}
        self.joined: Mapping[str, tuple[str, ...]] = joined or {}
        groups = [_rows(rule, word) for rule in rules for word in rule.p or ("",)]
        rows = [row for group in groups for row in group]
        self._by_source = {group[0].source: group for group in groups}
        self._by_target: dict[str, list[_Row]] = {}
        for row in rows:
            self._by_target.setdefault(row.target, []).append(row)
        in_layers = (row for row in rows if row.target.startswith("layers.#."))
        beginnings = (row.source.partition("#")[0] for row in in_layers if "#" in row.source)
        self.layer_beginnings = tuple(dict.fromkeys(beginnings))
        """What the names of a layer's tensors begin with, up to its number."""

    def with_mtp(self, layer: str) -> RuleBook:
        """These, and the names of a module for multi-token prediction.

        Args:
            layer: What the names of its layer's tensors begin with; they go on as those of others.
        """
        rules = {(rule.source, rule.p): rule for rule in _MTP_RULES}
        # rules about this layer alone, whose parameters have its number, before those about all
        own = sorted(self._rules, key=lambda rule: not rule.source.startswith(layer))
        for rule in own:
            is_own = rule.source.startswith(layer)
            name = rule.source[len(layer) :] if is_own else rule.source.partition("{i}.")[2]
            targets = [_NUMBERED.sub(OURS, each) for each in rule.targets]
            if name and all(target.startswith(OURS) for target in targets):
                of_mtp = replace(
                    rule, source=MTP + OURS + name, target=tuple(MTP + each for each in targets)
                )
                rules.setdefault((of_mtp.source, of_mtp.p), of_mtp)
        renamed = {**self._renamed, layer: f"{MTP}layers.0."}
        return RuleBook((*self._rules, *rules.values()), renamed, self.joined)

    def with_joined(self, joined: Mapping[str, tuple[str, ...]]) -> RuleBook:
        """The same where the rows of some tensors lie in several.

        Args:
            joined: The tensors that rules are about, and those that are stored.
        """
        return RuleBook(self._rules, self._renamed, {**self.joined, **joined})

    def match(self, name: str) -> Placement | None:
        """What the tensor of this name becomes, or its first rows; None when no rule knows it."""
        return next(iter(self.placements(name)), None)

    def placements(self, name: str) -> tuple[Placement, ...]:
        """All that the tensor of this name becomes, in the order of its rows."""
        name = _rename(name, self._renamed)
        rows = self._by_source.get(name, ()) if "#" not in name else ()
        numbers: list[str] = []
        if not rows:
            key, numbers = _split(name)
            rows = self._by_source.get(key, ())
        found = []
        for row in rows:
            values = dict(zip(row.order, numbers, strict=True))
            parameter = _fill(row.target, [values[word] for word in row.used])
            slot = row.transform.slot_of(values)
            found.append(Placement(parameter, slot, row.transform, row.cut))
        return tuple(found)

    def sources(self, parameter: str, slot: int | None = None) -> list[str]:
        """Names a tensor for this parameter may have."""
        key, numbers = _split(parameter)
        rows = [(row, numbers) for row in self._by_target.get(key, ())]
        if key != parameter:  # rules about this one go first
            rows = [(row, []) for row in self._by_target.get(parameter, ())] + rows
        names = []
        for row, own in rows:
            of_slot = {} if slot is None else row.transform.numbers_of(slot)
            if of_slot is not None:
                values = {**dict(zip(row.used, own, strict=True)), **of_slot}
                names.append(_fill(row.source, [values.get(word, "*") for word in row.order]))
        files_own = {ours: theirs for theirs, ours in self._renamed.items()}
        return [_rename(name, files_own) for name in names]


def _rename(name: str, beginnings: Mapping[str, str]) -> str:
    """A name with another beginning, where there is one for its own."""
    found = next((each for each in beginnings if name.startswith(each)), None)
    return name if found is None else beginnings[found] + name[len(found) :]


def _rows(rule: Rule, word: str) -> tuple[_Row, ...]:
    """A rule for one of its words: a row for each parameter."""
    source, *targets = (n.replace("{p}", word) for n in (rule.source, *rule.targets))
    given = rule.transform
    transforms = given if isinstance(given, tuple) else (given,) * len(targets)
    return tuple(
        _Row(
            source=_PLACEHOLDER.sub("#", source),
            target=_PLACEHOLDER.sub("#", target),
            transform=transform,
            cut=rule.cut or (Cut() if len(targets) > 1 else None),
            order=tuple(_PLACEHOLDER.findall(source)),
            used=tuple(_PLACEHOLDER.findall(target)),
        )
        for target, transform in zip(targets, transforms, strict=True)
    )


def _split(name: str) -> tuple[str, list[str]]:
    """``"layers.3.x"`` to ``("layers.#.x", ["3"])``; a number written oddly stays as it is."""
    if "#" in name:
        return "", []
    parts = name.split(".")
    numbers = []
    for position, part in enumerate(parts):
        if _NUMBER.fullmatch(part):
            numbers.append(part)
            parts[position] = "#"
    return ".".join(parts), numbers


def _fill(template: str, numbers: Sequence[str]) -> str:
    pieces = template.split("#")
    return pieces[0] + "".join(n + piece for n, piece in zip(numbers, pieces[1:], strict=True))
