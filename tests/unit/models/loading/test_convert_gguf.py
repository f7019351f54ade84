"""Writing GGUF files: what is kept, what is packed, and what other programs read in them."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from torch import nn

from blazr.cli.convert import convert as command
from blazr.core.errors import CheckpointError, ConfigError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.llm import LLM
from blazr.models.checkpoint.gguf import read_header
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.checkpoint.write import Entry, gguf_writer
from blazr.models.loading import convert as module
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support import ggufs, tiny
from tests.support.tiny import Tiny
from tests.support.tolerances import assert_same_network

CPU = resolve_device("cpu")
GOLDEN = Path(__file__).parents[3] / "golden"
LLAMA = Tiny(layers=("StandardTransformer",), hidden_size=128, intermediate_size=256)
IDS = torch.tensor([[3, 4, 5, 50, 7, 11, 2, 30]])


def network(path: Path, quantize: str | None = None) -> nn.Module:
    return load(str(path), device=CPU, dtype="float32", quantize=quantize).module


def logits(path: Path, quantize: str | None = None) -> torch.Tensor:
    with torch.inference_mode():
        return network(path, quantize).forward_sequences(IDS)


def read(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {each.name: each for each in gguf.GGUFReader(path).tensors}


def test_other_programs_read_the_same_numbers(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    seen: list[tuple[int, int]] = []
    path = tmp_path / "b.gguf"
    made = convert(str(source), path, progress=lambda *now: seen.append(now))
    stored, found = load_file(source / "model.safetensors"), read(path)
    assert made.nbytes == sum(each.n_bytes for each in found.values())
    assert seen[-1] == (made.nbytes, made.nbytes)
    down = stored["model.layers.0.mlp.down_proj.weight"]
    assert np.array_equal(found["blk.0.ffn_down.weight"].data, down.numpy())
    heads = stored["model.layers.0.self_attn.k_proj.weight"].unflatten(0, (2, 2, -1))
    moved = heads.transpose(1, 2).flatten(0, 2)  # pairs of channels side by side
    assert np.array_equal(found["blk.0.attn_k.weight"].data, moved.numpy())


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0", "q4_k", "int8", "int4", "mixer=q4_0"])
def test_it_loads_as_if_it_were_packed_then(quantize: str, tmp_path: Path) -> None:
    model = Tiny(layers=("StandardTransformer",), hidden_size=256, intermediate_size=256)
    source = tiny.save(model, tmp_path / "a", layout="hf")
    made = convert(str(source), tmp_path / "b.gguf", quantize=quantize)
    assert torch.equal(logits(made.path), logits(source, quantize))
    packed = {name: each for name, each in read(made.path).items() if each.tensor_type > 1}
    assert len(packed) == made.num_quantized > 0
    up = load_file(source / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    if "mixer" not in quantize:
        tensor = packed["blk.0.ffn_up.weight"]
        error = np.abs(dequantize(tensor.data, tensor.tensor_type) - up.numpy()).max()
        assert error < 0.2 * up.abs().max().item()


def test_matrices_that_come_packed_stay_what_they_are(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b", quantize="q4_0,embedding=none")
    made = convert(str(tmp_path / "b"), tmp_path / "c.gguf")
    kinds = {name: info.dtype for name, info in read_header(made.path).tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == kinds["blk.0.ffn_down.weight"] == "Q4_0"
    assert kinds["output.weight"] == "Q8_0"
    assert kinds["token_embd.weight"] == kinds["output_norm.weight"] == "F32"
    assert_same_network(network(made.path), network(tmp_path / "b"), IDS)


def test_four_bit_experts_stay_what_they_are(tmp_path: Path) -> None:
    hidden, inner, experts = 64, 32, 3
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.2
        for name, shape in gpt_oss_shapes(hidden, inner, experts).items()
    }
    for name, rows, columns in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
        at, blocks = f"model.layers.0.mlp.experts.{name}_proj", columns // 32
        codes = torch.randint(0, 256, (experts, rows, blocks, 16), generator=generator)
        exponents = torch.randint(118, 126, (experts, rows, blocks), generator=generator)
        tensors |= {f"{at}_blocks": codes.byte(), f"{at}_scales": exponents.byte()}
    config = {
        "model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "num_local_experts": experts, "num_experts_per_tok": 2, "vocab_size": 61,
        "sliding_window": 8, "layer_types": ["sliding_attention"],
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    (tmp_path / "a").mkdir()
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    made = convert(str(tmp_path / "a"), tmp_path / "b.gguf", quantize="experts=q8_0")
    kinds = {name: info.dtype for name, info in read_header(made.path).tensors.items()}
    assert made.num_quantized == 3
    assert {kinds[f"blk.0.ffn_{name}_exps.weight"] for name in ("gate", "up", "down")} == {"MXFP4"}
    assert_same_network(network(made.path), network(tmp_path / "a"), IDS)


def gpt_oss_shapes(hidden: int, inner: int, experts: int) -> dict[str, tuple[int, ...]]:
    at = "model.layers.0."
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (61, hidden),
        "lm_head.weight": (61, hidden),
        "model.norm.weight": (hidden,),
        at + "input_layernorm.weight": (hidden,),
        at + "post_attention_layernorm.weight": (hidden,),
        at + "self_attn.sinks": (2,),
        at + "mlp.router.weight": (experts, hidden),
        at + "mlp.router.bias": (experts,),
        at + "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
        at + "mlp.experts.down_proj_bias": (experts, hidden),
    }
    for name, rows, columns in (
        ("q", 64, hidden),
        ("k", 32, hidden),
        ("v", 32, hidden),
        ("o", 64, 64),
    ):
        found[f"{at}self_attn.{name}_proj.weight"] = (rows, columns)
        found[f"{at}self_attn.{name}_proj.bias"] = (rows,)
    return found


@pytest.mark.parametrize(
    ("quantize", "dtype"), [(None, "auto"), ("q4_0", "auto"), (None, "float16")]
)
def test_a_gguf_file_once_more(quantize: str | None, dtype: str, tmp_path: Path) -> None:
    source = GOLDEN / "gguf" / "stories260K-q8_0.gguf"
    made = convert(str(source), tmp_path / "b.gguf", quantize=quantize, dtype=dtype)
    before, after = read_header(source), read_header(made.path)
    assert before.tensors.keys() == after.tensors.keys()
    assert before.metadata.keys() <= after.metadata.keys()
    tokens = "tokenizer.ggml.tokens"
    assert before.metadata[tokens] == after.metadata[tokens]
    kinds = {info.dtype for info in after.tensors.values()}
    if dtype == "auto":
        assert torch.equal(logits(made.path), logits(source, quantize))
        assert ("Q4_0" in kinds) == (quantize == "q4_0")
    else:
        assert kinds == {"F32", "F16"}


def test_a_file_of_another_alignment_gets_the_usual_one(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    usual = open_checkpoint(convert(str(source), tmp_path / "b.gguf").path)
    tensors = {name: usual.read(name) for name in usual.tensors}
    path = tmp_path / "c.gguf"
    ggufs.write(path, tensors, {**usual.metadata, "general.alignment": 128})
    made = convert(str(path), tmp_path / "d.gguf", quantize="q8_0")
    assert torch.equal(logits(made.path), logits(path, "q8_0"))


def test_a_model_without_an_architecture_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no architecture") as caught:
        convert("nano", tmp_path / "b.gguf")
    assert "directory" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_behind_after_an_error(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), tmp_path / "b.gguf", progress=fail)
    (tmp_path / "c.gguf").write_text("mine")
    with pytest.raises(ConfigError, match="in use"):
        convert(str(source), tmp_path / "c.gguf")
    assert {each.name for each in tmp_path.iterdir()} == {"a", "c.gguf"}
    assert (tmp_path / "c.gguf").read_text() == "mine"


def test_two_do_not_write_to_one_file(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    alone, shared = tmp_path / "alone.gguf", tmp_path / "shared.gguf"
    convert(str(source), alone)
    refusals = []

    def convert_too(done: int, total: int) -> None:
        with pytest.raises(ConfigError, match="another process") as refused:
            convert(str(source), shared, quantize="q8_0")
        refusals.append(refused)

    convert(str(source), shared, progress=convert_too)
    assert refusals
    assert shared.read_bytes() == alone.read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"a", "alone.gguf", "shared.gguf"}


def test_what_is_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    plan = module.plan_gguf

    def plan_slowly(*given: object) -> object:
        (tmp_path / "b.gguf").write_text("theirs")
        return plan(*given)

    monkeypatch.setattr(module, "plan_gguf", plan_slowly)
    with pytest.raises(ConfigError, match="in use"):
        convert(str(source), tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_text() == "theirs"
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b.gguf"}


def test_what_a_crash_has_left_is_replaced(tmp_path: Path) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    convert(str(source), tmp_path / "b.gguf")
    (tmp_path / "c.gguf.partial").write_bytes(bytes(10_000_001))
    convert(str(source), tmp_path / "c.gguf")
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b.gguf", "c.gguf"}


def test_a_full_disk_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.save(LLAMA, tmp_path / "a", layout="hf")
    monkeypatch.setattr(module, "_SPARE_BYTES", 2**60)
    with pytest.raises(module.CapacityError):
        convert(str(source), tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()


def test_the_command_writes_the_vocabulary_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Tiny(layers=("StandardTransformer",), vocab_size=512)
    source = tiny.save(model, tmp_path / "a", layout="hf")
    for file in (GOLDEN / "tokenizers" / "stories260k").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    command(str(source), tmp_path / "b.gguf", as_json=True)
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "b.gguf")
    with LLM(str(source), device="cpu") as one, LLM(str(tmp_path / "b.gguf"), device="cpu") as two:
        text = "Once upon a time, there were 3 naïve bears"
        assert two.tokenizer.encode(text) == one.tokenizer.encode(text)
        assert two.tokenizer.bos_id == one.tokenizer.bos_id
        greedy = SamplingParams(max_tokens=16, temperature=0)
        assert two.generate(text, greedy)[0].text == one.generate(text, greedy)[0].text


def test_every_kind_of_value_is_read_back(tmp_path: Path) -> None:
    values: dict[str, object] = {
        "a": 7, "b": -3, "c": 2**40, "d": 0.5, "e": True, "f": "ü", "g": ["x", "", "ß"],
        "h": [1, 0, 2], "i": [-1, 2**40], "j": [0.25, 1.5], "k": [True, False],
        "l": memoryview(array("f", [1, 2])), "m": 2**32 - 1, "n": 2**64 - 1, "o": 1e300,
        "p": float("inf"),
    }  # fmt: skip
    path = tmp_path / "a.gguf"
    entries = {"x": Entry("F32", (3, 2)), "y": Entry("Q8_0", (2, 64)), "z": Entry("I8", (5,))}
    with gguf_writer(path, values, entries) as writer:
        writer.write("x", torch.arange(4).float().view(2, 2))
        writer.write("x", torch.arange(2).float())
        writer.write("y", torch.zeros((2, 68), dtype=torch.uint8))
        writer.write("z", torch.ones(5, dtype=torch.int8))
    header, theirs = read_header(path), gguf.GGUFReader(path)
    for key, value in values.items():
        found = header.metadata[key]
        plain = list(found) if isinstance(found, memoryview) else found
        assert plain == (list(value) if isinstance(value, memoryview) else value)
        assert theirs.fields[key].contents() == plain
    assert {name: info.shape for name, info in header.tensors.items()} == {
        "x": (3, 2), "y": (2, 64), "z": (5,),
    }  # fmt: skip
    assert read(path)["x"].data.tolist() == [[0, 1], [2, 3], [0, 1]]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="damaged"):
        read_header(path)
