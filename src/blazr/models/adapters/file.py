"""An adapter as a file has it: changes of the base model's tensors, by the tensors' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.nn.quant.gguf import GGML_TYPES

MERGE_HINT = "merge it with PEFT's merge_and_unload(), and serve what that saves"
_BODIES = ("model", "backbone", "transformer")  # what names of tensors begin with
# Modules of transformers around others, which checkpoints do not have: of Kimi Linear.
_WRAPPERS = (".forget_gate.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankChange:
    """``W + scale * b @ a``, of a stack of E matrices each its own.

    Args:
        name: What the tensor W is called.
        a: (r, in), or (E * r, in).
        b: (out, r), or (out, r * E) where the experts' numbers lie side by side.
        scale: Factor of the product, from the adapter's rank and alpha.
        rank: r.
        magnitude: (out,), the length of each row of the sum (DoRA); None leaves them.
        is_flipped: Whether W is stored (in, out), as embeddings are, and the change is
            ``(b @ a).T``.
        others: What the change may be instead, where the model has no tensor of that name, or not
            of that size.
    """

    name: str
    a: Tensor
    b: Tensor
    scale: float
    rank: int
    magnitude: Tensor | None = None
    is_flipped: bool = False
    others: tuple[LowRankChange, ...] = ()

    @property
    def meanings(self) -> tuple[LowRankChange, ...]:
        """The change itself, and what it may be instead."""
        return self, *self.others

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Two matrices, float32, whose product is added to W as it is stored."""
        left, right = self.b.float() * self.scale, self.a.float()
        return (right.T, left.T) if self.is_flipped else (left, right)

    def lengths(self, path: Path, tensor: str) -> Tensor | None:
        """The lengths that rows of the sum get, (out,) float32; None leaves theirs.

        Args:
            path: The adapter, for messages.
            tensor: What W is called in them.

        Raises:
            CheckpointError: There is not one for each row of a projection.
        """
        if self.magnitude is None:
            return None
        found = self.magnitude.float().flatten()
        if self.is_flipped or len(found) != len(self.b):
            raise CheckpointError(
                f"{path}: the magnitudes of {tensor[:100]} are not supported.",
                found=f"{len(found)} numbers",
                expected="one for each row of a projection",
                hint=MERGE_HINT,
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeChange:
    """Another tensor in the place of the base model's, or other rows in it.

    Args:
        name: What the tensor is called.
        numbers: The other one, or its rows, (r, in).
        rows: Which rows these are; None for all.
    """

    name: str
    numbers: Tensor
    rows: tuple[int, ...] | None = None

    def check_rows(self, path: Path, size: tuple[int, ...]) -> None:
        """Refuse rows that the model's tensor has not, or that are of another length.

        Args:
            path: The adapter, for messages.
            size: Of the model's tensor.

        Raises:
            CheckpointError: They do not fit.
        """
        assert self.rows is not None
        if max(self.rows) >= size[0] or self.numbers.shape[1:] != size[1:]:
            raise CheckpointError(
                f"{path}: the rows of {self.name[:100]} are not of this model.",
                found=f"row {max(self.rows)}, of {list(self.numbers.shape[1:])}",
                expected=f"rows of a tensor of {list(size)}",
                hint="a vocabulary that was enlarged is saved whole: save the embedding along",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """What an adapter's files say.

    Args:
        path: Its directory or file.
        base: What it says of the model it was trained on; empty where it does not.
        architecture: What a GGUF file calls the base model's; empty for PEFT's, whose tensors have
            the names of transformers.
        fingerprint: A hash of all that it holds.
        low_rank: Changes of low rank.
        whole: Tensors that take the place of the base model's.
        release: Of PEFT that wrote it, major and minor number; zeros where it is of a time before
            these were written; None for others than PEFT.
    """

    path: Path
    base: str
    architecture: str = ""
    fingerprint: str
    low_rank: tuple[LowRankChange, ...]
    whole: tuple[WholeChange, ...] = ()
    release: tuple[int, int] | None = None

    def is_redundant(self, change: LowRankChange) -> bool:
        """Whether a change of what the model lacks is zero, or repeats another change.

        Where layers share a module, PEFT saves its changes with each of them; and those of modules
        that nobody uses (Zamba2 has such) are not trained, so that B is zero.
        """
        is_again = any(
            torch.equal(each.a, change.a) and torch.equal(each.b, change.b)
            for each in self.low_rank
            if each is not change
        )
        return is_again or not change.b.any()

    def lacks(self, name: str) -> CheckpointError:
        """The error where a model has no tensor of a name."""
        return CheckpointError(
            f"{self.path}: the model has no matrix {name[:100]!r}.",
            found=f"an adapter of {self.base or 'a model that it does not name'}",
            expected="an adapter of this model, with its tensors' names",
        )

    def changes_tied_head(self, name: str, *, is_whole: bool = False) -> CheckpointError:
        """The error where the head that is changed is the embedding, too.

        PEFT's merge_and_unload() adds a change of low rank to both, and so gives another model; a
        whole head it gives the model as one of its own.

        Args:
            name: Of the head's tensor.
            is_whole: Whether it is replaced.
        """
        hint = (
            "train it without the head in target_modules; or give the model a head of its own: "
            "save it with a copy of the embedding as head and tie_word_embeddings=False, and take "
            "the adapter beside that"
        )
        if is_whole:
            hint = MERGE_HINT
        return CheckpointError(
            f"{self.path}: the change of {name[:100]} is not supported, as the model's head is its "
            "embedding.",
            found="a change of the head alone",
            expected="changes of projections, or a model with a head of its own",
            hint=hint,
        )

    def changes_twice(self, name: str) -> CheckpointError:
        """The error where several of its tensors are changes of one of the model's."""
        return CheckpointError(
            f"{self.path}: {name[:100]} is changed twice.",
            found="changes of one matrix by several names",
            expected="one change of each",
        )

    def check_rank(self, change: LowRankChange) -> None:
        """Refuse matrices of another rank than the adapter's, as those of experts side by side.

        Args:
            change: Of one matrix.

        Raises:
            CheckpointError: They have another rank.
        """
        if change.a.shape[0] != change.rank:
            raise CheckpointError(
                f"{self.path}: the change of {change.name[:100]} is not of one matrix.",
                found=f"A {list(change.a.shape)}, B {list(change.b.shape)}",
                expected=f"A ({change.rank}, in) and B (out, {change.rank}), by its rank",
            )

    def check_size(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        """Refuse a change of another size than the tensor's.

        Args:
            name: What the tensor is called.
            found: The size of the change.
            wanted: That of the tensor.

        Raises:
            CheckpointError: They differ.
        """
        if found != wanted:
            raise CheckpointError(
                f"{self.path}: the change of {name[:100]} is not of this model.",
                found=f"{list(found)}",
                expected=f"{list(wanted)}, the size of the tensor",
            )


def spellings(name: str) -> Iterator[str]:
    """What a tensor may be called in the checkpoint: some libraries rename models as they load."""
    yield name
    for wrapper in _WRAPPERS:
        if wrapper in name:
            yield name.replace(wrapper, ".")
    head, _, rest = name.partition(".")
    if head in _BODIES:
        for other in _BODIES:
            yield f"{other}.{rest}"
        yield rest


def pair_of(
    path: Path, name: str, parts: Mapping[str, Tensor], ends: tuple[str, str]
) -> tuple[Tensor, Tensor]:
    """Both matrices of a change.

    Args:
        path: The adapter, for messages.
        name: What is changed, for messages.
        parts: What is there of the change.
        ends: What A and B are called.

    Raises:
        CheckpointError: One is missing.
    """
    a, b = (parts.get(end) for end in ends)
    if a is None or b is None:
        raise CheckpointError(
            f"{path}: {name[:100]} has no pair of matrices.",
            found=", ".join(sorted(parts)),
            expected=" and ".join(ends),
        )
    return a, b


def read_numbers(path: Path, tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, Tensor]]:
    """The numbers of a file's tensors by name, in memory of their own.

    Numbers that are not finite would make every answer NaN.

    Args:
        path: The file.
        tensors: What its header says.

    Raises:
        CheckpointError: Some are NaN or infinite, or they are no floating-point numbers.
    """
    checkpoint = Checkpoint(path=path, files={path: path.stat().st_size}, tensors=tensors)
    for name, info in tensors.items():
        numbers = checkpoint.read(name)
        if info.is_packed:
            rows = GGML_TYPES[info.dtype].decode(numbers.flatten(0, -2))
            numbers = rows.view(info.shape)
        if not numbers.is_floating_point():
            raise CheckpointError(
                f"{path}: tensor {name[:100]!r} holds no floating-point numbers.",
                found=str(numbers.dtype).removeprefix("torch."),
                expected="float32, float16 or bfloat16",
            )
        if not torch.isfinite(numbers.float()).all():  # of 8 bits, it knows only some
            raise CheckpointError(
                f"{path}: tensor {name[:100]!r} holds NaN or infinity.",
                found="numbers that are not finite",
                expected="the weights of an adapter that was trained",
                hint="its training has diverged: take an earlier checkpoint of it",
            )
        yield name, numbers.clone()


def check_scaled(path: Path, name: str, b: Tensor, scale: float) -> None:
    """Refuse a scale that makes numbers infinite, or NaN: they would make every answer NaN.

    Raises:
        CheckpointError: Numbers are not finite in float32 when they are scaled.
    """
    if not torch.isfinite(b.float() * scale).all():
        raise CheckpointError(
            f"{path}: the scale of {name[:100]} leaves no finite numbers.",
            found=f"{scale:g}",
            expected="alpha / rank, or alpha / sqrt(rank), that fits float32",
        )


def hash_of(*contents: bytes) -> str:
    """A fingerprint of files' contents, 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    for content in contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
