"""What ``blazr info`` is told: keys of the documents, sizes, sources."""

import json
from pathlib import Path

import pytest
import torch

from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.loading.describe import describe_plan
from blazr.models.loading.plan import plan_model
from blazr.models.sizing import size_of
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.shared_block import SharedBlockConfig
from tests.support import tiny
from tests.support.examples import HIDDEN, MIXER_EXAMPLES
from tests.support.tiny import Tiny

ALL = Tiny(layers=("Mamba1", "Mamba2", "Mamba3", "MlaWithMoe", "MlaWithMlp", "StandardTransformer"))


def test_the_description_is_plain_json(tmp_path: Path) -> None:
    found = describe_plan(plan_model(str(tiny.save(ALL, tmp_path / "m"))))
    assert json.loads(json.dumps(found)) == found
    assert (found["name"], found["family"], found["dtype"]) == ("m", "oxidizr", "float32")
    assert found["config"]["layer_types"] == list(ALL.layers)
    assert found["config"]["mamba_layers"] == [0, 1, 2]
    assert found["files"] == [
        {"name": "model.safetensors", "bytes": (tmp_path / "m/model.safetensors").stat().st_size}
    ]


def test_every_key_oxidizr_writes_is_described(tmp_path: Path) -> None:
    model = Tiny(layers=("Mamba2", "MlaWithMoe"))
    found = describe_plan(plan_model(str(tiny.save(model, tmp_path))))["config"]
    speed_only = {"mamba2_chunk_size", "mamba2_expand"}
    for key, value in tiny.config(model).items():
        if key not in speed_only:
            assert found[key] == value, key


def test_every_value_has_a_source(tmp_path: Path) -> None:
    found = describe_plan(plan_model(str(tiny.save(ALL, tmp_path, changes={"vocab_size": 7}))))
    assert all(value["source"] for value in found["derivation"])
    assert "vocab_size = 7" in found["warnings"][0]


def test_parameters_are_those_of_the_network(tmp_path: Path) -> None:
    config = plan_model(str(tiny.save(ALL, tmp_path))).derivation.config
    with torch.device("meta"):
        module = CausalLM(config)
    size = size_of(config, torch.float32)
    assert size.parameters == sum(p.numel() for p in module.parameters())
    assert size.active_parameters == size.parameters - 2 * 3 * 48 * 32
    assert size.embedding_parameters == 2 * 61 * 32


@pytest.mark.parametrize("latent", [None, 10])
def test_a_head_with_a_bias_and_experts_on_fewer_channels_are_counted(latent: int | None) -> None:
    """The bias was left out, and experts that a token does not choose had too many channels."""
    norm = NormConfig(HIDDEN, 1e-6)
    moe = MoeConfig(
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_experts=5,
        experts_per_token=2,
        latent_size=latent,
        expert_bias=True,
    )
    layer = LayerConfig(mixer=MIXER_EXAMPLES["gqa"], mixer_norm=norm, feed_forward=moe)
    config = ModelConfig(
        vocab_size=8,
        hidden_size=HIDDEN,
        max_seq_len=64,
        layers=(layer,),
        final_norm=norm,
        head_bias=True,
    )
    with torch.device("meta"):
        module = CausalLM(config)
    size = size_of(config, torch.float32)
    assert size.parameters == sum(p.numel() for p in module.parameters())
    experts = sum(p.numel() for p in module.layers[0].feed_forward.experts.parameters())
    assert size.parameters - size.active_parameters == experts * 3 // 5


@pytest.mark.parametrize("mixer", MIXER_EXAMPLES.values(), ids=MIXER_EXAMPLES)
def test_what_each_mixer_keeps_of_a_token(mixer: MixerConfig) -> None:
    norm = NormConfig(HIDDEN, 1e-6)
    config = ModelConfig(
        vocab_size=8,
        hidden_size=HIDDEN,
        max_seq_len=64,
        layers=(
            LayerConfig(
                mixer=mixer,
                mixer_norm=norm,
                joins_embedding=isinstance(mixer, SharedBlockConfig),
            ),
        ),
        final_norm=norm,
    )
    size = size_of(config, torch.float32)
    kept = size.kv_bytes_per_token + size.latent_bytes_per_token
    assert kept == mixer.cache_spec(torch.float32).bytes_per_token


@pytest.mark.parametrize(("dtype", "itemsize"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_memory(tmp_path: Path, dtype: torch.dtype, itemsize: int) -> None:
    model = Tiny(layers=("Mamba2", "Mamba2", "MlaWithMlp", "StandardTransformer"))
    found = describe_plan(plan_model(str(tiny.save(model, tmp_path, dtype=dtype))))["memory"]
    state, window = 8 * 8 * 8, 3 * (64 + 2 * 8)
    assert found["mamba_state_bytes_per_sequence"] == 2 * (4 * state + itemsize * window)
    # inputs of the convolution, what it makes of x and B, and step sizes
    row = itemsize * (64 + 2 * 8) + itemsize * (64 + 8) + 4 * 8
    assert found["log_bytes_per_sequence"] == 2 * 64 * row
    assert found["working_bytes_per_sequence"] == 0
    assert found["mla_bytes_per_token"] == itemsize * (16 + 4)
    assert found["kv_bytes_per_token"] == itemsize * 2 * 2 * 8
    stored = tiny.tensors(model, dtype=dtype).values()
    assert found["weights_bytes"] == sum(tensor.nbytes for tensor in stored)


def test_memory_in_fewer_bits(tmp_path: Path) -> None:
    planned = plan_model(str(tiny.save(ALL, tmp_path)))
    plain = describe_plan(planned)["memory"]
    stored = describe_plan(planned, kv_dtype="fp8_e4m3", state_dtype="bfloat16")["memory"]
    assert stored["kv_bytes_per_token"] == plain["kv_bytes_per_token"] / 4
    assert stored["mla_bytes_per_token"] == plain["mla_bytes_per_token"] / 4
    name = "mamba_state_bytes_per_sequence"
    assert plain[name] / 2 < stored[name] < plain[name]
    assert stored["working_bytes_per_sequence"] == plain["working_bytes_per_sequence"]


def test_a_working_copy_is_as_large_as_the_state(tmp_path: Path) -> None:
    """Mamba-3, here without a convolution, has one beside its log."""
    found = describe_plan(plan_model(str(tiny.save(Tiny(layers=("Mamba3",)), tmp_path))))["memory"]
    state = found["mamba_state_bytes_per_sequence"]
    assert found["working_bytes_per_sequence"] == state > 0
    assert found["log_bytes_per_sequence"] > 0
