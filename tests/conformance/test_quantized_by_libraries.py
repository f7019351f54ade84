"""Matrices that the kinds' own libraries wrote: the numbers are those that the libraries read."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blazr.models.checkpoint.base import QuantizedInfo
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.convert import convert
from blazr.models.loading.read import stored_weight
from tests.support import tiny
from tests.support.tiny import Tiny


def read(directory: Path, parts: dict[str, Tensor], config: dict[str, object]) -> Tensor:
    """What blazr makes of the tensors of one matrix."""
    stored = {f"a.{end}": part.contiguous().clone() for end, part in parts.items()}
    save_file(stored, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = open_checkpoint(directory)
    info = checkpoint.tensors["a.weight"]
    assert isinstance(info, QuantizedInfo)
    return stored_weight(info, checkpoint, torch.float32).dequantize(torch.float32)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [64, 256])
def test_bitsandbytes_four_bits(kind: str, block: int, tmp_path: Path, *, nested: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(72, 512)  # its CPU code misplaces blocks that cross rows
    codes, state = functional.quantize_4bit(
        weight, blocksize=block, quant_type=kind, compress_statistics=nested
    )
    parts = {f"weight.{key}": part for key, part in state.as_dict(packed=True).items()}
    assert ("weight.nested_absmax" in parts) == nested
    found = read(tmp_path, {"weight": codes, **parts}, {"quant_method": "bitsandbytes"})
    expected = functional.dequantize_4bit(codes, state)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_bitsandbytes_int8(tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    codes, largest, _ = functional.int8_vectorwise_quant(torch.randn(48, 96).half())
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    found = read(tmp_path, parts, {"quant_method": "bitsandbytes"})
    assert torch.equal(found, functional.int8_vectorwise_dequant(codes, largest))


@pytest.mark.parametrize("multiplied", [False, True])
def test_bitnet(tmp_path: Path, *, multiplied: bool) -> None:
    library = pytest.importorskip("transformers.integrations.bitnet")
    codes = torch.randint(-1, 2, (48, 96))
    scale = torch.tensor([0.37]).bfloat16()
    parts = {"weight": library.pack_weights(codes.clone()), "weight_scale": scale}
    config = {"quant_method": "bitnet", "linear_class": "auto" * multiplied + "bitlinear"}
    expected = codes * scale.float() if multiplied else codes / scale.float()
    assert torch.equal(read(tmp_path, parts, config), expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Int8WeightOnlyConfig", {}),
        ("Int8WeightOnlyConfig", {"group": 32}),
        ("IntxWeightOnlyConfig", {"group": 32, "weight_dtype": torch.int4}),
        ("IntxWeightOnlyConfig", {"group": 64, "weight_dtype": torch.int2}),
        ("Int8DynamicActivationIntxWeightConfig", {"group": 32, "weight_dtype": torch.int4}),
        ("Float8WeightOnlyConfig", {}),
    ],
)
def test_torchao(name: str, settings: dict[str, object], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("torchao.quantization")
        flat = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
        to_dict = pytest.importorskip("torchao.core.config").config_to_dict
    settings = dict(settings)
    if size := settings.pop("group", None):
        key = "weight_granularity" if "Activation" in name else "granularity"
        settings[key] = library.PerGroup(size)
    quantization = getattr(library, name)(**settings)
    layer = torch.nn.ModuleDict({"a": torch.nn.Linear(256, 64, bias=False)})
    library.quantize_(layer, quantization)
    weight = layer["a"].weight.data
    stored, _ = flat.flatten_tensor_state_dict({"a.weight": weight})
    parts = {key.removeprefix("a."): part for key, part in stored.items()}
    config = {"quant_method": "torchao", "quant_type": {"default": to_dict(quantization)}}
    assert torch.equal(read(tmp_path, parts, config), weight.dequantize().float())


COMPRESSED = {
    "pack-quantized": [
        {"num_bits": 4, "strategy": "group", "group_size": 32},
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        {"num_bits": 4, "strategy": "channel"},
        {"num_bits": 8, "strategy": "channel"},
        {"num_bits": 8, "strategy": "group", "group_size": 64, "symmetric": False},
        {"num_bits": 3, "strategy": "group", "group_size": 64, "symmetric": False},
        {"num_bits": 5, "strategy": "channel"},
        {"num_bits": 6, "strategy": "group", "group_size": 32, "symmetric": False},
    ],
    "int-quantized": [{"num_bits": 8, "strategy": "channel"}, {"num_bits": 8, "strategy": "tensor"},
                      {"num_bits": 8, "strategy": "channel", "symmetric": False},
                      {"num_bits": 4, "strategy": "group", "group_size": 128}],
    "float-quantized": [{"num_bits": 8, "strategy": "channel", "type": "float"},
                        {"num_bits": 8, "strategy": "tensor", "type": "float"},
                        {"num_bits": 8, "strategy": "block", "block_structure": [16, 64],
                         "type": "float"}],
    "nvfp4-pack-quantized": [{"num_bits": 4, "strategy": "tensor_group", "group_size": 16,
                              "type": "float", "scale_dtype": "torch.float8_e4m3fn",
                              "zp_dtype": "torch.float8_e4m3fn"}],
    "mxfp4-pack-quantized": [{"num_bits": 4, "strategy": "group", "group_size": 32, "type": "float",
                              "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}],
    "mxfp8-quantized": [{"num_bits": 8, "strategy": "group", "group_size": 32, "type": "float",
                         "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}],
}  # fmt: skip
CASES = [(kind, settings) for kind, rows in COMPRESSED.items() for settings in rows]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_compressed_tensors(kind: str, settings: dict[str, object], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("compressed_tensors.quantization")
        base = pytest.importorskip("compressed_tensors.compressors")
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    args = library.QuantizationArgs(**settings)
    scheme = library.QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(64, 256)
    size = settings.get("group_size")
    rows = weight.unflatten(1, (-1, size)) if size else weight
    if settings["strategy"] == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    elif settings["strategy"] == "block":
        blocks = weight.unflatten(0, (-1, 16)).unflatten(2, (-1, 64))
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    else:
        low, high = rows.amin(-1), rows.amax(-1)
        low, high = (each if size else each[:, None] for each in (low, high))
    whole = generate_gparam(weight.min(), weight.max()) if "nvfp4" in kind else None
    scale, zero = calculate_qparams(low, high, args, global_scale=whole)
    given = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    if whole is not None:
        given["weight_global_scale"] = whole
    compressor = base.BaseCompressor.get_value_from_registry(kind)
    parts = compressor.compress(given, scheme)
    expected = compressor.decompress(dict(parts), scheme)["weight"]
    parts = {end: part for end, part in parts.items() if part is not None}
    group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"g": group}}
    found = read(tmp_path, parts, config)
    rtol = 2**-7 if expected.dtype == torch.bfloat16 else 1e-6  # it rounds what it decodes
    torch.testing.assert_close(found, expected.float(), rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0", "int8", "int4"])
def test_what_convert_writes_is_read_alike(quantize: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("compressed_tensors.quantization")
        base = pytest.importorskip("compressed_tensors.compressors")
    model = Tiny(layers=("StandardTransformer",), hidden_size=128, intermediate_size=256)
    source = tiny.save(model, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b", quantize=quantize)
    config = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    library.QuantizationConfig.model_validate(config)
    stored = load_file(tmp_path / "b" / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "b")
    compressor = base.BaseCompressor.get_value_from_registry(config["format"])
    for group in config["config_groups"].values():
        scheme = library.QuantizationScheme(**group)
        for name in group["targets"]:
            parts = {n.removeprefix(f"{name}."): t for n, t in stored.items() if f"{name}." in n}
            parts["weight_scale"] = parts["weight_scale"].float()
            expected = compressor.decompress(parts, scheme)["weight"]
            info = checkpoint.tensors[f"{name}.weight"]
            assert isinstance(info, QuantizedInfo)
            weight = stored_weight(info, checkpoint, torch.float32)
            assert torch.equal(weight.dequantize(torch.float32), expected)
