"""Every kind of quantized checkpoint: its numbers, products with them, and what it generates."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from blazr.bench.reference.quantized import with_plain_matrices
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.core.errors import BlazrError, CheckpointError, ConfigError
from blazr.models.checkpoint.base import QuantizedInfo, take_rows
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading import read as reading
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.models.loading.read import stored_weight
from blazr.models.loading.stacks import join_stack
from blazr.models.loading.storage import choose_storage, dequantize_if_room
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.quant.exact import ShiftedWeight
from blazr.nn.quant.packed import PackedWeight, QuantizePolicy, pack_weight
from blazr.nn.quant.weight import (
    FloatWeight,
    GgufWeight,
    PlainWeight,
    StoredStack,
    StoredWeight,
    Weight,
)
from tests.support import tiny
from tests.support.networks import Lab
from tests.support.quantized import KINDS, fp8, gptq, nf4, quantize_directory
from tests.support.references import save_reference, take_experts_apart
from tests.support.seeds import examples, run_seed
from tests.support.tiny import Tiny
from tests.support.tolerances import assert_as_right, assert_greedy, sensitivity

pytestmark = pytest.mark.sample

CPU = resolve_device("cpu")
MODEL = Tiny(
    layers=("StandardTransformer", "StandardTransformer"), hidden_size=64, num_heads=4,
    head_dim=16, intermediate_size=160, vocab_size=53, max_seq_len=1024,
)  # fmt: skip
# Which are held in blocks of GGUF files, exactly; the others stay as they are stored.
IN_BLOCKS = {
    "gptq": "Q4_0", "gptq ordered": "Q4_0", "gptq zeros ordered": "Q4_0", "gptq v2 zeros": "Q4_0",
    "gptq whole rows": "Q4_0", "gptq 8 bits": "Q8_0", "gptq 8 bits zeros": "Q8_0",
    "gptq 2 bits": "Q4_0", "gptq 3 bits": "Q4_0", "gptq 3 bits ordered": "Q4_0",
    "awq": "Q4_0", "compressed int4": "Q4_0",
    "compressed int4 zeros": "Q4_0", "compressed int4 ordered": "Q4_0",
    "compressed int4 channel": "Q4_0", "compressed int8 packed": "Q8_0",
    "compressed int8": "Q8_0", "compressed int8 half": "Q8_0", "compressed int8 zeros": "Q8_0",
    "compressed int8 ordered": "Q8_0",
    "mlx 4 bits": "Q4_1", "mlx 3 bits": "Q4_1", "mlx 6 bits": "Q8_0", "mlx 8 bits": "Q8_0",
    "metal": "Q4_1",
    "bitsandbytes int8": "Q8_0", "auto-round": "Q4_0", "auto-round gptq": "Q4_0",
    "auto-round awq": "Q4_0", "auto-round 0.3": "Q4_0", "auto-round 0.3 gptq": "Q4_0",
    "bitnet": "Q4_0", "bitnet divided": "Q4_0",
    "torchao int8": "Q8_0", "torchao int8 groups": "Q8_0", "torchao intx": "Q4_0",
    "torchao int4": "Q4_0",
}  # fmt: skip


@cache
def encoded(
    name: str, rows: int, columns: int, seed: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(run_seed(rows + columns + seed))
    return KINDS[name].encode(torch.randn(rows, columns))


def write_matrix(
    name: str, directory: Path, rows: int, columns: int, seed: int = 0
) -> torch.Tensor:
    """A checkpoint of one matrix; what it stands for."""
    parts, whole = encoded(name, rows, columns, seed)
    directory.mkdir(exist_ok=True)
    save_file({f"a.{end}": part for end, part in parts.items()}, directory / "model.safetensors")
    config = {"quantization_config": KINDS[name].config}
    (directory / "config.json").write_text(json.dumps(config))
    return whole


def read_matrix(directory: Path, *, as_stored: bool = False) -> Weight:
    checkpoint = open_checkpoint(directory)
    assert list(checkpoint.tensors) == ["a.weight"]
    info = checkpoint.tensors["a.weight"]
    assert isinstance(info, QuantizedInfo)
    if as_stored:
        return stored_weight(info, checkpoint, torch.float32)
    return reading.read_matrix(info, checkpoint, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("as_stored", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_products_and_rows(name: str, tmp_path: Path, *, as_stored: bool) -> None:
    whole = write_matrix(name, tmp_path, 264, 192)
    weight = read_matrix(tmp_path, as_stored=as_stored)
    assert weight.shape == whole.shape
    rounding = 3e-7 if name == "bitsandbytes int8" and not as_stored else 0
    torch.testing.assert_close(weight.dequantize(torch.float32), whole, rtol=rounding, atol=0)
    ids = torch.tensor([[5, 0], [263, 5]])
    torch.testing.assert_close(weight.rows(ids), whole[ids], rtol=rounding, atol=0)
    for count in (1, 7):
        x, bias = torch.randn(count, 192), torch.randn(264)
        for plus in (None, bias):
            expected = x.double() @ whole.double().T + (0 if plus is None else plus)
            found = weight.matmul(x, plus)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 16, 48, 2000])
def test_tiles_change_nothing(name: str, rows: int, tmp_path: Path) -> None:
    if rows % 16 and name.startswith(("gptq", "awq", "auto-round")):
        return  # whole words of zero points
    if rows % 4 and name.startswith("bitnet"):
        return  # whole bytes of rows
    whole = write_matrix(name, tmp_path, rows, 480)
    stored = read_matrix(tmp_path, as_stored=True)
    assert isinstance(stored, StoredWeight)
    for part in (slice(0, rows), slice(rows // 3, rows), slice(rows // 2, rows // 2 + 1)):
        assert torch.equal(stored.layout.decode(stored.parts, part), whole[part])
    assert torch.equal(stored.dequantize(torch.float32), whole)


@pytest.mark.parametrize("name", KINDS)
def test_some_rows_are_a_matrix_of_their_own(name: str, tmp_path: Path) -> None:
    """One run, rows in turns, and pieces in another order, with bytes that they share."""
    whole = write_matrix(name, tmp_path, 80, 96)
    checkpoint = open_checkpoint(tmp_path)
    info = checkpoint.tensors["a.weight"]
    for rows in ((range(50),), (range(1, 80, 2),), (range(41, 80), range(3), range(20, 30, 3))):
        part = take_rows(info, rows)
        places = [place for each in rows for place in each]
        assert part.shape == (len(places), 96)
        assert part.nbytes == pytest.approx(info.nbytes * len(places) / 80, abs=1)
        read = reading.read_matrix(part, checkpoint, torch.float32, torch.device("cpu"))
        rounding = 3e-7 if name == "bitsandbytes int8" else 0
        found = read.dequantize(torch.float32)
        torch.testing.assert_close(found, whole[places], rtol=rounding, atol=0)
        again = take_rows(part, (range(3, 8, 2),))
        assert torch.equal(reading.read_plain(again, checkpoint), whole[places][[3, 5, 7]])


@pytest.mark.parametrize("name", KINDS)
def test_what_it_is_held_in(name: str, tmp_path: Path) -> None:
    write_matrix(name, tmp_path, 640, 192)
    weight = read_matrix(tmp_path)
    if name in IN_BLOCKS:
        blocks = weight.inner if isinstance(weight, ShiftedWeight) else weight
        assert isinstance(blocks, GgufWeight)
        assert blocks.kind.name == IN_BLOCKS[name]
        assert weight.nbytes < 1.3 * blocks.nbytes
    else:
        assert isinstance(weight, FloatWeight if is_of_floats(name) else StoredWeight)
        allowed = 1.1 if "nested" in name else 1  # scales are decoded once
        assert weight.nbytes <= allowed * (tmp_path / "model.safetensors").stat().st_size


def is_of_floats(name: str) -> bool:
    return any(each in name for each in ("fp8", "fp4", "nf4"))


@pytest.mark.parametrize("name", KINDS)
def test_experts_are_joined_for_kernels(name: str, tmp_path: Path) -> None:
    """In blocks and in floats, with the same numbers; what has more beside it stays apart."""
    write_matrix(name, tmp_path / "0", 96, 128)
    write_matrix(name, tmp_path / "1", 96, 128, seed=1)
    matrices = [read_matrix(tmp_path / each) for each in ("0", "1")]
    stack = StoredStack(matrices)
    joined = join_stack(stack, torch.device("cpu"))
    if matrices[0].operand is not None:
        assert type(joined) is type(matrices[0])
        assert joined.operand is not None
        spared = 64 if "nf4" in name else 0  # one table is enough
        assert joined.nbytes == stack.nbytes - spared
        assert torch.equal(
            joined.operand.select(1).decode(slice(3, 50)),
            matrices[1].dequantize(torch.float32)[3:50],
        )
    else:
        assert joined is stack
    for index, matrix in enumerate(matrices):
        found = joined.select(index).dequantize(torch.float32)
        assert torch.equal(found, matrix.dequantize(torch.float32))
    if isinstance(matrices[0], ShiftedWeight) and matrices[0].order is not None:
        # columns that happen to be in order beside others that are not
        own = matrices[0]
        moved = ShiftedWeight(own.inner, scale=own.scale, shift=own.shift)
        joined = join_stack(StoredStack([moved, own]), torch.device("cpu"))
        assert joined.operand is not None
        for index, matrix in enumerate((moved, own)):
            decoded = joined.operand.select(index).decode(slice(0, 96))
            assert torch.equal(decoded, matrix.dequantize(torch.float32))
    other = StoredStack([matrices[0], PlainWeight(torch.ones(96, 128))])
    assert isinstance(join_stack(other, torch.device("cpu")), StoredStack)


@pytest.mark.parametrize("name", ["fp8 per block", "modelopt nvfp4", "bitsandbytes nf4"])
def test_what_is_stored_moves_with_its_module_and_is_not_cast(name: str, tmp_path: Path) -> None:
    write_matrix(name, tmp_path, 64, 64)
    weight = read_matrix(tmp_path)
    before = weight.dequantize(torch.float32)
    module = torch.nn.Sequential(weight).to(torch.bfloat16)
    assert torch.equal(weight.dequantize(torch.float32), before)
    module.to("meta")
    assert weight.device.type == "meta"


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
@pytest.mark.parametrize("name", [*IN_BLOCKS, "compressed nvfp4", "modelopt nvfp4",
                                  "compressed mxfp4", "quark mxfp4"])  # fmt: skip
def test_kernels_have_the_same_numbers(name: str, tmp_path: Path) -> None:
    whole = write_matrix(name, tmp_path, 264, 256)
    packed = pack_weight(read_matrix(tmp_path))
    inner = packed.inner if isinstance(packed, ShiftedWeight) else packed
    assert isinstance(inner, PackedWeight)
    # zero points are in the packing, but for eight bits and for floats
    shift = getattr(packed, "shift", None)
    assert shift is None or inner.packing.bits == 8 or name == "torchao int4"
    # the factor of a row or of the matrix comes last
    rounding = 3e-7 if name == "bitsandbytes int8" or "nvfp4" in name else 0
    torch.testing.assert_close(packed.dequantize(torch.float32), whole, rtol=rounding, atol=0)
    x = torch.randn(3, 256)
    exact = x @ whole.T
    assert (packed.matmul(x) - exact).norm() < 0.01 * exact.norm()


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
def test_nvfp4_that_blocks_cannot_hold_stays_as_it_is(tmp_path: Path) -> None:
    write_matrix("modelopt nvfp4", tmp_path / "cut", 40, 96)
    assert isinstance(pack_weight(read_matrix(tmp_path / "cut")), FloatWeight)
    write_matrix("modelopt nvfp4", tmp_path / "whole", 40, 128)
    for scale in (-1.0, torch.nan):
        weight = read_matrix(tmp_path / "whole")
        assert isinstance(weight, FloatWeight)
        weight.operand.scales[3, 2] = scale
        assert isinstance(pack_weight(weight), FloatWeight)


@pytest.mark.parametrize("name", ["modelopt nvfp4", "modelopt fp8"])
def test_model_optimizer_keeps_its_settings_beside(name: str, tmp_path: Path) -> None:
    whole = write_matrix(name, tmp_path, 64, 96)
    (tmp_path / "config.json").write_text("{}")
    said = {"producer": {"name": "modelopt"}, "quantization": KINDS[name].config}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}')
    with pytest.raises(ConfigError, match="quant_algo"):
        open_checkpoint(tmp_path)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name", KINDS)
def test_a_model_generates_what_its_numbers_do(name: str, tmp_path: Path) -> None:
    source = tiny.save(MODEL, tmp_path / "source", layout="hf")
    numbers = quantize_directory(source, name, tmp_path / "q", tmp_path / "p")
    assert len(numbers) == 14
    check_same_tokens(tmp_path)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize(
    "name", ["fp8 per block", "gptq zeros ordered", "awq", "compressed int8", "bitnet"]
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "deepseek_v3", "phi3", "bitnet"])
def test_other_families(family: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    if family not in {"qwen2", "phi3", "bitnet"}:
        sizes["moe_intermediate_size"] = 32
    if family == "deepseek_v3":
        sizes |= {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 24, "v_head_dim": 32,
                  "qk_rope_head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 8,
                  "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                  "first_k_dense_replace": 1}  # fmt: skip
        # fused latents have 40 rows, which words of eight and groups of 32 columns both divide
    if family == "qwen3_moe":
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    save_reference(family, tmp_path / "source", seed=3, changes=sizes)
    quantize_directory(tmp_path / "source", name, tmp_path / "q", tmp_path / "p")
    check_same_tokens(tmp_path)


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name", ["compressed int4", "compressed fp8", "bitsandbytes nf4"])
def test_experts_of_llama4_one_by_one(name: str, tmp_path: Path) -> None:
    """Quantizers take them apart, as their stacks are no linear layers."""
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "intermediate_size_mlp": 160}
    sizes |= {"head_dim": 16, "num_local_experts": 4, "interleave_moe_layer_step": 2}
    save_reference("llama4_text", tmp_path / "source", seed=3, changes=sizes)
    take_experts_apart(tmp_path / "source", "llm-compressor")
    numbers = quantize_directory(tmp_path / "source", name, tmp_path / "q", tmp_path / "p")
    assert sum(".experts." in key for key in numbers) == 12
    check_same_tokens(tmp_path)


def check_same_tokens(directory: Path) -> None:
    networks = [load(str(directory / name), device=CPU, dtype="float32").module for name in "qp"]
    labs = [Lab(network) for network in networks]
    answers = []
    for lab in labs:
        asked = [lab.ask(prompt, max_tokens=6) for prompt in ([1, 5, 9, 2, 40], list(range(30)))]
        lab.run()
        answers.append([lab.answer(request) for request in asked])
    ids = torch.tensor([range(30)])
    with torch.inference_mode():
        loss = sensitivity(networks[1], lambda network: network.forward_sequences(ids)[0])
    for (tokens, logits), (expected, reference) in zip(*answers, strict=True):
        if tokens == expected:
            assert_as_right(logits, reference, loss)
        else:  # two scores that float32 does not tell apart, and what follows is another text
            told = 1 + next(at for at, token in enumerate(tokens) if token != expected[at])
            assert_as_right(logits[:told], reference[:told], loss)
            assert_greedy(tokens[:told], reference[:told], loss)


# What a file may hold or not, and the first tensor of each kind, whose shape the plan checks.
OPTIONAL = {
    "g_idx", "weight_g_idx", "weight_zero_point", "weight_format", "_weight_zero_point",
}  # fmt: skip
FIRST = {"weight", "qweight", "weight_packed", "_weight_qdata"}
UNREAD = {"weight_format", "input_scale", "activation_scale"}


@pytest.mark.parametrize("name", KINDS)
def test_each_part_that_is_missing_or_of_another_shape_is_told(name: str, tmp_path: Path) -> None:
    write_matrix(name, tmp_path, 64, 96)
    whole = load_file(tmp_path / "model.safetensors")
    for key in whole:
        end = key.removeprefix("a.")
        if end in FIRST | UNREAD:
            continue
        longer = torch.cat((whole[key].reshape(-1), whole[key].reshape(-1)))
        for changed in ({}, {key: longer}, {key: whole[key][None, None, None]}):
            if not changed and end in OPTIONAL:
                continue
            left = {n: tensor for n, tensor in whole.items() if n != key}
            save_file(left | changed, tmp_path / "model.safetensors")
            with pytest.raises((CheckpointError, ConfigError)) as caught:
                open_checkpoint(tmp_path)
            assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gptq", {"checkpoint_format": "marlin"}),
        ("gptq odd groups", {"group_size": "many"}),
        ("gptq", {"quant_method": "aqlm"}),
        ("gptq", {"quant_method": ["gptq"]}),
        ("bitnet", {"linear_class": "hadamard"}),
        ("bitnet", {"use_rms_norm": True}),
        ("bitnet", {"quantization_mode": "online"}),
        ("awq", {"version": "gemv"}),
        ("awq", {"bits": 3}),
        ("fp8 per block", {"weight_block_size": [0, 128]}),
        ("fp8 per block", {"weight_block_size": 128}),
        ("compressed int4", {"format": "marlin-24"}),
        ("compressed int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}),
        ("compressed int4", {"transform_config": {"config_groups": {"u": {}}}}),
        ("compressed fp8", {"config_groups": 3}),
        ("compressed int4", {"config_groups": {"g": {"format": "marlin-24"}}}),
        ("auto-round", {"packing_format": "auto_round:fake"}),
        ("auto-round 0.3", {"backend": "hpu"}),
        ("auto-round mxfp4", {"data_type": "mx_int"}),
        ("auto-round mxfp4", {"rotation_config": {"hadamard_type": "hadamard"}}),
        ("modelopt nvfp4", {"quant_algo": "W4A8_AWQ"}),
        ("mlx 4 bits", {"mode": "mxfp6"}),
        ("mlx 4 bits", {"bits": 7}),
        ("mlx 4 bits", {"bits": 8}),
        ("mlx 4 bits", {"group_size": 0}),
        ("mlx 4 bits", {"group_size": 64}),
        ("mlx 4 bits", {"a": {"bits": 3}}),
    ],
)
def test_settings_that_are_not_supported_are_told(
    name: str, change: dict[str, object], tmp_path: Path
) -> None:
    write_matrix(name, tmp_path, 64, 96)
    config = {"quantization_config": {**KINDS[name].config, **change}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BlazrError) as caught:
        open_checkpoint(tmp_path)
    assert len(str(caught.value)) < 600


STATES = [b"", b"[]", b"{", b'{"shape": [1e9, 2], "blocksize": 64}', b"[" * 9000,
          b'{"shape": [64, 96], "blocksize": 0}']  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_damaged_state_is_told(state: bytes, tmp_path: Path) -> None:
    write_matrix("bitsandbytes nf4", tmp_path, 64, 96)
    tensors = load_file(tmp_path / "model.safetensors")
    key = "a.weight.quant_state.bitsandbytes__nf4"
    tensors[key] = torch.tensor(list(state), dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_that_end_within_a_byte(rows: int, tmp_path: Path) -> None:
    """Two codes of NF4 are a byte, also where the second is the next row's."""
    parts, whole = nf4(torch.randn(rows, 63), block=63)
    save_file({f"a.{end}": part for end, part in parts.items()}, tmp_path / "model.safetensors")
    config = {"quantization_config": KINDS["bitsandbytes nf4"].config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)


def test_a_group_that_does_not_exist_is_told(tmp_path: Path) -> None:
    for name, key in (
        ("gptq ordered", "a.g_idx"),
        ("compressed int4 ordered", "a.weight_g_idx"),
        ("compressed int8 ordered", "a.weight_g_idx"),
    ):
        write_matrix(name, tmp_path, 64, 96)
        tensors = load_file(tmp_path / "model.safetensors")
        tensors[key][5] = 99
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_matrix_of_floats_has_the_blocks_that_its_scales_fit(
    order: str, tmp_path: Path
) -> None:
    weights: dict[str, dict[str, object]] = {
        "a": {"num_bits": 8, "strategy": "block", "block_structure": [16, 32]},
        "b": {"num_bits": 8, "strategy": "block", "block_structure": [32, 32]},
    }
    groups = {name: {"targets": [f"re:.*{name}"], "weights": weights[name]} for name in order}
    config = {**KINDS["compressed fp8"].config, "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    encoded_by = {"a": (16, 32), "b": (32, 32), "c": (1, 96)}
    written = {name: fp8(torch.randn(64, 96), block=block) for name, block in encoded_by.items()}
    tensors = {
        f"{n}.{end}": part for n, (parts, _) in written.items() for end, part in parts.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for name, (_, whole) in written.items():
        assert torch.equal(
            reading.read_plain(checkpoint.tensors[f"{name}.weight"], checkpoint), whole
        )


def test_matrices_of_gptq_have_widths_and_groups_of_their_own(tmp_path: Path) -> None:
    """As GPTQModel's "dynamic" settings give them, whose patterns need not be read."""
    dynamic = {"+:.*b": {"bits": 8, "group_size": 64}, "+:.*c": {"bits": 3}}
    config = {**KINDS["gptq"].config, "dynamic": dynamic}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    encoders = {
        "a": KINDS["gptq"].encode,
        "b": lambda weight: gptq(weight, bits=8, size=64, zeros=True, index=False),
        "c": KINDS["gptq 3 bits ordered"].encode,
    }
    written = {name: encode(torch.randn(96, 128)) for name, encode in encoders.items()}
    tensors = {
        f"{n}.{end}": part for n, (parts, _) in written.items() for end, part in parts.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    reference = with_plain_matrices(
        SafetensorsFiles([tmp_path / "model.safetensors"]), {"quantization_config": config}
    )
    for name, (_, whole) in written.items():
        info = checkpoint.tensors[f"{name}.weight"]
        read = reading.read_matrix(info, checkpoint, torch.float32, torch.device("cpu"))
        assert torch.equal(read.dequantize(torch.float32), whole)
        assert torch.equal(reference.read(info.name).float(), whole)


def test_widths_of_torchao_are_those_of_the_module(tmp_path: Path) -> None:
    """Bytes of four bits become blocks of four, unless a pattern may give them others."""
    torch.manual_seed(run_seed())
    narrow, wide = (
        {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": {"_data": f"int{bits}"}}}
        for bits in (4, 8)
    )
    four, eight = KINDS["torchao intx"].encode, KINDS["torchao int8"].encode
    written = {"a": four(torch.randn(8, 64)), "b": eight(torch.randn(8, 64))}
    tensors = {
        f"{n}.{end}": part for n, (parts, _) in written.items() for end, part in parts.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    for names, kinds in (
        ({"_default": narrow, "b": wide}, ("Q4_0", "Q8_0")),
        ({"_default": narrow, "re:b": wide}, ("Q8_0", "Q8_0")),
        ({"a": narrow}, ("Q4_0", "Q8_0")),
    ):
        data = {"_type": "FqnToConfig", "_data": {"fqn_to_config": names}}
        config = {"quant_method": "torchao", "quant_type": {"default": data}}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        checkpoint = open_checkpoint(tmp_path)
        for (name, (_, whole)), kind in zip(written.items(), kinds, strict=True):
            info = checkpoint.tensors[f"{name}.weight"]
            read = reading.read_matrix(info, checkpoint, torch.float32, torch.device("cpu"))
            assert torch.equal(read.dequantize(torch.float32), whole)
            blocks = read.inner if isinstance(read, ShiftedWeight) else read
            assert isinstance(blocks, GgufWeight)
            assert blocks.kind.name == kind


def test_numbers_wider_than_their_settings_say_are_told(tmp_path: Path) -> None:
    write_matrix("torchao int8", tmp_path, 8, 64)
    config = {"quantization_config": KINDS["torchao intx"].config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="width"):
        read_matrix(tmp_path)


def test_scales_that_torchao_has_for_activations_are_not_needed(tmp_path: Path) -> None:
    whole = write_matrix("torchao int8", tmp_path, 8, 64)
    tensors = load_file(tmp_path / "model.safetensors")
    for end in ("act_quant_scale", "act_quant_zero_point"):
        tensors[f"a._weight_{end}"] = torch.ones(1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)


@pytest.mark.parametrize("end", ["act_pre_scale", "per_tensor_scale", "scale_and_zero"])
def test_kinds_of_torchao_that_are_not_read_are_told(end: str, tmp_path: Path) -> None:
    write_matrix("torchao int4", tmp_path, 8, 64)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"a._weight_{end}": torch.ones(64)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"torchao(.|\n)*{end}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"), [("gptq", "quantize_config.json"), ("awq", "quant_config.json")]
)
def test_older_files_keep_their_settings_beside(name: str, file: str, tmp_path: Path) -> None:
    whole = write_matrix(name, tmp_path, 64, 96)
    (tmp_path / "config.json").write_text("{}")
    settings = {k: v for k, v in KINDS[name].config.items() if k != "quant_method"}
    (tmp_path / file).write_text(json.dumps(settings))
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)
    (tmp_path / file).unlink()  # names and shapes tell as much
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)


def test_settings_may_lie_in_those_of_the_language_model(tmp_path: Path) -> None:
    """As in Kimi K2.5's config.json."""
    whole = write_matrix("compressed int4", tmp_path, 64, 96)
    config = {"text_config": {"quantization_config": KINDS["compressed int4"].config}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(read_matrix(tmp_path).dequantize(torch.float32), whole)


@pytest.mark.usefixtures("reference_ops")
def test_biases_of_zeros_are_left_where_no_layer_has_one(tmp_path: Path) -> None:
    source = tiny.save(MODEL, tmp_path / "source", layout="hf")
    quantize_directory(source, "gptq", tmp_path / "q", tmp_path / "p")
    path = tmp_path / "q" / "model.safetensors"
    tensors = load_file(path)
    bias = "model.layers.0.self_attn.o_proj.bias"
    save_file(tensors | {bias: torch.zeros(64)}, path)
    check_same_tokens(tmp_path)
    save_file(tensors | {bias: torch.ones(64)}, path)
    with pytest.raises(CheckpointError, match="left over"):
        plan_model(str(tmp_path / "q"))


@pytest.mark.parametrize("name", ["fp8 per block", "bitsandbytes nf4", "gptq", "gptq odd groups"])
def test_floats_and_tables_are_plain_where_there_is_room(name: str, tmp_path: Path) -> None:
    source = tiny.save(MODEL, tmp_path / "source", layout="hf")
    quantize_directory(source, name, tmp_path / "q", tmp_path / "p")
    planned = plan_model(str(tmp_path / "q"))
    storage = choose_storage(planned.plan, planned.module, QuantizePolicy())
    assert len(storage) == 14
    numbers = sum(torch.Size(step.shape).numel() for step in planned.plan.steps if "_proj" in
                  step.parameter)  # fmt: skip
    assert (
        dequantize_if_room(planned.plan, storage, torch.bfloat16, room=2 * numbers - 1) == storage
    )
    opened = dequantize_if_room(planned.plan, storage, torch.bfloat16, room=2 * numbers)
    assert len(opened) == (14 if name.startswith("gptq") else 0)


@pytest.mark.parametrize("name", ["awq", "fp8 per block"])
def test_another_quantization_can_be_asked_for(name: str, tmp_path: Path) -> None:
    source = tiny.save(MODEL, tmp_path / "source", layout="hf")
    quantize_directory(source, name, tmp_path / "q", tmp_path / "p")
    weights = []
    for part in "qp":
        loaded = load(str(tmp_path / part), device=CPU, dtype="float32", quantize="q8_0").module
        weights.append(loaded.layers[1].mixer.q_proj.weight)
    ours, theirs = (weight.dequantize(torch.float32) for weight in weights)
    assert torch.equal(ours, theirs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
SETTINGS = (
    *("quant_method", "bits", "group_size", "checkpoint_format", "version", "w_bit", "format"),
    *("weight_block_size", "config_groups", "sparsity_config", "transform_config", "q_group_size"),
)


@pytest.mark.parametrize("name", ["gptq odd groups", "awq", "fp8 per block", "compressed fp8"])
@given(changes=st.dictionaries(st.sampled_from(SETTINGS), JSON, min_size=1, max_size=2))
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_settings_are_told_or_do_no_harm(
    name: str, changes: dict[str, object], tmp_path: Path
) -> None:
    write_matrix(name, tmp_path, 64, 96)
    config = {"quantization_config": {**KINDS[name].config, **changes}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = ""
    try:
        checkpoint = open_checkpoint(tmp_path)
    except BlazrError as error:
        message = str(error)
    else:
        if isinstance(checkpoint.tensors.get("a.weight"), QuantizedInfo):
            assert read_matrix(tmp_path, as_stored=True).dequantize(torch.float32).numel()
    assert len(message) < 700
