"""Quantized checkpoints written byte by byte, from the formats' descriptions and not our readers.

Each encoder takes a matrix of float32 and gives the tensors that a file would hold in its place,
and the numbers that they stand for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.seeds import run_seed

Encoded = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """A way of quantizing: the encoder of a matrix, and what config.json says."""

    encode: Callable[[Tensor], Encoded]
    config: dict[str, object] = field(default_factory=dict)


def words(numbers: Tensor, bits: int, dim: int) -> Tensor:
    """Numbers from 0 in int32 words along a dimension, the first lowest; zeros fill up the last."""
    numbers = numbers.movedim(dim, -1).long()
    if 32 % bits:  # a stream of bits
        stream = (numbers[..., None] >> torch.arange(bits) & 1).flatten(-2)
        return words(stream, 1, -1).movedim(-1, dim).contiguous()
    count = 32 // bits
    short = -numbers.shape[-1] % count
    numbers = torch.nn.functional.pad(numbers, (0, short)).unflatten(-1, (-1, count))
    packed = sum(numbers[..., place] << (bits * place) for place in range(count))
    return torch.where(packed >= 2**31, packed - 2**32, packed).int().movedim(-1, dim).contiguous()


def on_grid(
    weight: Tensor, bits: int, size: int, *, zeros: bool, groups: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes from 0, scales by group (float16), zero points by group, and what they stand for."""
    columns = weight.shape[1]
    groups = torch.arange(columns) // size if groups is None else groups
    count, top = int(groups.max()) + 1, 2**bits - 1
    codes = torch.empty(weight.shape, dtype=torch.long)
    scale = torch.empty(len(weight), count)
    zero = torch.empty(len(weight), count, dtype=torch.long)
    for group in range(count):
        part = weight[:, groups == group]
        if zeros:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale[:, group] = ((high - low) / top).clamp(min=1e-6).half().float()
            zero[:, group] = (-low / scale[:, group]).round().clamp(0, top).long()
        else:
            scale[:, group] = (part.abs().amax(1) / (top // 2)).clamp(min=1e-6).half().float()
            zero[:, group] = 2 ** (bits - 1)
        each = part / scale[:, group, None] + zero[:, group, None]
        codes[:, groups == group] = each.round().clamp(0, top).long()
    return codes, scale, zero


def stands_for(codes: Tensor, scale: Tensor, zero: Tensor, groups: Tensor) -> Tensor:
    return (codes - zero[:, groups]).float() * scale[:, groups]


def gptq(
    weight: Tensor, *, bits: int = 4, size: int = 32, zeros: bool = False, order: bool = False,
    index: bool = True, version: int = 1,
) -> Encoded:  # fmt: skip
    columns = weight.shape[1]
    groups = torch.arange(columns) // size
    if order:
        groups = groups[torch.randperm(columns)]
    codes, scale, zero = on_grid(weight, bits, size, zeros=zeros, groups=groups)
    stored = (zero - 1) % 2**bits if version == 1 else zero
    parts = {
        "qweight": words(codes.T, bits, 0),
        "qzeros": words(stored.T, bits, 1),
        "scales": scale.T.half().contiguous(),
        "g_idx": groups.int(),
    }
    if not index:
        del parts["g_idx"]
    return parts, stands_for(codes, scale, zero, groups)


def awq(weight: Tensor, *, size: int = 32) -> Encoded:
    codes, scale, zero = on_grid(weight, 4, size, zeros=True)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(numbers: Tensor) -> Tensor:
        return words(numbers.unflatten(1, (-1, 8))[..., order].flatten(1), 4, 1)

    parts = {"qweight": pack(codes.T), "qzeros": pack(zero.T), "scales": scale.T.half()}
    groups = torch.arange(weight.shape[1]) // size
    return {k: v.contiguous() for k, v in parts.items()}, stands_for(codes, scale, zero, groups)


def packed(
    weight: Tensor, *, bits: int = 4, size: int = 32, zeros: bool = False, order: bool = False
) -> Encoded:
    columns = weight.shape[1]
    size = size or columns
    groups = torch.arange(columns) // size
    if order:
        groups = groups[torch.randperm(columns)]
    codes, scale, zero = on_grid(weight, bits, size, zeros=zeros, groups=groups)
    parts = {
        "weight_packed": words(codes, bits, 1),
        "weight_scale": scale.half(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if zeros:
        parts["weight_zero_point"] = words(zero, bits, 0)
    if order:
        parts["weight_g_idx"] = groups.int()
    return parts, stands_for(codes, scale, zero, groups)


def int8(
    weight: Tensor, *, scales: torch.dtype = torch.float32, zeros: bool = False, size: int = 0,
    order: bool = False,
) -> Encoded:  # fmt: skip
    columns = weight.shape[1]
    groups = torch.arange(columns) // (size or columns)
    if order:
        groups = groups[torch.randperm(columns)]
    codes, scale, zero = on_grid(weight, 8, size or columns, zeros=zeros, groups=groups)
    scale = scale.to(scales)
    parts = {"weight": (codes - 128).to(torch.int8), "weight_scale": scale}
    if order:
        parts["weight_g_idx"] = groups.int()
    if zeros:
        parts["weight_zero_point"] = (zero - 128).to(torch.int8)
    return parts, stands_for(codes, scale.float(), zero, groups)


def fp8(
    weight: Tensor, *, block: tuple[int, int] | None = None, key: str = "weight_scale",
    scales: torch.dtype = torch.float32,
) -> Encoded:  # fmt: skip
    """Per block, per row (block of one row), or per matrix (None)."""
    rows, columns = weight.shape
    height, width = block or (rows, columns)
    down, across = -(-rows // height), -(-columns // width)
    scale = torch.empty(down, across)
    whole = torch.empty(rows, columns)
    stored = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(down):
        for j in range(across):
            place = (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
            scale[i, j] = (weight[place].abs().max() / 448).to(scales).float()
            stored[place] = (weight[place] / scale[i, j]).clamp(-448, 448).to(stored.dtype)
            whole[place] = stored[place].float() * scale[i, j]
    found = scale if block else scale.reshape(())
    return {"weight": stored, key: found.to(scales)}, whole


def fp8_with_activations(weight: Tensor) -> Encoded:
    """Source: published checkpoints of Ministral 3; those of activations are not used here."""
    parts, whole = fp8(weight, key="weight_scale_inv", scales=torch.bfloat16)
    return {**parts, "activation_scale": torch.tensor(0.5, dtype=torch.bfloat16)}, whole


NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
])  # fmt: skip


def nf4(weight: Tensor, *, block: int = 64, nested: int = 0) -> Encoded:
    """Source: the layout of bitsandbytes' QuantState; the second table here is a plain ramp."""
    flat = weight.flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scale = padded.abs().amax(1)
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float16",
             "shape": list(weight.shape)}  # fmt: skip
    parts = {"weight.quant_map": NF4.clone()}
    if nested:
        offset = float(scale.mean())
        outer = torch.nn.functional.pad(scale - offset, (0, -len(scale) % nested)).view(-1, nested)
        largest, ramp = outer.abs().amax(1), torch.linspace(-1, 1, 256)
        share = (outer / largest[:, None].clamp(min=1e-9)).flatten()[: len(scale)]
        codes = (share[:, None] - ramp).abs().argmin(1)
        scale = ramp[codes] * largest.repeat_interleave(nested)[: len(scale)] + offset
        parts |= {"weight.absmax": codes.to(torch.uint8), "weight.nested_absmax": largest,
                  "weight.nested_quant_map": ramp}  # fmt: skip
        state |= {"nested_blocksize": nested, "nested_offset": offset, "nested_dtype": "float32"}
    else:
        parts["weight.absmax"] = scale
    codes = ((padded / scale[:, None])[..., None] - NF4).abs().argmin(-1)
    whole = (NF4[codes] * scale[:, None]).flatten()[: len(flat)].view(weight.shape)
    pairs = codes.flatten()[: len(flat)].view(-1, 2)
    parts["weight"] = (pairs[:, :1] << 4 | pairs[:, 1:]).to(torch.uint8)
    key = "weight.quant_state.bitsandbytes__nf4"
    parts[key] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return parts, whole


_FLOAT4 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4(weight: Tensor) -> Encoded:
    """Source: the compressed-tensors library's description of nvfp4-pack-quantized."""
    groups = weight.unflatten(1, (-1, 16))
    outer = 448 * 6 / weight.abs().max()
    scale = (groups.abs().amax(-1) / 6 * outer).to(torch.float8_e4m3fn)
    real = scale.float() / outer
    codes = ((groups / real[..., None])[..., None] - _FLOAT4).abs().argmin(-1)
    whole = (_FLOAT4[codes] * real[..., None]).flatten(1)
    pairs = codes.flatten(1).unflatten(1, (-1, 2))
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    parts = {"weight_packed": packed, "weight_scale": scale}
    return {**parts, "weight_global_scale": outer.reshape(1)}, whole


def mx(weight: Tensor, *, bits: int, numbers: str) -> Encoded:
    """Source: OCP Microscaling Formats 1.0; a last group may not be shorter."""
    groups = weight.unflatten(1, (-1, 32))
    most = 448 if bits == 8 else 6
    exponents = (groups.abs().amax(-1) / most).log2().ceil().clamp(-127, 127)
    scaled = groups / 2 ** exponents[..., None]
    codes = (scaled[..., None] - _FLOAT4).abs().argmin(-1)
    stored = scaled.to(torch.float8_e4m3fn).flatten(1)
    found = stored.float() if bits == 8 else _FLOAT4[codes].flatten(1)
    if bits == 4:
        pairs = codes.flatten(1).unflatten(1, (-1, 2))
        stored = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    parts = {numbers: stored, "weight_scale": (exponents + 127).to(torch.uint8)}
    return parts, found * (2**exponents).repeat_interleave(32, 1)


def powers_of_two(weight: Tensor) -> Encoded:
    """FP8 with float8 E8M0 scales of blocks, as DeepSeek's ``scale_fmt`` ``"ue8m0"`` names them."""
    parts, _ = fp8(weight, block=(64, 64), key="weight_scale_inv")
    scales = parts["weight_scale_inv"].to(torch.float8_e8m0fnu)
    each = scales.float().repeat_interleave(64, 0).repeat_interleave(64, 1)
    whole = parts["weight"].float() * each[: weight.shape[0], : weight.shape[1]]
    return {**parts, "weight_scale_inv": scales}, whole


def quark_rows(weight: Tensor) -> Encoded:
    """FP8 with a scale for each row, without a second dimension."""
    parts, whole = fp8(weight, block=(1, weight.shape[1]))
    return {**parts, "weight_scale": parts["weight_scale"].flatten()}, whole


def modelopt(weight: Tensor) -> Encoded:
    """Source: published checkpoints of NVIDIA's Model Optimizer; scales are multiplied there."""
    parts, _ = nvfp4(weight)
    outer = 1 / parts["weight_global_scale"].squeeze()
    numbers, scale = parts["weight_packed"], parts["weight_scale"]
    codes = torch.stack((numbers & 15, numbers >> 4), -1).flatten(1).long()
    whole = _FLOAT4[codes] * (scale.float() * outer).repeat_interleave(16, 1)
    found = {"weight": numbers, "weight_scale": scale, "weight_scale_2": outer}
    return {**found, "input_scale": torch.tensor(0.5)}, whole


def scb(weight: Tensor) -> Encoded:
    largest = weight.abs().amax(1)
    codes = (weight / largest[:, None] * 127).round()
    whole = codes * largest[:, None] * 7.874015718698502e-3
    parts = {"weight": codes.to(torch.int8), "SCB": largest}
    return {**parts, "weight_format": torch.tensor(0, dtype=torch.uint8)}, whole


def mlx(weight: Tensor, *, bits: int = 4, size: int = 32, offsets: str = "biases") -> Encoded:
    """Source: the description of ``mlx.core.quantize``; an edge of each group is met exactly."""
    groups = weight.unflatten(1, (-1, size))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / (2**bits - 1)).half()
    offset = low.half()
    codes = ((groups - offset[..., None]) / scale[..., None]).round().clamp(0, 2**bits - 1)
    whole = (codes * scale.float()[..., None] + offset.float()[..., None]).flatten(1)
    packed = words(codes.flatten(1), bits, 1).view(torch.uint32)
    return {"weight": packed, "scales": scale, offsets: offset}, whole


def mlx_floats(weight: Tensor, mode: str) -> Encoded:
    """The same numbers as others have, in words and by other names."""
    if mode == "nvfp4":
        parts, _ = nvfp4(weight * (448 * 6 / weight.abs().max()))  # nothing is beside the scales
        numbers, scale = parts["weight_packed"], parts["weight_scale"]
        codes = torch.stack((numbers & 15, numbers >> 4), -1).flatten(1).long()
        whole = _FLOAT4[codes] * scale.float().repeat_interleave(16, 1)
    else:
        parts, whole = mx(weight, bits=int(mode[-1]), numbers="weight")
        numbers, scale = parts["weight"], parts["weight_scale"]
    return {"weight": numbers.view(torch.uint32), "scales": scale.view(torch.uint8)}, whole


def bitnet(weight: Tensor, *, multiplied: bool) -> Encoded:
    """Source: the bytes in the description of transformers' ``unpack_weights``; a scale a matrix.

    The first quarter of the rows lies in the lowest bits of all bytes.
    """
    scale = weight.abs().mean().bfloat16().reshape(1)
    codes = (weight / scale.float()).round().clamp(-1, 1)
    quarters = (codes + 1).to(torch.uint8).unflatten(0, (4, -1))
    packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    if not multiplied:
        scale = scale.reciprocal()
    whole = codes * scale.float() if multiplied else codes / scale.float()
    return {"weight": packed, "weight_scale": scale}, whole


def torchao(weight: Tensor, *, bits: int = 8, size: int = 0, zeros: bool = False) -> Encoded:
    """Source: the description of torchao's Int8Tensor and IntxUnpackedToInt8Tensor."""
    size, half = size or weight.shape[1], 2 ** (bits - 1)
    codes, scale, zero = on_grid(weight, bits, size, zeros=zeros)
    scale = scale.bfloat16()
    parts = {"qdata": codes - half, "zero_point": zero - half}
    stored = {f"_weight_{end}": part.to(torch.int8) for end, part in parts.items()}
    groups = torch.arange(weight.shape[1]) // size
    return {**stored, "_weight_scale": scale}, stands_for(codes, scale.float(), zero, groups)


def torchao_int4(weight: Tensor, *, size: int = 32) -> Encoded:
    """Source: the description of torchao's Int4Tensor; what it calls zero points is added."""
    groups = weight.unflatten(1, (-1, size))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).bfloat16()
    offset = (low + 8 * scale.float()).bfloat16()
    codes = ((groups - offset.float()[..., None]) / scale.float()[..., None]).round().clamp(-8, 7)
    whole = (codes * scale.float()[..., None] + offset.float()[..., None]).flatten(1)
    pairs = codes.flatten(1).to(torch.int8).unflatten(1, (-1, 2))
    packed = pairs[..., 0] & 15 | pairs[..., 1] << 4
    parts = {"qdata": packed, "scale": scale.T, "zero_point": offset.T}
    return {f"_weight_{end}": part.contiguous() for end, part in parts.items()}, whole


def torchao_fp8(weight: Tensor, *, rows: bool) -> Encoded:
    """Source: the description of torchao's Float8Tensor, by row or by matrix."""
    parts, whole = fp8(weight, block=(1, weight.shape[1]) if rows else None)
    scale = parts["weight_scale"].reshape(-1, 1)
    return {"_weight_qdata": parts["weight"], "_weight_scale": scale}, whole


def _gptq_config(bits: int, size: int, **more: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **more}


def _compressed(kind: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"g": group}}


def _auto_round(kind: str, **more: object) -> dict[str, object]:
    return {"quant_method": "auto-round", "packing_format": kind, "group_size": 32, **more}


def _older(kind: str) -> dict[str, object]:
    return {"quant_method": "intel/auto-round", "backend": kind, "bits": 4, "group_size": 32}


def _torchao(kind: str, **data: object) -> dict[str, object]:
    default = {"_type": kind, "_version": 2, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": default}}


_INTX = "Int8DynamicActivationIntxWeightConfig"
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

KINDS: dict[str, Kind] = {
    "compressed nvfp4": Kind(nvfp4, _compressed("nvfp4-pack-quantized", **_NVFP4)),
    "modelopt nvfp4": Kind(modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "compressed mxfp4": Kind(
        lambda w: mx(w, bits=4, numbers="weight_packed"),
        _compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32),
    ),
    "compressed mxfp8": Kind(
        lambda w: mx(w, bits=8, numbers="weight"),
        _compressed("mxfp8-quantized", num_bits=8, type="float", group_size=32),
    ),
    "modelopt mxfp8": Kind(
        lambda w: mx(w, bits=8, numbers="weight"),
        {"quant_method": "modelopt", "quant_algo": "MXFP8"},
    ),
    "quark mxfp4": Kind(
        lambda w: mx(w, bits=4, numbers="weight"), {"quant_method": "quark", "export": {}}
    ),
    "quark fp8": Kind(quark_rows, {"quant_method": "quark"}),
    "fp8 powers of two": Kind(
        powers_of_two, {**_FP8, "scale_fmt": "ue8m0", "weight_block_size": [64, 64]}
    ),
    "auto-round": Kind(
        lambda w: gptq(w, zeros=True, version=2, index=False), _auto_round("auto_round", bits=4)
    ),
    "auto-round gptq": Kind(
        lambda w: gptq(w, zeros=True, index=False), _auto_round("auto_round:auto_gptq", bits=4)
    ),
    "auto-round awq": Kind(awq, _auto_round("auto_round:auto_awq", bits=4)),
    "auto-round 0.3": Kind(
        lambda w: gptq(w, zeros=True, version=2, index=False), _older("auto_round:exllamav2")
    ),
    "auto-round 0.3 gptq": Kind(
        lambda w: gptq(w, zeros=True, index=False), _older("auto_round:gptq:exllamav2")
    ),
    "auto-round fp8": Kind(fp8, _auto_round("auto_round:fp8_static", bits=8)),
    "auto-round mxfp4": Kind(
        lambda w: mx(w, bits=4, numbers="weight_packed"),
        _auto_round("auto_round:llm_compressor", bits=4, data_type="mx_fp"),
    ),
    "modelopt fp8": Kind(fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "fp8 per matrix": Kind(fp8, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 as Mistral has it": Kind(
        fp8_with_activations,
        {**_FP8, "activation_scheme": "static", "dequantize": False, "weight_block_size": None},
    ),
    "fp8 per block": Kind(
        lambda w: fp8(w, block=(128, 128), key="weight_scale_inv"),
        {**_FP8, "weight_block_size": [128, 128]},
    ),
    "fp8 small blocks": Kind(
        lambda w: fp8(w, block=(24, 40), key="weight_scale_inv"),
        {**_FP8, "weight_block_size": [24, 40]},
    ),
    "fbgemm fp8 per row": Kind(
        lambda w: fp8(w, block=(1, w.shape[1])), {"quant_method": "fbgemm_fp8"}
    ),
    "gptq": Kind(gptq, _gptq_config(4, 32)),
    "gptq ordered": Kind(lambda w: gptq(w, order=True), _gptq_config(4, 32, desc_act=True)),
    "gptq zeros ordered": Kind(
        lambda w: gptq(w, order=True, zeros=True), _gptq_config(4, 32, desc_act=True, sym=False)
    ),
    "gptq v2 zeros": Kind(
        lambda w: gptq(w, zeros=True, version=2),
        _gptq_config(4, 32, sym=False, checkpoint_format="gptq_v2"),
    ),
    "gptq whole rows": Kind(lambda w: gptq(w, size=w.shape[1]), _gptq_config(4, -1)),
    "gptq odd groups": Kind(lambda w: gptq(w, size=24, index=False), _gptq_config(4, 24)),
    "gptq 8 bits": Kind(lambda w: gptq(w, bits=8), _gptq_config(8, 32)),
    "gptq 8 bits zeros": Kind(
        lambda w: gptq(w, bits=8, zeros=True, index=False), _gptq_config(8, 32, sym=False)
    ),
    "gptq 3 bits": Kind(lambda w: gptq(w, bits=3), _gptq_config(3, 32)),
    "gptq 3 bits ordered": Kind(
        lambda w: gptq(w, bits=3, zeros=True, order=True), _gptq_config(3, 32, desc_act=True)
    ),
    "gptq 2 bits": Kind(lambda w: gptq(w, bits=2, zeros=True), _gptq_config(2, 32)),
    "awq": Kind(awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "compressed int4": Kind(packed, _compressed("pack-quantized", num_bits=4, group_size=32)),
    "compressed int4 odd groups": Kind(
        lambda w: packed(w, size=40), _compressed("pack-quantized", num_bits=4, group_size=40)
    ),
    "compressed int4 zeros": Kind(
        lambda w: packed(w, zeros=True), _compressed("pack-quantized", num_bits=4, symmetric=False)
    ),
    "compressed int4 ordered": Kind(
        lambda w: packed(w, order=True), _compressed("pack-quantized", num_bits=4, actorder="group")
    ),
    "compressed int4 channel": Kind(
        lambda w: packed(w, size=0), _compressed("pack-quantized", num_bits=4, strategy="channel")
    ),
    "compressed int8 packed": Kind(
        lambda w: packed(w, bits=8, size=0), _compressed("pack-quantized", num_bits=8)
    ),
    "compressed int8": Kind(int8, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "compressed int8 half": Kind(
        lambda w: int8(w, scales=torch.float16), _compressed("int-quantized", num_bits=8)
    ),
    "compressed int8 zeros": Kind(
        lambda w: int8(w, zeros=True), _compressed("int-quantized", num_bits=8, symmetric=False)
    ),
    "compressed int8 ordered": Kind(
        lambda w: int8(w, size=32, order=True),
        _compressed("int-quantized", num_bits=8, strategy="group", group_size=32, actorder="group"),
    ),
    "compressed fp8": Kind(
        lambda w: fp8(w, block=(1, w.shape[1])), _compressed("float-quantized", num_bits=8)
    ),
    "compressed fp8 per matrix": Kind(fp8, _compressed("float-quantized", num_bits=8)),
    "compressed fp8 groups": Kind(
        lambda w: fp8(w, block=(1, 32)),
        _compressed("float-quantized", num_bits=8, strategy="group", group_size=32),
    ),
    "compressed fp8 per block": Kind(
        lambda w: fp8(w, block=(16, 32)),
        _compressed("float-quantized", num_bits=8, block_structure=[16, 32]),
    ),
    "bitsandbytes nf4": Kind(nf4, _BNB4),
    "bitsandbytes nf4 nested": Kind(
        lambda w: nf4(w, nested=16), {**_BNB4, "bnb_4bit_use_double_quant": True}
    ),
    "mlx 4 bits": Kind(mlx, {"bits": 4, "group_size": 32, "mode": "affine"}),
    "mlx 3 bits": Kind(lambda w: mlx(w, bits=3), {"bits": 3, "group_size": 32}),
    "mlx 6 bits": Kind(lambda w: mlx(w, bits=6), {"bits": 6, "group_size": 32}),
    "mlx 8 bits": Kind(lambda w: mlx(w, bits=8), {"bits": 8, "group_size": 32}),
    "mlx mxfp4": Kind(
        lambda w: mlx_floats(w, "mxfp4"), {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    ),
    "mlx mxfp8": Kind(
        lambda w: mlx_floats(w, "mxfp8"), {"bits": 8, "group_size": 32, "mode": "mxfp8"}
    ),
    "mlx nvfp4": Kind(
        lambda w: mlx_floats(w, "nvfp4"), {"bits": 4, "group_size": 16, "mode": "nvfp4"}
    ),
    "metal": Kind(
        lambda w: mlx(w, bits=2, offsets="qbiases"),
        {"quant_method": "metal", "bits": 2, "group_size": 32},
    ),
    "bitnet": Kind(
        lambda w: bitnet(w, multiplied=True),
        {"quant_method": "bitnet", "linear_class": "autobitlinear"},
    ),
    "bitnet divided": Kind(lambda w: bitnet(w, multiplied=False), {"quant_method": "bitnet"}),
    "torchao int8": Kind(torchao, _torchao("Int8WeightOnlyConfig")),
    "torchao int8 groups": Kind(
        lambda w: torchao(w, size=32, zeros=True), _torchao("Int8WeightOnlyConfig")
    ),
    "torchao intx": Kind(
        lambda w: torchao(w, bits=4, size=32),
        _torchao(_INTX, weight_dtype={"_type": "torch.dtype", "_data": "int4"}),
    ),
    "torchao int4": Kind(torchao_int4, _torchao("Int4WeightOnlyConfig", group_size=32)),
    "torchao fp8": Kind(
        lambda w: torchao_fp8(w, rows=True), _torchao("Float8DynamicActivationFloat8WeightConfig")
    ),
    "torchao fp8 per matrix": Kind(
        lambda w: torchao_fp8(w, rows=False), _torchao("Float8WeightOnlyConfig")
    ),
    "bitsandbytes int8": Kind(scb, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}


def quantize_directory(source: Path, name: str, quantized: Path, plain: Path) -> dict[str, Tensor]:
    """Write a model's projections quantized, and as the numbers that they then are.

    Args:
        source: A directory of model.safetensors and config.json.
        name: One of KINDS.
        quantized: Where the quantized model goes.
        plain: Where the same numbers go as float32.

    Returns:
        The numbers of the quantized matrices, by name.
    """
    kind, tensors = KINDS[name], load_file(source / "model.safetensors")
    torch.manual_seed(run_seed(sum(name.encode())))
    stored, numbers = {}, {}
    for key, tensor in tensors.items():
        if "_proj." in key and key.endswith(".weight"):
            parts, numbers[key] = kind.encode(tensor.float())
            base = key.removesuffix("weight")
            stored.update({base + end: part for end, part in parts.items()})
        else:
            stored[key] = tensor
    written = json.loads((source / "config.json").read_text())
    for directory, what, more in (
        (quantized, stored, {"quantization_config": kind.config}),
        (plain, tensors | numbers, {}),
    ):
        directory.mkdir(parents=True, exist_ok=True)
        save_file(what, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(written | more))
        for beside in source.glob("tokenizer*"):
            shutil.copy(beside, directory)
    return numbers
