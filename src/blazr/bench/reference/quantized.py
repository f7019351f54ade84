"""Quantized safetensors checkpoints: matrices that several tensors stand for, in plain formulas.

Source: the libraries' own descriptions: AutoGPTQ, AutoAWQ, AutoRound, compressed-tensors,
bitsandbytes, torchao, transformers (BitNet), NVIDIA's Model Optimizer, AMD's Quark, DeepSeek-V3's
model card, and the OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.mlx import HALVES, MlxFiles
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.bench.reference.settings import Settings, T, section
from blazr.bench.reference.weights import Rows
from blazr.bench.reference.words import bit_fields, four_bit_floats, powers_of_two

_KNOWN = {
    "gptq", "awq", "auto-round", "intel/auto-round", "fp8", "fbgemm_fp8", "compressed-tensors",
    "modelopt", "quark", "bitsandbytes", "mxfp4", "bitnet", "torchao",
}  # fmt: skip
# AutoRound's formats of GPTQ's tensors whose zero points are stored as they are.
_PLAIN_ZEROS = ("auto_round", "auto_round:gptqmodel")
# What the name of a matrix's first tensor ends with, in the place of ``weight``.
_MAINS = ("qweight", "weight_packed", "_weight_qdata")
# Which row of eight each place of a word holds, in AWQ's order.
_AWQ_ROWS = [0, 2, 4, 6, 1, 3, 5, 7]


class QuantizedFiles:
    """Files that hold some matrices quantized, as if they held them plain.

    Args:
        files: The files.
        settings: ``quantization_config``.
    """

    def __init__(self, files: SafetensorsFiles, settings: Settings) -> None:
        self.files = files
        self.config = Config(settings, {})
        self.method = self.config.get("quant_method", default="modelopt")
        if self.method not in _KNOWN:
            raise NoReferenceError(f"checkpoints quantized by {self.method[:60]!r}")
        # where each matrix begins; a name of its own where that is not the matrix's
        self._mains: dict[str, str] = {}
        for name in files.names:
            stem, dot, last = name.rpartition(".")
            whole = f"{stem}{dot}weight" if last in _MAINS else name
            self._mains[whole.removesuffix("_blocks")] = name

    @property
    def names(self) -> Collection[str]:
        """Of all tensors, as if they were plain."""
        return self._mains.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        main = self._mains[name]
        is_plain = main == name and self.files.read(name).is_floating_point()
        return self.files.shape(name) if is_plain else tuple(self.read(name).shape)

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows.

        Raises:
            NoReferenceError: It is stored in a way that nobody has written here.
        """
        main = self._mains[name]
        if main.endswith("_blocks"):
            # GPT-OSS's experts are (E, out, groups, 16) bytes and (E, out, groups) exponents
            blocks = self.files.read(main, rows)
            exponents = self.files.read(main.removesuffix("_blocks") + "_scales", rows)
            scales = powers_of_two(exponents)
            values = four_bit_floats(blocks.flatten(0, -2)).view(*blocks.shape[:-1], 32)
            return (values * scales[..., None]).flatten(-2).transpose(-1, -2)
        stored = self.files.read(main)
        is_plain = stored.is_floating_point() and stored.dtype.itemsize > 1
        whole = stored if is_plain else self._matrix(main, stored)
        return whole if rows is None else whole[rows]

    def _matrix(self, main: str, stored: Tensor) -> Tensor:
        at = main.rpartition(".")[0]
        if main.endswith("qweight"):
            is_awq = self.method == "awq" or self._packing.endswith("awq")
            return self._awq(at, stored) if is_awq else self._gptq(at, stored)
        if main.endswith("_qdata"):
            return self._torchao(at, stored)
        if self.method == "bitnet":
            return self._bitnet(at, stored)
        if f"{at}.weight.quant_map" in self.files.names:
            return self._bitsandbytes(at, stored)
        if f"{at}.SCB" in self.files.names:
            return stored.double() * self._part(at, "SCB").double()[:, None] / 127
        if stored.dtype == torch.uint8:
            return self._float4(at, stored)
        if stored.dtype == torch.int32:
            return self._packed(at, stored)
        for key in ("weight_scale_inv", "weight_scale"):
            if f"{at}.{key}" in self.files.names:
                return self._scaled(at, stored, self._part(at, key))
        raise NoReferenceError(f"a quantized matrix without scales, {main[:60]!r}")

    @property
    def _packing(self) -> str:
        """The format that AutoRound names; before version 0.5 by kernels for it."""
        named = self.config.get("packing_format", default="")
        kernels = self.config.get("backend", default="")
        if named or "auto-round" not in self.method:
            return named
        if "awq" in kernels:
            return "auto_round:auto_awq"
        has_ones = "gptq" in kernels or not kernels.startswith(("auto_round", "autoround"))
        return "auto_round:auto_gptq" if has_ones else "auto_round"

    def _part(self, at: str, key: str) -> Tensor:
        return self.files.read(f"{at}.{key}")

    def _get(self, at: str, key: str) -> Tensor | None:
        name = f"{at}.{key}"
        return self.files.read(name) if name in self.files.names else None

    def _gptq(self, at: str, stored: Tensor) -> Tensor:
        """``(q - zero) * scale``; words run along the columns, zero points along the rows."""
        scales, zeros = self._part(at, "scales").double(), self._part(at, "qzeros")
        bits = self.config.get("bits", default=zeros.shape[1] * 32 // scales.shape[1])
        widths = (bits, 2, 3, 4, 8)  # "dynamic" settings give some matrices another one
        bits = next(b for b in widths if -(-scales.shape[1] * b // 32) == zeros.shape[1])
        codes = bit_fields(stored.T, bits)  # (out, in)
        is_second = self.config.text("checkpoint_format") == "gptq_v2"
        offset = 0 if is_second or self._packing in _PLAIN_ZEROS else 1
        zero = (bit_fields(zeros, bits)[:, : scales.shape[1]] + offset) % 2**bits  # (groups, out)
        groups = self._get(at, "g_idx")
        size = self.config.get("group_size", default=0)
        groups = _runs(codes.shape[1], len(scales), size, groups)
        return (codes - zero[groups].T) * scales[groups].T

    def _awq(self, at: str, stored: Tensor) -> Tensor:
        """The same with words along the rows, eight rows in an order of their own."""
        scales = self._part(at, "scales").double()

        def unpack(words: Tensor) -> Tensor:
            eights = bit_fields(words, 4).unflatten(1, (-1, 8))
            found = torch.empty_like(eights)
            found[..., _AWQ_ROWS] = eights
            return found.flatten(1)[:, : scales.shape[1]]

        codes, zeros = unpack(stored), unpack(self._part(at, "qzeros"))
        size = self.config.get("group_size", "q_group_size", default=0)
        groups = _runs(len(codes), len(scales), size)
        return ((codes - zeros[groups]) * scales[groups]).T

    def _torchao(self, at: str, stored: Tensor) -> Tensor:
        """``(q - zero) * scale``, or ``q * scale + zero`` of pairs whose zero points are floats."""
        scales = self._part(at, "_weight_scale").double()
        zeros = self._get(at, "_weight_zero_point")
        if f"{at}._weight_act_pre_scale" in self.files.names:
            raise NoReferenceError("matrices of torchao whose inputs have scales")
        if zeros is not None and zeros.is_floating_point():
            codes = torch.stack((stored & 15, stored >> 4 & 15), -1).flatten(1).long()
            codes = torch.where(codes > 7, codes - 16, codes)
            size = codes.shape[1] // len(scales)
            each, plus = (p.double().T.repeat_interleave(size, 1) for p in (scales, zeros))
            return codes * each + plus
        down, across = (
            -(-own // count) for own, count in zip(stored.shape, scales.shape, strict=True)
        )
        each = scales.repeat_interleave(down, 0).repeat_interleave(across, 1)
        codes = stored.double()
        if zeros is not None:
            codes = codes - zeros.double().repeat_interleave(across, 1)
        return codes * each[: len(codes), : codes.shape[1]]

    def _bitnet(self, at: str, stored: Tensor) -> Tensor:
        """Four quarters of the rows, two bits each: one more than -1, 0 or 1."""
        quarters = [stored // 4**place % 4 for place in range(4)]
        codes, scale = torch.cat(quarters).double() - 1, self._part(at, "weight_scale").double()
        is_multiplied = self.config.text("linear_class") == "autobitlinear"
        return codes * scale if is_multiplied else codes / scale

    def _packed(self, at: str, stored: Tensor) -> Tensor:
        """compressed-tensors' ``pack-quantized``: numbers plus half their range."""
        rows, columns = self._part(at, "weight_shape").tolist()
        scales = self._part(at, "weight_scale").double()
        widths = (*self._weights("num_bits", 0), 2, 4, 8)
        bits = next(each for each in widths if -(-columns * each // 32) == stored.shape[1])
        half = 2 ** (bits - 1)
        codes = bit_fields(stored, bits)[:, :columns] - half
        packed = self._get(at, "weight_zero_point")
        zeros = torch.zeros_like(scales)
        if packed is not None:
            zeros = (bit_fields(packed.T, bits)[:, :rows].T - half).double()
        return self._grid(codes, scales, zeros, self._get(at, "weight_g_idx"))

    def _scaled(self, at: str, stored: Tensor, scales: Tensor) -> Tensor:
        """Eight bits a number, with scales for the matrix, rows, groups or blocks."""
        rows, columns = stored.shape
        if scales.dtype == torch.uint8:  # of 32 columns each
            return stored.double() * powers_of_two(scales).repeat_interleave(32, 1)
        scales = scales.double()
        if stored.dtype == torch.int8:
            zeros = self._get(at, "weight_zero_point")
            zeros = torch.zeros_like(scales) if zeros is None else zeros.double()
            return self._grid(stored.long(), scales, zeros, self._get(at, "weight_g_idx"))
        if scales.numel() == 1 or scales.shape == (rows,):
            return stored.double() * scales.reshape(-1, 1)
        usual: Sequence[int] = (128, 128)
        known = [
            (1, columns),
            *self._weights("block_structure", usual),
            *((1, size) for size in self._weights("group_size", 0)),
            self.config.get("weight_block_size", default=usual),
        ]
        height, width = next(
            block
            for block in known
            if scales.shape == (-(-rows // block[0]), -(-columns // block[1]))
        )
        spread = scales.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)
        return stored.double() * spread[:, :columns]

    def _grid(self, codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor | None) -> Tensor:
        """``(q - zero) * scale``, with one or more scales a row."""
        scales, zeros = (p if p.dim() > 1 else p.reshape(-1, 1) for p in (scales, zeros))
        wanted = next(iter(self._weights("group_size", 0)), 0)
        groups = _runs(codes.shape[1], scales.shape[1], wanted, groups)
        return (codes - zeros[:, groups]) * scales[:, groups]

    def _weights(self, key: str, like: T) -> list[T]:
        """What compressed-tensors' groups of settings say about weights."""
        groups = self.config.section("config_groups")
        weights = (groups.section(name).section("weights") for name in groups.own)
        return [each.get(key, default=like) for each in weights if each.own.get(key)]

    def _float4(self, at: str, stored: Tensor) -> Tensor:
        """Four-bit floats with powers of two for 32 columns each, or, as NVFP4, otherwise.

        That has eight-bit scales of 16 columns, and one number for all.
        """
        scales = self._part(at, "weight_scale")
        if scales.dtype == torch.uint8:
            return four_bit_floats(stored) * powers_of_two(scales).repeat_interleave(32, 1)
        scales = scales.double()
        factor = self._get(at, "weight_scale_2")
        if factor is None:  # compressed-tensors divides
            factor = 1 / self._part(at, "weight_global_scale").double()
        return four_bit_floats(stored) * (scales * factor.double()).repeat_interleave(16, 1)

    def _bitsandbytes(self, at: str, stored: Tensor) -> Tensor:
        """Codes of a table, the first of two in the upper half, scaled by blocks."""
        prefix = f"{at}.weight.quant_state."
        key = next(name for name in self.files.names if name.startswith(prefix))
        state = json.loads(bytes(self.files.read(key).tolist()))
        flat = stored.flatten()
        codes = torch.stack((flat >> 4, flat & 15), -1).flatten().long()
        scales = self._part(at, "weight.absmax")
        if scales.dtype == torch.uint8:
            outer = self._part(at, "weight.nested_absmax").double()
            table = self._part(at, "weight.nested_quant_map").double()
            outer = outer.repeat_interleave(state["nested_blocksize"])[: len(scales)]
            scales = table[scales.long()] * outer + state["nested_offset"]
        values = self._part(at, "weight.quant_map").double()[codes]
        spread = scales.double().repeat_interleave(state["blocksize"])
        count = state["shape"][0] * state["shape"][1]
        return (values[:count] * spread[:count]).view(state["shape"])


def with_plain_matrices(
    files: SafetensorsFiles, config: Settings
) -> SafetensorsFiles | QuantizedFiles | MlxFiles:
    """The files as if nothing were quantized.

    Args:
        files: The files.
        config: The contents of config.json.

    Raises:
        NoReferenceError: They are quantized in a way that nobody has written here.
    """
    key = "quantization_config"
    said = config.get(key) or section(config.get("text_config"), "text_config").get(key)
    own = config.get("quantization") or said
    are_mlx = any(name.endswith((".biases", ".qbiases", *HALVES)) for name in files.names)
    if are_mlx or section(own, key).get("mode") or any(".switch_" in n for n in files.names):
        return MlxFiles(files, section(own, key))
    if said is not None:
        return QuantizedFiles(files, section(said, key))
    if any(name.endswith(".weight_scale_2") for name in files.names):
        return QuantizedFiles(files, {})  # its settings lie beside, in hf_quant_config.json
    return files


def _runs(columns: int, groups: int, wanted: int, index: Tensor | None = None) -> Tensor:
    """The group of each column: as listed, or in runs of the wanted size where that fits."""
    if index is not None:
        return index.long()
    fits = wanted > 0 and -(-columns // wanted) == groups
    size = wanted if fits else columns // groups
    return torch.arange(columns) // size
