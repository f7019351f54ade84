"""Checkpoints of mlx-lm as the releases have them: matrices, experts, convolutions and norms.

Source: the description of ``mlx.core.quantize``; names of experts, and what ``sanitize`` changes of
hybrids, as in GitHub ml-explore/mlx-lm, ``mlx_lm/models``.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch
from torch import Tensor

from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.bench.reference.settings import Settings, section
from blazr.bench.reference.weights import Renamed, Rows, Source
from blazr.bench.reference.words import bit_fields, four_bit_floats, powers_of_two

_ENDS = (".scales", ".biases", ".qbiases")
_SPARSE = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_WORDS = {"gate": "w1", "down": "w2", "up": "w3"}
_NUMBERED = {"fc1": "up_proj", "fc2": "down_proj"}
# DeepSeek's kv_b_proj, one matrix for each head, that of the keys turned over.
HALVES = (".embed_q.weight", ".unembed_out.weight")
_FILTERS = ("conv1d.weight", ".conv.conv.weight", "_conv.conv.weight")
# Whose norms hold one more than the releases', but for those within delta networks.
_QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_QWEN_NORMS = re.compile(r".*(layernorm|model\.norm|\.[qk]_norm)\.weight")
# What it calls otherwise: patterns of names, and what the releases have there.
_RENAMED = {
    "lfm2_moe": [(f"{word}_proj.weight$", f"{own}.weight") for word, own in _WORDS.items()],
    "kimi_linear": [
        (r"\.([qkv])_conv\.conv\.", r".\1_conv1d."),
        *(
            (rf"\.mlp(\.experts\.\d+)\.{word}_proj\.", rf".block_sparse_moe\1.{own}.")
            for word, own in _WORDS.items()
        ),
        (r"\.mlp\.e_score_correction_bias", ".block_sparse_moe.gate.e_score_correction_bias"),
        (r"\.mlp\.(gate|shared_experts)\.", r".block_sparse_moe.\1."),
    ],
}


class MlxFiles:
    """Files of mlx-lm as if they held a release.

    Args:
        files: The files.
        settings: What config.json says about the quantization, if anything.
    """

    def __init__(self, files: SafetensorsFiles, settings: Settings) -> None:
        self.files = files
        self.settings = settings
        self._places: dict[str, tuple[str, int | None]] = {}
        for name in files.names:
            if name.endswith(_ENDS):
                continue
            found = re.fullmatch(r"(.*)(?:switch_mlp|experts\.switch_glu)\.(\w+)\.weight", name)
            if found is None:
                heads = files.shape(name)[0] if name.endswith(HALVES) else 0
                at = name.removesuffix(".weight")
                self._places |= {f"{at}.{head}.weight": (name, head) for head in range(heads)}
                if not heads:
                    self._places[name] = (name, None)
                continue
            at, matrix = found.groups()
            known = _SPARSE if at.endswith("block_sparse_moe.") else _NUMBERED
            for expert in range(files.shape(name)[0]):
                own = f"{at}experts.{expert}.{known.get(matrix, matrix)}.weight"
                self._places[own] = (name, expert)

    @property
    def names(self) -> Collection[str]:
        """Of all tensors, as a release has them."""
        return self._places.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self.read(name).shape)

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows."""
        main, expert = self._places[name]
        at = main.removesuffix(".weight")
        stored = self._part(main, expert)
        if not stored.is_floating_point():
            stored = self._matrix(at, stored, expert)
        return stored if rows is None else stored[rows]

    def _part(self, name: str, expert: int | None) -> Tensor:
        whole = self.files.read(name)
        return whole if expert is None else whole[expert]

    def _matrix(self, at: str, words: Tensor, expert: int | None) -> Tensor:
        own = self.settings.get(at)
        said = Config(self.settings if own is None else section(own, at), {})
        scales = self._part(f"{at}.scales", expert)
        mode = said.get("mode", default="affine")
        if mode != "affine":
            numbers = words.view(torch.uint8)
            if mode == "mxfp8":
                return numbers.view(torch.float8_e4m3fn).double() * _spread(
                    powers_of_two(scales), 32
                )
            if mode == "mxfp4":
                return four_bit_floats(numbers) * _spread(powers_of_two(scales), 32)
            return four_bit_floats(numbers) * _spread(scales.view(torch.float8_e4m3fn).double(), 16)
        bits, size = said.get("bits", default=4), said.get("group_size", default=64)
        key = next(f"{at}{end}" for end in _ENDS[1:] if f"{at}{end}" in self.files.names)
        offsets = self._part(key, expert)
        codes = bit_fields(words, bits)[:, : scales.shape[1] * size]
        return codes * _spread(scales.double(), size) + _spread(offsets.double(), size)


def _spread(values: Tensor, size: int) -> Tensor:
    return values.repeat_interleave(size, 1)


class _Hybrid:
    """The tensors of a hybrid that mlx-lm has converted, as they were before.

    Args:
        source: Where they are read.
        filters: The convolutions, which are (C, K, 1) there.
        norms: The norms to which one was added.
    """

    def __init__(self, source: Source, filters: Collection[str], norms: Collection[str]) -> None:
        self._source = source
        self._filters = filters
        self._norms = norms

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._source.names

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        shape = self._source.shape(name)
        return (shape[0], shape[2], shape[1]) if name in self._filters else shape

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows."""
        found = self._source.read(name, rows)
        if name in self._filters:
            return found.transpose(1, 2)
        return found.double() - 1 if name in self._norms else found


def with_released_tensors(source: Source, kind: str) -> Source:
    """The tensors as they were before mlx-lm converted them.

    Args:
        source: The tensors.
        kind: The ``model_type`` of config.json.

    Raises:
        NoReferenceError: The file does not tell what was changed.
    """
    filters = {n for n in source.names if n.endswith(_FILTERS) and source.shape(n)[1] != 1}
    if not filters:
        return source
    if kind == "falcon_h1":
        raise NoReferenceError("Falcon-H1 as mlx-lm converts it, whose versions differ")
    norms = {n for n in source.names if kind in _QWEN and _QWEN_NORMS.fullmatch(n)}
    hybrid = _Hybrid(source, filters, norms)
    own = {name: name for name in source.names}
    for pattern, released in _RENAMED.get(kind, ()):
        own = {re.sub(pattern, released, ours): theirs for ours, theirs in own.items()}
    return Renamed(hybrid, own)
