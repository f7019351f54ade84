"""Packed weights kept on disk, so that the next start takes them as they are."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from glob import escape
from pathlib import Path

import torch
from torch import Tensor

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.checkpoint.write import Entry, safetensors_writer
from blazr.models.loading.plan import LoadStep
from blazr.nn.device import zero_bytes
from blazr.nn.operands.packing import GROUP, PACKINGS
from blazr.nn.ops.packed import layouts
from blazr.nn.quant.packed import PackedWeight
from blazr.nn.quant.weight import Weight

_log = logging.getLogger(__name__)

_SCALES = "row scales"


class KeptWeights:
    """The packed weights of one model, packed in one way, in a safetensors file of their own.

    A weight is ``NAME:PACKING``, the bytes of its blocks, with ``NAME:row scales`` where it has
    any.

    Args:
        path: Where they are, or will be; its name tells what they were made of.
        stem: How the names of older ones begin.
    """

    def __init__(self, path: Path, stem: str) -> None:
        self._path = path
        self._stem = stem
        self._file: Checkpoint | None = None
        if path.exists():
            try:
                self._file = open_checkpoint(path)
            except CheckpointError as error:
                _log.warning("%s is not sound, and written again: %s", path, error)
        names = (name.rpartition(":") for name in self._file.tensors) if self._file else ()
        self._packings = {name: packing for name, _, packing in names if packing != _SCALES}

    def find(self, step: LoadStep, dtype: torch.dtype) -> PackedWeight | None:
        """The weight that a step would make, if it was kept."""
        file = self._file
        packing = PACKINGS.get(self._packings.get(step.parameter, ""))
        if file is None or packing is None:
            return None
        name = f"{step.parameter}:{self._packings[step.parameter]}"
        scales = None
        *stack, rows, columns = step.shape
        blocks = file.read(name)
        if blocks.shape != (*stack, -(-rows // GROUP), columns // packing.columns, packing.nbytes):
            return None
        if f"{step.parameter}:{_SCALES}" in file.tensors:
            scales = file.read(f"{step.parameter}:{_SCALES}").clone()
        own = zero_bytes(blocks.shape).copy_(blocks)
        file.drop(file.tensors[name])
        return PackedWeight(packing, own, rows, dtype, row_scales=scales)

    def keep(self, weights: Mapping[str, Tensor | Weight]) -> None:
        """Write what was packed, unless it is there; without room there is a warning."""
        packed = {n: each for n, each in weights.items() if isinstance(each, PackedWeight)}
        if self._file is not None or not packed:
            return
        parts = dict[str, Tensor]()
        for name, weight in packed.items():
            kind = next(key for key, row in PACKINGS.items() if row is weight.packing)
            parts[f"{name}:{kind}"] = weight.blocks
            if weight.row_scales is not None:
                parts[f"{name}:{_SCALES}"] = weight.row_scales
        entries = {name: Entry.of(each) for name, each in parts.items()}
        mine = self._path.with_suffix(f".{os.getpid()}")  # others may be writing the same
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with safetensors_writer(mine, entries) as writer:
                for name, each in parts.items():
                    writer.write(name, each)
            mine.replace(self._path)
            for old in self._path.parent.glob(f"{escape(self._stem)}-*.safetensors"):
                if old != self._path:
                    old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the packed weights are not kept: %s", error)


def kept_weights(
    checkpoint: Checkpoint, name: str, *, quantize: str | None, dtype: torch.dtype
) -> KeptWeights:
    """What is kept of a model, or will be, where BLAZR_KEEP_PACKED asks for it.

    It lies in ``blazr`` beside the Hub's cache, one file for each way in which a model is loaded,
    which is written again when the model's files or the kernels' layouts have changed.

    Args:
        checkpoint: The model's files.
        name: What it is called.
        quantize: As for loading.
        dtype: Of products.
    """
    from huggingface_hub.constants import HF_HOME  # slow to import

    files = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in checkpoint.files]
    way = [str(checkpoint.path.resolve()), quantize, str(dtype)]
    stem = f"{name.replace('/', '--')}-{_digest(way)}"
    path = Path(HF_HOME) / "blazr" / f"{stem}-{_digest([*files, layouts()])}.safetensors"
    return KeptWeights(path, stem)


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
