"""From one checkpoint to another, quantized on the way, a tile of rows at a time.

Names stay what they are, so the family stays what it is. Quantized matrices are written as
compressed-tensors (``pack-quantized``), which other programs read as well; the numbers that a
converted model loads with are those that ``--quantize`` makes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from blazr.core.errors import CapacityError, ConfigError
from blazr.core.files import try_lock
from blazr.core.gguf_header import Value
from blazr.core.sizes import size_text
from blazr.models.adapters.merge import Change, plan_merge
from blazr.models.adapters.peft import read_peft
from blazr.models.checkpoint.base import (
    Checkpoint,
    QuantizedInfo,
    TensorInfo,
    element_type,
    torch_dtype,
)
from blazr.models.checkpoint.open import TEXT_FILES
from blazr.models.checkpoint.quantized import CONFIG_KEYS
from blazr.models.checkpoint.write import (
    Entry,
    TensorWriter,
    gguf_writer,
    safetensors_writer,
    writing,
)
from blazr.models.families.hf.vision import IMAGE_PREFIXES
from blazr.models.families.rules import AsStored, Stack
from blazr.models.loading.convert_gguf import GgufPlan, plan_gguf, write_gguf
from blazr.models.loading.plan import PlannedModel, plan_model
from blazr.models.loading.read import Progress, no_progress, tiles_of
from blazr.models.loading.storage import DTYPES, choose_storage, stored_dtype
from blazr.nn.quant.exact import take_blocks
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.groups import group_of
from blazr.nn.quant.hf.words import WORD, pack
from blazr.nn.quant.packed import parse_policy

_WEIGHTS = "model.safetensors"
_UNFINISHED = "blazr-convert.partial"  # where a directory's files are until all are whole
WRITABLE = ("q8_0", "q4_0", "int8", "int4")
_COPIED_FILES = (
    *TEXT_FILES,
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "*processor_config.json",
    "LICENSE*",
)
_BITS = {"Q4_0": 4, "Q8_0": 8}
_SPARE_BYTES = 64 * 2**20

# From a model's directory and the rows of its embedding to what a GGUF file says of its vocabulary.
VocabularyMetadata = Callable[[Path, int], Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion made.

    Args:
        path: The directory, or the GGUF file.
        nbytes: Size of its weights.
        num_quantized: Matrices that were quantized.
        num_plain: Tensors that were not.
    """

    path: Path
    nbytes: int
    num_quantized: int
    num_plain: int


@dataclass(frozen=True, slots=True)
class _Job:
    """One stored tensor, and what becomes of it."""

    info: TensorInfo
    dtype: torch.dtype
    quantization: str | None = None  # a name of WRITABLE, where there is a quantizer
    quantizer: Quantizer | None = None
    change: Change | None = None  # by an adapter

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        assert self.quantizer is not None
        assert self.quantization is not None
        if self.quantization.startswith("int"):
            return group_of(self.quantization, self.info.shape[-1])
        return self.quantizer.kind.length

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """The tensors that will be written."""
        name = self.info.name
        shape = self.info.shape
        if self.quantizer is None:
            yield name, Entry(element_type(self.dtype), shape)
            return
        base = name.removesuffix("weight")
        rows, columns = shape
        words = -(-columns * _BITS[self.quantizer.kind.name] // WORD)
        yield f"{base}weight_packed", Entry("I32", (rows, words))
        yield f"{base}weight_scale", Entry("F16", (rows, columns // self.group))
        yield f"{base}weight_shape", Entry("I64", (2,))


def convert(
    model: str,
    out: Path,
    *,
    quantize: str | None = None,
    dtype: str = "auto",
    merge_adapter: Path | None = None,
    vocabulary: VocabularyMetadata | None = None,
    progress: Progress | None = None,
) -> Converted:
    """Write a model again, quantized or in another dtype, as safetensors or as GGUF.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        out: The directory to make, which may be there if it is empty; or a file to make that ends
            in ``.gguf``.
        quantize: As for loading: names of WRITABLE, alone or by part. None for plain numbers.
        dtype: Of plain tensors; ``"auto"`` keeps what they are stored in, and for quantized
            matrices takes that of the tensors beside them.
        merge_adapter: The directory of an adapter (LoRA) to add to the weights; None adds none.
        vocabulary: Makes what a GGUF file says of the vocabulary; None leaves it out.
        progress: Told the bytes done so far, and all of them.

    Raises:
        CheckpointError: There is no such model, or its files are not sound; or the adapter is of
            another.
        ConfigError: GGUF cannot hold the model, the directory is in use or called like a file, the
            quantization cannot be written, or an adapter cannot be merged on the way.
        UnknownNameError: There is no such dtype or quantization.
        CapacityError: The disk is too full.
    """
    _check_free(out)
    if out.suffix == ".safetensors":
        raise ConfigError(
            f"{out.name} would be a directory.",
            found="the name of a file of safetensors",
            expected="a directory, which also gets config and tokenizer, or a .gguf file",
            hint=str(out.with_suffix("")),
        )
    planned = plan_model(model)
    if merge_adapter is not None and (out.suffix == ".gguf" or planned.checkpoint.metadata):
        raise ConfigError(
            "adapters are merged into safetensors alone.",
            found="a GGUF file",
            expected="a checkpoint of safetensors, and a directory to write",
            hint="merge it into a directory first, and convert that to GGUF",
        )
    if out.suffix == ".gguf":
        plan = plan_gguf(planned, parse_policy(quantize), dtype)
        if vocabulary is not None and not planned.checkpoint.metadata:
            config = planned.derivation.config
            about = vocabulary(planned.checkpoint.directory, config.vocab_size)
            plan = replace(plan, metadata={**plan.metadata, **about})
        return _write_gguf_file(planned.checkpoint, out, plan, progress)
    if planned.checkpoint.metadata:
        raise ConfigError(
            "a GGUF file cannot become safetensors.",
            hint="its blocks load as they are; name a file that ends in .gguf to pack it again",
        )
    jobs = _merged(_jobs(planned, quantize, dtype), planned, merge_adapter)
    return _write_directory(planned.checkpoint, out, jobs, progress)


def _check_free(out: Path) -> None:
    """Refuse to write over what is there, unless a conversion that was killed has left it.

    Raises:
        ConfigError: Something is.
    """
    if not out.exists():
        return
    unfinished = out / _UNFINISHED
    is_left = unfinished.is_dir() and not unfinished.is_symlink()
    if not out.is_dir() or any(each != unfinished or not is_left for each in out.iterdir()):
        raise ConfigError(
            f"{out} is in use.",
            found="files beside what a conversion that was stopped has left" if is_left else "",
            expected="a new or empty directory, or a new .gguf",
            hint="delete it, if it holds nothing that is needed" if is_left else "",
        )


def _write_gguf_file(
    checkpoint: Checkpoint, out: Path, plan: GgufPlan, progress: Progress | None
) -> Converted:
    entries = plan.entries
    nbytes = sum(entry.nbytes for entry in entries.values())
    with writing(out):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with gguf_writer(out, plan.metadata, entries) as writer:
            _check_free(out)  # again: another process may have written it meanwhile
            # now, without what a conversion that was killed has left
            _check_disk(out.absolute().parent, nbytes)
            write_gguf(plan, checkpoint, writer, progress)
    return Converted(out, nbytes, plan.num_quantized, len(entries) - plan.num_quantized)


def _write_directory(
    checkpoint: Checkpoint, out: Path, jobs: list[_Job], progress: Progress | None
) -> Converted:
    """Write a directory of safetensors, with the config and the files that go with a model."""
    entries = dict(entry for job in jobs for entry in job.entries())
    nbytes = sum(entry.nbytes for entry in entries.values())
    with writing(out), _new_directory(out) as unfinished:
        _check_disk(out, nbytes)  # without what a conversion that was killed has left
        with safetensors_writer(unfinished / _WEIGHTS, entries) as writer:
            _write_tensors(jobs, checkpoint, writer, progress)
            # before the weights get their name: what a crash leaves must not be taken for a model
            _write_config(unfinished, checkpoint, jobs)
            _copy_files(checkpoint.directory, unfinished)
    num_quantized = sum(job.quantizer is not None for job in jobs)
    return Converted(out, nbytes, num_quantized, len(jobs) - num_quantized)


def _copy_files(source: Path, out: Path) -> None:
    """Copy what goes with a model's weights, such as its tokenizer."""
    beside = (path for pattern in _COPIED_FILES for path in sorted(source.glob(pattern)))
    for path in filter(Path.is_file, beside):
        copy = out / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Make a directory for this process alone, and take it away again after an error.

    One that was there stays: it may be a link or a volume, which cannot be made again.

    Yields:
        The directory to write to. What is in it is moved to its place when the block ends.

    Raises:
        ConfigError: Another process writes there, or has done so since it was looked at.
    """
    was_there = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    unfinished = path / _UNFINISHED
    with _locked(path):
        _check_free(path)
        try:
            if unfinished.exists():
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            yield unfinished
            _move_up(unfinished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not was_there:
                _remove_empty(path)
            raise


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):  # others have written there
        directory.rmdir()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            raise ConfigError(f"another process writes {directory}.", hint="take another name")
        yield
    finally:
        os.close(descriptor)


def _move_up(directory: Path) -> None:
    """Move what is in a directory to where this is, the weights last; all of it or nothing."""
    moved: list[Path] = []
    try:
        for each in sorted(directory.iterdir(), key=lambda path: path.name == _WEIGHTS):
            moved.append(each.rename(directory.parent / each.name))
    except BaseException:
        for each in moved:
            each.rename(directory / each.name)
        raise
    directory.rmdir()


def _jobs(planned: PlannedModel, quantize: str | None, dtype: str) -> list[_Job]:
    """What becomes of each tensor, in the order of the plan."""
    policy = parse_policy(quantize)
    for name in {policy.default, *policy.rules.values()} - {None, "none"}:
        if name not in WRITABLE:
            raise ConfigError(
                "safetensors cannot hold this quantization.",
                found=repr(name)[:100],
                expected=", ".join(WRITABLE),
                hint="name an output that ends in .gguf, which holds more",
            )
    storage = choose_storage(planned.plan, planned.module, policy)
    head = planned.module.head_parameter
    plain = stored_dtype(planned.plan) if dtype == "auto" else DTYPES[dtype]
    jobs: dict[str, _Job] = {}  # a tensor of several parameters is written once
    for step in planned.plan.steps:
        storing = storage.get(step.parameter)
        chosen = policy.choose(step.parameter, is_head=step.parameter == head)
        can = isinstance(storing, Quantizer) and isinstance(step.transform, AsStored | Stack)
        for info in (planned.checkpoint.tensors[each.name] for each in step.sources):
            if info.name in jobs:
                continue
            own = _dtype_of(info, dtype, plain)
            if can and len(info.shape) == 2 and info.name.endswith(".weight"):
                assert isinstance(storing, Quantizer)
                jobs[info.name] = _Job(info, own, chosen, storing)
            else:
                jobs[info.name] = _Job(info, own)
    for name in planned.plan.ignored:
        if name.startswith(IMAGE_PREFIXES):  # transformers loads these parts from the directory
            info = planned.checkpoint.tensors[name]
            jobs[name] = _Job(info, _dtype_of(info, dtype, plain))
    return list(jobs.values())


def _dtype_of(info: TensorInfo, wanted: str, plain: torch.dtype) -> torch.dtype:
    """The dtype that a tensor is written in, where it is not quantized."""
    is_kept = wanted == "auto" and not info.is_packed
    is_float = info.is_packed or info.dtype.startswith(("F", "BF"))
    return torch_dtype(info.dtype) if is_kept or not is_float else plain


def _merged(jobs: list[_Job], planned: PlannedModel, path: Path | None) -> list[_Job]:
    """Jobs with the changes by the adapter at a path, if there is one."""
    if path is None:
        return jobs
    found = planned.derivation
    changes = plan_merge(read_peft(path), planned.checkpoint, found.rules, planned.module)
    unread = sorted(changes.keys() - {job.info.name for job in jobs})
    if unread:
        raise ConfigError(f"{path}: it changes what the model does not use.", found=unread[0][:100])
    return [replace(job, change=changes.get(job.info.name)) for job in jobs]


def _check_disk(directory: Path, nbytes: int) -> None:
    free = shutil.disk_usage(directory).free
    needed = nbytes + _SPARE_BYTES
    if needed > free:
        raise CapacityError(
            "the disk is too full.",
            found=f"{size_text(free)} are free in {directory}"[:100],
            expected=size_text(needed),
        )


def _write_tensors(
    jobs: list[_Job], checkpoint: Checkpoint, writer: TensorWriter, progress: Progress | None
) -> None:
    total = sum(job.info.nbytes for job in jobs)
    done = 0
    report = progress or no_progress
    for job in jobs:
        nbytes = job.info.nbytes
        report(done, total)
        if job.quantizer is None:
            is_whole = not isinstance(job.info, QuantizedInfo) and job.change is None
            tiles = (tile for _, tile in _tiles(job, checkpoint))
            for tensor in (checkpoint.view(job.info),) if is_whole else tiles:
                writer.write(job.info.name, tensor.to(job.dtype))
        else:
            bits = _BITS[job.quantizer.kind.name]
            made = {n: torch.empty(e.shape, dtype=torch_dtype(e.dtype)) for n, e in job.entries()}
            packed, scales, shape = made.values()  # in the order of `entries`
            shape.copy_(torch.tensor(job.info.shape))
            for part, numbers in _tiles(job, checkpoint):
                codes, each = take_blocks(job.quantizer.kind, job.quantizer(numbers))
                packed[part] = pack(codes, bits)
                scales[part] = each[:, :: job.group // job.quantizer.kind.length]
                checkpoint.drop(job.info)
                report(done + part.stop * nbytes // len(packed), total)
            for own, tensor in made.items():
                writer.write(own, tensor)
        checkpoint.drop(job.info)
        done += nbytes
    report(done, total)


def _tiles(job: _Job, checkpoint: Checkpoint) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a tensor as plain numbers, some at a time, with an adapter's changes."""
    for rows, numbers in tiles_of(job.info, checkpoint):
        yield rows, numbers if job.change is None else job.change.apply(rows, numbers)


def _write_config(out: Path, checkpoint: Checkpoint, jobs: list[_Job]) -> None:
    quantized = [job for job in jobs if job.quantizer is not None]
    # four-bit experts stay as they are, and so does what config.json says of them
    is_kept = not quantized and any(job.info.dtype == "U8" for job in jobs)
    replaced = () if is_kept else CONFIG_KEYS
    config = {k: v for k, v in checkpoint.config.items() if k not in replaced}
    if isinstance(text := config.get("text_config"), Mapping):
        config["text_config"] = {k: v for k, v in text.items() if k not in replaced}
    if quantized:
        # one group of the config for each scheme, with the modules that it is for
        modules: dict[tuple[int, int | None], list[str]] = {}
        for job in quantized:
            assert job.quantizer is not None
            size = None if job.group == job.info.shape[-1] else job.group
            module = job.info.name.removesuffix(".weight")
            modules.setdefault((_BITS[job.quantizer.kind.name], size), []).append(module)
        groups = {
            f"group_{index}": {
                "targets": targets,
                "weights": {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group" if size else "channel",
                    "group_size": size,
                },
            }
            for index, ((bits, size), targets) in enumerate(modules.items())
        }
        plain = [job.info for job in jobs if job.quantizer is None and len(job.info.shape) > 1]
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": [info.name.removesuffix(".weight") for info in plain],
        }
    if config:
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (out / "config.json").write_text(text + "\n", encoding="utf-8")
