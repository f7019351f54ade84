"""Packing while loading: layers compute with the numbers that their packed weights stand for."""

from pathlib import Path

import pytest
import torch
from torch import nn

from blazr.models.causal_lm import CausalLM
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.quant.packed import PackedWeight
from blazr.nn.quant.weight import GgufWeight, Weight, stored_weights
from tests.support import tiny
from tests.support.tiny import Tiny
from tests.support.tolerances import assert_same_network

CPU = resolve_device("cpu")
KINDS = (
    "Mamba1",
    "Mamba2",
    "Mamba3",
    "MlaWithMlp",
    "MlaWithMoe",
    "StandardTransformer",
    "GqaWithMoe",
)
IDS = torch.tensor([[1, 5, 9, 2, 40, 33, 7, 7, 60, 0]])


def packed_parts(module: CausalLM, kind: type[Weight] = GgufWeight) -> dict[str, Weight]:
    return {name: each for name, each in module.named_modules() if isinstance(each, kind)}


def unpack(module: CausalLM, kind: type[Weight] = GgufWeight) -> None:
    for name, weight in packed_parts(module, kind).items():
        owner, _, attribute = name.rpartition(".")
        parent = module.get_submodule(owner)
        delattr(parent, attribute)
        plain = weight.dequantize(torch.float32)
        setattr(parent, attribute, nn.Parameter(plain, requires_grad=False))


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_is_as_the_numbers_it_stands_for(kind: str, quantize: str, tmp_path: Path) -> None:
    model = Tiny(layers=(kind, kind), intermediate_size=64, kv_latent=32, q_latent=32)
    path = str(tiny.save(model, tmp_path / "m"))
    packed = load(path, device=CPU, dtype="float32", quantize=quantize).module
    plain = load(path, device=CPU, dtype="float32", quantize=quantize).module
    assert len(packed_parts(packed)) >= 5
    unpack(plain)
    assert not packed_parts(plain)
    assert_same_network(packed, plain, IDS)


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_lose_little_to_rounded_activations(
    kind: str, quantize: str, tmp_path: Path
) -> None:
    model = Tiny(layers=(kind, kind), intermediate_size=64, kv_latent=32, q_latent=32)
    path = str(tiny.save(model, tmp_path / "m"))
    fast = load(path, device=CPU, dtype="float32", quantize=quantize).module
    exact = load(path, device=CPU, dtype="float32", quantize=quantize).module
    assert len(packed_parts(fast, PackedWeight)) >= 5
    assert not packed_parts(fast)
    unpack(exact, PackedWeight)
    with torch.inference_mode():
        found, expected = fast.forward_sequences(IDS), exact.forward_sequences(IDS)
    # a little may choose another expert
    assert 0 < (found - expected).norm() < 0.25 * expected.norm()


@pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())
def test_an_embedding_that_is_the_head_is_packed_once(tmp_path: Path) -> None:
    path = str(tiny.save(Tiny(layers=("Mamba2",), tied=True), tmp_path / "m"))
    module = load(path, device=CPU, dtype="float32", quantize="q8_0").module
    packed = packed_parts(module, PackedWeight)
    vocab, hidden = module.config.vocab_size, module.config.hidden_size
    whole = [name for name, each in packed.items() if each.shape == (vocab, hidden)]
    assert whole == ["embed_tokens.weight"]
    assert not any(each.shape == (vocab, hidden) for each in module.parameters())
    with torch.inference_mode():
        assert torch.isfinite(module.forward_sequences(IDS)).all()


@pytest.mark.usefixtures("reference_ops")
def test_what_is_packed_and_what_is_not(tmp_path: Path) -> None:
    model = Tiny(layers=("MlaWithMoe", "Mamba2"), kv_latent=32)
    module = load(str(tiny.save(model, tmp_path / "m")), device=CPU, quantize="q4_0").module
    kinds = {name: each.kind.name for name, each in packed_parts(module).items()}
    assert kinds["lm_head.weight"] == "Q8_0"
    assert kinds["embed_tokens.weight"] == "Q4_0"
    assert kinds["layers.0.feed_forward.experts.gate_proj"] == "Q4_0"
    # 48 columns are no whole blocks
    assert "layers.0.feed_forward.experts.down_proj" not in kinds
    assert not any("router" in name or "norm" in name or "conv" in name for name in kinds)
    assert not any("k_up_proj" in name or "v_up_proj" in name for name in kinds)
    assert module.dtype == torch.float32
    assert sum(each.numel() for each in stored_weights(module)) > sum(
        each.numel() for each in module.parameters()
    )


@pytest.mark.usefixtures("reference_ops")
def test_parts_are_packed_as_asked(tmp_path: Path) -> None:
    path = str(tiny.save(Tiny(layers=("MlaWithMoe",), tied=True), tmp_path / "m"))
    module = load(path, device=CPU, quantize="experts=q8_0,lm_head=q4_0").module
    kinds = {name: each.kind.name for name, each in packed_parts(module).items()}
    assert kinds == {
        "embed_tokens.weight": "Q4_0",
        "layers.0.feed_forward.experts.gate_proj": "Q8_0",
        "layers.0.feed_forward.experts.up_proj": "Q8_0",
    }
