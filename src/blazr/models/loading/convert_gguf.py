"""Writing a GGUF file: a plan of it, and then its tensors, each a tile of rows at a time.

The plan is tried as if the file were there: the reader of GGUF must find in it the model that the
checkpoint holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

import torch
from torch import Tensor

from blazr.core.errors import BlazrError, ConfigError
from blazr.core.gguf_header import ALIGNMENT_KEY, ARCHITECTURE_KEY, DEFAULT_ALIGNMENT, Value
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Checkpoint,
    NumberInfo,
    QuantizedInfo,
    TensorInfo,
    element_type,
    most_used_type,
    torch_dtype,
)
from blazr.models.checkpoint.gguf import NUMBERS
from blazr.models.checkpoint.write import Entry, TensorWriter, gguf_header, writing
from blazr.models.families.gguf.architectures import ARCHITECTURES, mixers_of, written_names
from blazr.models.families.gguf.as_config import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from blazr.models.families.gguf.as_file import (
    Recipe,
    all_mixers,
    architecture_of,
    difference,
    metadata_of,
    recipe_of,
    unsupported_by_llama_cpp,
)
from blazr.models.families.gguf.family import as_gguf
from blazr.models.families.rules import (
    AS_STORED,
    Mxfp4,
    TiledColumns,
    Transform,
    Transpose,
    split_layer,
)
from blazr.models.loading.plan import LoadStep, PlannedModel, plan_model
from blazr.models.loading.read import Progress, no_progress, read_plain, stored_weight, tiles_of
from blazr.models.loading.storage import DTYPES, choose_storage, packable, stored_dtype
from blazr.nn.layers.gated_delta import KimiDeltaConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.operands.packing import TILE
from blazr.nn.quant.exact import mxfp4_blocks, plain_blocks
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.packed import QuantizePolicy

# llama.cpp's ``general.file_type``, by the type of most bytes; for other types it has to guess.
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K": 15, "BF16": 32, "MXFP4": 38}
_GUESSED = 1024
_VERSION_OF_BLOCKS = 2
# Matrices that are never packed, and yet are not float32 as vectors are.
_PLAIN_MATRICES = ("k_up", "v_up")


Matrix = Tensor | TensorInfo


@dataclass(frozen=True, slots=True)
class GgufPart:
    """Rows to be written: those of one parameter.

    Args:
        recipe: What it is made of.
        step: Where that is.
    """

    recipe: Recipe
    step: LoadStep


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufJob:
    """One tensor to be written.

    Args:
        name: What it is called.
        entry: What it becomes.
        parts: Its rows.
        transform: How readers turn it back.
        order: Which of the rows of all parts each of its rows is; None where they are the same.
        quantizer: What packs it; None for plain numbers and for blocks that are kept.
    """

    name: str
    entry: Entry
    parts: tuple[GgufPart, ...]
    transform: Transform = AS_STORED
    order: Tensor | None = None
    quantizer: Quantizer | None = None


@dataclass(frozen=True, slots=True)
class GgufPlan:
    """A GGUF file before it is written.

    Args:
        metadata: What it says.
        jobs: Its tensors.
        factors: Those that hold divisors of frequencies.
    """

    metadata: Mapping[str, Value]
    jobs: tuple[GgufJob, ...]
    factors: Mapping[str, Tensor]

    @property
    def entries(self) -> dict[str, Entry]:
        """Its tensors, in order."""
        first = {name: Entry.of(each) for name, each in self.factors.items()}
        return first | {job.name: job.entry for job in self.jobs}

    @property
    def num_quantized(self) -> int:
        """Tensors that are packed."""
        return sum(job.entry.dtype not in ELEMENT_TYPES for job in self.jobs)


def plan_gguf(planned: PlannedModel, policy: QuantizePolicy, dtype: str) -> GgufPlan:
    """Plan the GGUF file of a model, and read the plan back.

    Args:
        planned: The model.
        policy: What to pack.
        dtype: Of plain matrices; ``"auto"`` keeps theirs.

    Raises:
        ConfigError: There is no architecture for it, or the architecture cannot say all it is.
    """
    if planned.checkpoint.metadata:
        return _plan_again(planned, policy, dtype)
    config = planned.derivation.config
    name = architecture_of(planned.family.name, config)
    if name is None:
        families = {word.split()[0] for row in ARCHITECTURES.values() for word in row.families}
        raise _unwritable(
            "GGUF has no architecture for this model.",
            found=f"family {planned.family.name}",
            expected=", ".join(sorted(families)),
        )
    row = ARCHITECTURES[name]
    target = as_gguf(config, row)
    own = {f"{name}.{key}": value for key, value in metadata_of(target, row).items()}
    metadata = {ARCHITECTURE_KEY: name, "general.name": planned.name, **own}
    metadata |= _numbers(planned, name)
    plan = GgufPlan(metadata, tuple(_jobs(planned, name, target, dtype)), _factors(target))
    draft = _read_back(plan, target)
    unsupported = unsupported_by_llama_cpp(config, row)
    if unsupported is not None:
        raise _not_expressible(f"{name}: {unsupported}")
    # its matrices are packed as the policy has it, or stay as they are
    storage = choose_storage(draft.plan, draft.module, policy)
    matrices = packable(draft.module)
    parameters = {step.sources[0].name: step.parameter for step in draft.plan.steps}
    jobs = []
    for job in plan.jobs:
        parameter = parameters[job.name]
        storing = storage.get(parameter)
        is_plain = isinstance(storing, Quantizer) or parameter not in matrices
        kept = _kept_type(job, planned.checkpoint, is_plain=is_plain)
        if kept is not None:
            job = replace(job, entry=Entry(kept, job.entry.shape))  # noqa: PLW2901
        elif isinstance(storing, Quantizer):
            entry = Entry(storing.kind.name, job.entry.shape)
            job = replace(job, entry=entry, quantizer=storing)  # noqa: PLW2901
        jobs.append(job)
    return replace(plan, jobs=tuple(jobs), metadata={**plan.metadata, **_about(jobs)})


def _plan_again(planned: PlannedModel, policy: QuantizePolicy, dtype: str) -> GgufPlan:
    """The plan for a model that is a GGUF file: only the types of its tensors change."""
    checkpoint = planned.checkpoint
    matrices = packable(planned.module)
    storage = choose_storage(planned.plan, planned.module, policy)
    parameters = {info.name: step.parameter for step in planned.plan.steps for info in step.sources}
    jobs = []
    for info in checkpoint.tensors.values():
        if isinstance(info, NumberInfo):
            continue  # it stays among the metadata
        parameter = parameters.get(info.name, "")
        storing = storage.get(parameter) if parameter in matrices else None
        quantizer = storing if isinstance(storing, Quantizer) else None
        step = LoadStep(info.name, info.shape, (info,))
        kind = info.dtype
        if quantizer is not None:
            kind = quantizer.kind.name
        elif dtype != "auto" and parameter in matrices:
            kind = element_type(DTYPES[dtype])
        part = GgufPart(Recipe(source=info.name), step)
        entry = Entry(kind, info.shape)
        jobs.append(GgufJob(name=info.name, entry=entry, parts=(part,), quantizer=quantizer))
    # the new file is whole and has the default alignment, whatever the old one says of itself
    kept = {
        key: value
        for key, value in checkpoint.metadata.items()
        if not key.startswith("split.") and key != ALIGNMENT_KEY
    }
    return GgufPlan({**kept, **_about(jobs)}, tuple(jobs), {})


def _numbers(planned: PlannedModel, architecture: str) -> dict[str, Value]:
    """The parameters that lie among the metadata: arrays with a number of each layer."""
    steps = {step.parameter: step for step in planned.plan.steps}
    found: dict[str, Value] = {}
    for key in NUMBERS.get(architecture, {}):
        places = (
            f"layers.{i}.feed_forward.{key}" for i in range(len(planned.derivation.config.layers))
        )
        own = [steps[each] for each in places if each in steps]
        if own:
            found[key] = [read_plain(each.sources[0], planned.checkpoint).item() for each in own]
    return found


def _jobs(
    planned: PlannedModel, architecture: str, target: ModelConfig, dtype: str
) -> Iterator[GgufJob]:
    steps = {step.parameter: step for step in planned.plan.steps}
    names = written_names(ARCHITECTURES[architecture], target)
    usual = stored_dtype(planned.plan)
    with torch.device("meta"):
        module = CausalLM(target)
    matrices = packable(module)
    parameters = module.state_dict()
    for parameter in parameters:
        written = next((name for name in names.sources(parameter) if "*" not in name), "")
        if any(written.endswith(f".{key}") for key in NUMBERS.get(architecture, {})):
            continue  # among the metadata
        placements = names.placements(written)
        together = [each.parameter for each in placements]
        recipes = [recipe_of(each, planned.derivation.config, target) for each in together]
        found = [steps.get(recipe.source) for recipe in recipes]
        parts = tuple(GgufPart(r, step) for r, step in zip(recipes, found, strict=True) if step)
        if not placements or len(parts) < len(placements):
            raise _unwritable("GGUF has no place for a part of this model.", parameter[:100])
        if parameter != together[0]:
            continue  # written with the one before it
        is_matrix = parameter in matrices or parameter.endswith(_PLAIN_MATRICES)
        plain = _plain_type(parts[0].step, dtype, usual) if is_matrix else "F32"
        shapes = [_shape(each, tuple(parameters[each].shape), target) for each in together]
        cut = placements[0].cut
        shape, order = shapes[0], None
        if cut is not None:
            shape = cut.whole(shapes)
            # these rows of all parameters, one behind the other, are the tensor's
            rows = [place for own in cut.rows(shapes) for each in own for place in each]
            places = torch.tensor(rows)
            if not torch.equal(places, torch.arange(len(places))):
                order = places.argsort()
        yield GgufJob(
            name=written,
            entry=Entry(plain, shape),
            parts=parts,
            transform=placements[0].transform,
            order=order,
        )


def _plain_type(step: LoadStep, dtype: str, usual: torch.dtype) -> str:
    """What a matrix is written as where it is not packed."""
    first = step.sources[0]
    is_kept = dtype == "auto" and first.dtype in {"F32", "F16", "BF16"}
    found = DTYPES[dtype] if dtype != "auto" else usual
    return first.dtype if is_kept else element_type(found)


def _shape(parameter: str, shape: tuple[int, ...], target: ModelConfig) -> tuple[int, ...]:
    """The shape in files: state spaces have columns, and groups one behind the other."""
    index, name = split_layer(parameter)
    for mixer in () if index is None else mixers_of(target.layers[index]):
        if isinstance(mixer, Mamba2Config):
            if name.endswith((".a_log", ".d")):
                return (*shape, 1)
            if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
                return (mixer.norm_groups, shape[0] // mixer.norm_groups)
        if isinstance(mixer, KimiDeltaConfig) and name.endswith("_conv1d.weight"):
            return (1, shape[0], 1, shape[1])
    return shape


def _factors(target: ModelConfig) -> dict[str, Tensor]:
    for mixer in all_mixers(target):
        rope = getattr(mixer, "rope", None)
        scaling = rope.scaling if rope is not None else None
        if scaling is not None and scaling.kind == "factors":
            return {ROPE_FACTORS: torch.tensor(scaling.factors)}
        if scaling is not None and scaling.kind == "longrope":
            both = (LONG_FACTORS, scaling.long_factors), (SHORT_FACTORS, scaling.factors)
            return {name: torch.tensor(factors) for name, factors in both}
    return {}


def _read_back(plan: GgufPlan, target: ModelConfig) -> PlannedModel:
    """What a reader finds in the planned file, tried with a sparse one that lacks the tensors.

    Raises:
        ConfigError: It is not the model that was planned.
    """
    header = gguf_header(plan.metadata, plan.entries)
    num_units = sum(-(-entry.nbytes // DEFAULT_ALIGNMENT) for entry in plan.entries.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.gguf"
        with writing(path), path.open("wb") as file:
            file.write(header)
            for tensor in plan.factors.values():
                file.write(tensor.numpy().tobytes())
                file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
            file.truncate(len(header) + num_units * DEFAULT_ALIGNMENT)
        try:
            draft = plan_model(str(path))
        except BlazrError as error:
            raise _not_expressible(error.message) from error
    changed = difference(target, draft.derivation.config)
    if changed is not None:
        raise _not_expressible(changed)
    return draft


def _not_expressible(found: str) -> ConfigError:
    return _unwritable("GGUF cannot say all that this model is.", found[:200])


def _unwritable(message: str, found: str, expected: str = "") -> ConfigError:
    hint = "convert to a directory: safetensors hold every model"
    return ConfigError(message, found=found, expected=expected, hint=hint)


def _about(jobs: list[GgufJob]) -> dict[str, Value]:
    """What the metadata say of the tensors' types."""
    most = most_used_type((job.entry.dtype, job.entry.nbytes) for job in jobs)
    return {
        "general.file_type": _FILE_TYPES.get(most, _GUESSED),
        "general.quantization_version": _VERSION_OF_BLOCKS,
    }


def _kept_type(job: GgufJob, checkpoint: Checkpoint, *, is_plain: bool) -> str | None:
    """The type of the blocks that a matrix already is, if these can be written as they are."""
    if any(isinstance(part.step.transform, Mxfp4) for part in job.parts):
        return "MXFP4"  # nothing is smaller
    is_plain |= isinstance(job.transform, TiledColumns)
    if is_plain or any(part.recipe.change is not None for part in job.parts):
        return None
    kinds = set[str | None]()
    for info in (info for part in job.parts for info in part.step.sources):
        if not isinstance(info, QuantizedInfo):
            return None
        found = plain_blocks(stored_weight(info, checkpoint, torch.float32))
        checkpoint.drop(info)
        kinds.add(None if found is None else found.kind.name)
    return kinds.pop() if len(kinds) == 1 else None


def write_gguf(
    plan: GgufPlan,
    checkpoint: Checkpoint,
    writer: TensorWriter,
    progress: Progress | None,
) -> None:
    """Write the tensors of a plan.

    Args:
        plan: The plan.
        checkpoint: Where the model is.
        writer: The file, whose header is written.
        progress: Told the bytes written so far, and all of them.
    """
    total = sum(entry.nbytes for entry in plan.entries.values())
    done = 0
    report = progress or no_progress
    report(done, total)
    for name, tensor in plan.factors.items():
        writer.write(name, tensor)
        done += tensor.nbytes
    for job in plan.jobs:
        tiles = _tiles(job, checkpoint)
        for tile in tiles if job.order is None else (torch.cat(list(tiles))[job.order],):
            writer.write(job.name, tile)
            done += tile.nbytes
            report(done, total)


def _matrices(job: GgufJob, step: LoadStep, checkpoint: Checkpoint) -> Iterator[Matrix]:
    """What a tensor is made of: one matrix or vector, or that of every expert.

    Blocks that are kept come as bytes.
    """
    is_kept = job.entry.dtype not in ELEMENT_TYPES and job.quantizer is None
    if isinstance(step.transform, Mxfp4):
        numbers, exponents = (checkpoint.view(info) for info in step.sources)
        for own, scales in zip(numbers, exponents, strict=True):
            yield mxfp4_blocks(own, scales)
        return
    for info in step.sources:
        if is_kept and isinstance(info, QuantizedInfo):
            found = plain_blocks(stored_weight(info, checkpoint, torch.float32))
            assert found is not None
            yield found.blocks
        elif is_kept:
            yield checkpoint.view(info)
        elif info.is_packed and not isinstance(step.transform, Transpose):
            yield info
        else:
            tensor = step.transform.read(read_plain(info, checkpoint))
            if len(step.sources) == 1:
                is_stack = ".experts." in step.parameter
                yield from tensor if is_stack else (tensor.reshape(step.shape),)
            else:
                yield tensor


def _tiles(job: GgufJob, checkpoint: Checkpoint) -> Iterator[Tensor]:
    """All parameters' rows as they are written, some at a time; of each expert those of all."""
    each = [
        zip(repeat(part), _matrices(job, part.step, checkpoint), strict=False) for part in job.parts
    ]
    is_stack = len(job.entry.shape) > 2
    pairs = chain.from_iterable(zip(*each, strict=True) if is_stack else each)
    for part, matrix in pairs:
        for tile in _plain_tiles(job, part.recipe, matrix, checkpoint):
            if job.quantizer is not None:
                yield job.quantizer(tile)
            elif job.entry.dtype not in ELEMENT_TYPES:
                yield tile
            else:
                yield tile.to(torch_dtype(job.entry.dtype))
        for info in part.step.sources:
            checkpoint.drop(info)


def _plain_tiles(
    job: GgufJob, recipe: Recipe, matrix: Matrix, checkpoint: Checkpoint
) -> Iterable[Tensor]:
    """A matrix in the file's order, some rows at a time; blocks that are kept stay bytes."""
    if isinstance(matrix, TensorInfo):
        if recipe.change is None and not isinstance(job.transform, TiledColumns):
            return (tile for _, tile in tiles_of(matrix, checkpoint))
        matrix = read_plain(matrix, checkpoint)
    if recipe.change is not None:
        matrix = recipe.change(matrix)
    matrix = job.transform.write(matrix)
    step = max(1, TILE // max(1, matrix[0].numel())) if len(matrix) else 1
    return matrix.split(step)
