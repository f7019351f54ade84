"""The reference that verify judges by, held to truths that are neither it nor the network."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from blazr.bench.reference import REFERENCES, SECTIONS
from blazr.bench.reference.blocks import OLLAMA_MXFP4, TYPES, numbers
from blazr.bench.reference.gguf import GgufFiles
from blazr.bench.reference.model import ReferenceModel
from blazr.bench.reference.open import open_reference
from blazr.bench.reference.quantized import with_plain_matrices
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.models.families import FAMILIES
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support import ggufs, quantized, tiny
from tests.support.networks import VOCAB
from tests.support.own_families import own_families
from tests.support.references import (
    CASES,
    LLAMA4_APART,
    reference_logits,
    save_reference,
    take_experts_apart,
)

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
OXIDIZR = sorted(path.name for path in (GOLDEN / "oxidizr").iterdir() if path.is_dir())
GGUF = json.loads((GOLDEN / "gguf" / "converted" / "expected.json").read_text())
# One of each kind of mixer and feed-forward; the others, settings of these, are slow together.
KINDS = (
    "llama rope",
    "deepseek_v3",
    "deepseek_v2 fills up",
    "qwen3_next",
    "zamba2",
    "gemma3n_text",
    "gemma4_text",
)
_KIND, _CHANGES = CASES["deepseek_v2"]
# Six experts a token, of which the best groups have four.
MORE_CASES = {"deepseek_v2 fills up": (_KIND, _CHANGES | {"num_experts_per_tok": 6})}
IDS = torch.randint(3, VOCAB, (30,), generator=torch.Generator().manual_seed(0)).tolist()
ENTRIES = "model.safetensors", "config.json"


def scores(model: ReferenceModel, ids: list[int]) -> Tensor:
    embedded = model.embed(torch.tensor(ids))
    x = embedded if model.split is None else model.split(embedded)
    for layer in model.layers:
        x = layer(x, embedded)
    return model.logits(x)


def converted(name: str, directory: Path) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(lzma.decompress((GOLDEN / f"gguf/converted/{name}.gguf.xz").read_bytes()))
    return path


def opened(directory: Path) -> ReferenceModel:
    weights, config = (directory / name for name in ENTRIES)
    return open_reference([weights], config if config.exists() else None)


@pytest.mark.parametrize("name", OXIDIZR)
def test_the_format_s_own_logits(name: str) -> None:
    expected = np.load(GOLDEN / "oxidizr" / name / "expected.npz")
    found = scores(opened(GOLDEN / "oxidizr" / name), expected["token_ids"].tolist())
    np.testing.assert_allclose(found.numpy(), expected["logits"], rtol=0, atol=1e-10)


def test_attention_of_a_window_in_oxidizr_s_format(tmp_path: Path) -> None:
    model = tiny.Tiny(layers=("MlaWithMlp", "StandardTransformer"))
    found = {}
    for window in (None, 4):
        changes = {"sliding_window": window}
        folder = tiny.save(model, tmp_path / str(window), seed=1, changes=changes)
        with torch.inference_mode():
            network = load(str(folder), device=resolve_device("cpu"), dtype="float32").module
            expected = network.double().forward_sequences(torch.arange(20, 32)[None])[0]
        found[window] = scores(opened(folder), list(range(20, 32)))
        bound = 2e-5 * expected.abs().max().item()  # its softmax and logits are float32
        torch.testing.assert_close(found[window], expected.double(), rtol=0, atol=bound)
    assert torch.allclose(found[4][:4], found[None][:4])
    assert not torch.allclose(found[4][8:], found[None][8:])


def test_a_token_that_chooses_no_expert_has_the_shared_one_in_oxidizr_s_format(
    tmp_path: Path,
) -> None:
    """The weights of no experts cannot be made to sum to 1; all scores were NaN."""
    tiny.save(tiny.Tiny(layers=("MlaWithMoe",), experts_per_tok=0), tmp_path, seed=1)
    ids = list(range(20, 32))
    with torch.inference_mode():
        network = load(str(tmp_path), device=resolve_device("cpu"), dtype="float32").module
        expected = network.double().forward_sequences(torch.tensor([ids]))[0].double()
    bound = 2e-5 * expected.abs().max().item()  # its softmax and logits are float32
    torch.testing.assert_close(scores(opened(tmp_path), ids), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", GGUF["logits"])
def test_what_llama_cpp_s_converter_writes(name: str, tmp_path: Path) -> None:
    path = converted(name, tmp_path)
    expected = torch.tensor(GGUF["logits"][name]).double()  # transformers' float32
    found = scores(open_reference([path], None), GGUF["tokens"])[-len(expected) :]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_shorter_values_in_one_matrix_with_keys(tmp_path: Path) -> None:
    apart = converted("mimo2", tmp_path)
    source = GgufFiles([apart])
    tensors = {name: source.read(name).float() for name in source.names}
    for layer in range(3):
        parts = [tensors.pop(f"blk.{layer}.attn_{name}.weight") for name in "qkv"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = torch.cat(parts)
    together = ggufs.write(tmp_path / "together.gguf", tensors, source.metadata)
    one, several = (scores(open_reference([path], None), IDS) for path in (together, apart))
    torch.testing.assert_close(one, several, rtol=0, atol=1e-12)


def test_a_gguf_model_in_several_files(tmp_path: Path) -> None:
    path = converted("lfm2", tmp_path)
    whole = GgufFiles([path])
    said = {key: value for key, value in whole.metadata.items() if not key.startswith("tok")}
    names = sorted(whole.names)
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part, kept, metadata in zip(parts, (names[::2], names[1::2]), (said, {}), strict=True):
        ggufs.write(part, {name: whole.read(name).float() for name in kept}, metadata)
    one, several = (scores(open_reference(files, None), IDS) for files in ([path], parts))
    torch.testing.assert_close(several, one, rtol=0, atol=0)


def test_what_the_trainer_noted_says_how_many_heads_there_are(tmp_path: Path) -> None:
    tiny.save(tiny.Tiny(layers=("StandardTransformer",)), tmp_path, layout="bare", seed=1)
    notes = {"hidden_size": 32, "num_layers": 1, "vocab_size": 61, "num_heads": 4}
    path, ids = tmp_path / "training_config.json", list(range(20, 32))
    path.write_text(json.dumps({"config": {"model": notes}}))
    network = load(str(tmp_path), device=resolve_device("cpu"), dtype="float32").module
    with torch.inference_mode():
        expected = network.double().forward_sequences(torch.tensor([ids]))[0].double()
    bound = 2e-5 * expected.abs().max().item()  # its softmax and logits are float32
    torch.testing.assert_close(scores(opened(tmp_path), ids), expected, rtol=0, atol=bound)
    path.write_text(json.dumps({"config": {"model": notes | {"num_layers": 2}}}))
    assert not torch.allclose(scores(opened(tmp_path), ids), expected, atol=bound)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in KINDS else pytest.mark.slow)
        for name in CASES | MORE_CASES
    ],
)
def test_transformers_in_float64(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    kind, changes = (CASES | MORE_CASES)[name]
    theirs = save_reference(kind, tmp_path, seed=1, changes=changes)
    if "experts" in repr(theirs):
        theirs.set_experts_implementation("eager")
    expected = reference_logits(theirs.double(), IDS).double()
    found = scores(opened(tmp_path), IDS)
    # norms, rotations and softmax are float32 in their float64 models, too
    torch.testing.assert_close(found, expected, rtol=0, atol=4e-6 * expected.abs().max().item())


@pytest.mark.parametrize("layout", LLAMA4_APART)
def test_experts_of_llama4_one_by_one(layout: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    save_reference("llama4_text", tmp_path, seed=1, changes=CASES["llama4_text"][1])
    expected = scores(opened(tmp_path), IDS)
    take_experts_apart(tmp_path, layout)
    torch.testing.assert_close(scores(opened(tmp_path), IDS), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gemma", "gpt2", "mamba2", "opt behind"])
def test_a_model_saved_without_its_head(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    kind, changes = CASES[name]
    theirs = save_reference(
        kind, tmp_path / "whole", changes={**changes, "tie_word_embeddings": True}
    )
    theirs.base_model.save_pretrained(tmp_path / "part")
    found, expected = (scores(opened(tmp_path / each), IDS) for each in ("part", "whole"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", quantized.KINDS)
def test_matrices_that_several_tensors_stand_for(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = quantized.KINDS[name]
    parts, expected = kind.encode(torch.randn(64, 256))
    save_file({f"a.{end}": part for end, part in parts.items()}, tmp_path / ENTRIES[0])
    files = SafetensorsFiles([tmp_path / ENTRIES[0]])
    found = with_plain_matrices(files, {"quantization_config": kind.config}).read("a.weight")
    torch.testing.assert_close(found, expected.double(), rtol=1e-6, atol=1e-6)


# Not F64, nor those of newer files, which the package does not decode.
@pytest.mark.parametrize("number", sorted(TYPES.keys() - {28, 41, 42, OLLAMA_MXFP4}))
def test_blocks_are_those_of_the_gguf_package(number: int) -> None:
    gguf = pytest.importorskip("gguf")
    kind, (_, length, nbytes, _) = gguf.GGMLQuantizationType(number), TYPES[number]
    assert gguf.GGML_QUANT_SIZES[kind] == (length, nbytes)
    data = np.random.default_rng(number).integers(0, 256, (5, nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        found, expected = numbers(number, data), gguf.quants.dequantize(data, kind).astype(float)
    is_number = np.isfinite(expected) & (np.abs(expected) < 1e30)  # some scales are none
    assert is_number.any()
    np.testing.assert_allclose(found[is_number], expected[is_number], rtol=1e-5, atol=1e-30)


def test_every_family_of_a_release_has_one() -> None:
    # verify says of these that nothing independent can judge them, and so of any without a release
    none = {"glm4v", "glm4v_text", "qwen3_vl_moe", "qwen3_vl_moe_text"}
    none |= {"qwen2_audio", "audioflamingo3"}
    written = REFERENCES.keys() | SECTIONS.keys()
    assert written <= set(FAMILIES)
    assert set(FAMILIES) - {"oxidizr", "gguf"} - none - own_families() <= written


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "unheard_of"}, "type 'unheard_of'"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "new"}}, "by 'new'"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "spiral"}}, "RoPE scaling 'spiral'"),
    ],
)
def test_nothing_is_said_of_what_nobody_has_written(
    config: dict[str, object], what: str, tmp_path: Path
) -> None:
    tiny.save(
        tiny.Tiny(layers=("StandardTransformer",)), tmp_path / "m", layout="hf", changes=config
    )
    with pytest.raises(NoReferenceError, match=what):
        opened(tmp_path / "m")
