"""Ling and Ring before the third, which transformers does not know: by the reference of verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blazr.bench.reference.open import open_reference
from blazr.core.errors import ConfigError
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.nn.device import resolve_device
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.lightning import LightningConfig
from blazr.nn.layers.mla import DeepseekMlaConfig
from tests.support.networks import VOCAB, Lab
from tests.support.references import CASES, reference_truth, rewrite_config, save_reference
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_as_right, error

HIDDEN, HEADS, DIM, EXPERTS = 24, 3, 8, 8
CPU = resolve_device("cpu")
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "max_position_embeddings": 512,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_SIGMOID = {
    "score_function": "sigmoid",
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
}
_RING = {**_SIGMOID, "layer_group_size": 3, "group_norm_size": 3}
_LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8}
CONFIGS: dict[str, dict[str, object]] = {
    "ling 1": {"model_type": "bailing_moe", "num_hidden_layers": 2},
    "ling 2": {"model_type": "bailing_moe", "num_hidden_layers": 2, **_SIGMOID},
    "ring linear": {"model_type": "bailing_moe_linear", "num_hidden_layers": 4, **_RING},
    "ring linear activated": {
        "model_type": "bailing_moe_linear",
        "num_hidden_layers": 3,
        **_RING,
        "linear_silu": True,
        "use_qk_norm": False,
        "group_norm_size": 1,
    },
    "ling 2.5": {"model_type": "bailing_hybrid", "num_hidden_layers": 3, **_RING, **_LATENT},
}


def tensors_of(config: dict[str, object]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, as the models are published."""
    yield "model.word_embeddings.weight", (VOCAB, HIDDEN)
    yield "lm_head.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    count, every = config["num_hidden_layers"], config.get("layer_group_size", 1)
    assert isinstance(count, int)
    assert isinstance(every, int)
    for index in range(count):
        at = f"model.layers.{index}."
        yield f"{at}input_layernorm.weight", (HIDDEN,)
        yield f"{at}post_attention_layernorm.weight", (HIDDEN,)
        attends = (index + 1) % every == 0 or index >= count // every * every
        for name, shape in _mixer(config, attends=attends).items():
            yield f"{at}attention.{name}.weight", shape
        yield from ((f"{at}mlp.{name}", shape) for name, shape in _feed(config, index).items())


def _mixer(config: dict[str, object], *, attends: bool) -> dict[str, tuple[int, ...]]:
    inner = HEADS * DIM
    if attends and "kv_lora_rank" in config:
        return {
            "q_proj": (HEADS * 16, HIDDEN),
            "kv_a_proj_with_mqa": (18, HIDDEN),
            "kv_a_layernorm": (12,),
            "kv_b_proj": (HEADS * 18, 12),
            "dense": (HIDDEN, HEADS * 8),
        }
    found: dict[str, tuple[int, ...]] = {"dense": (HIDDEN, inner)}
    found["query_key_value"] = ((HEADS + 2) * DIM if attends else 3 * inner, HIDDEN)
    if config.get("use_qk_norm"):
        found |= {"query_layernorm": (DIM,), "key_layernorm": (DIM,)}
    return found if attends else {**found, "g_proj": (inner, HIDDEN), "g_norm": (inner,)}


def _feed(config: dict[str, object], index: int) -> dict[str, tuple[int, ...]]:
    def mlp(at: str, size: int) -> dict[str, tuple[int, ...]]:
        up = {f"{at}{name}_proj.weight": (size, HIDDEN) for name in ("gate", "up")}
        return {**up, f"{at}down_proj.weight": (HIDDEN, size)}

    is_scored = "score_function" in config
    if is_scored and index == 0:
        return mlp("", 40)
    found: dict[str, tuple[int, ...]] = {"gate.weight": (EXPERTS, HIDDEN)}
    if is_scored:
        found["gate.expert_bias"] = (EXPERTS,)
    for expert in range(EXPERTS):
        found |= mlp(f"experts.{expert}.", 20)
    return {**found, **mlp("shared_experts.", 40)}


def save(name: str, directory: Path) -> None:
    chance = torch.Generator().manual_seed(run_seed(len(name)))
    config = _SIZES | CONFIGS[name]
    tensors: dict[str, Tensor] = {}
    for each, shape in tensors_of(config):
        drawn = torch.randn(shape, generator=chance) * (0.3 if len(shape) > 1 else 0.2)
        tensors[each] = drawn + 1 if "norm" in each else drawn
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_what_the_reference_says(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    reference = open_reference([tmp_path / "model.safetensors"], tmp_path / "config.json")
    chance = torch.Generator().manual_seed(run_seed(1))
    ids = torch.randint(3, VOCAB, (90,), generator=chance)
    x = embedded = reference.embed(ids)
    for layer in reference.layers:
        x = layer(x, embedded)
    truth = reference.logits(x)
    ours = load(str(tmp_path), device=CPU, dtype="float32").module
    with torch.inference_mode():
        whole = ours.forward_sequences(ids[None])[0]
    loss = error(whole, truth)
    assert loss < 1e-4
    lab = Lab(ours)
    for cuts in ((), (3, 20, 70), range(60, 90)):
        assert_as_right(lab.runner.logits(ids.tolist(), cuts), truth, max(loss, 1e-6))


def test_layers_are_of_the_kinds_that_the_config_says(tmp_path: Path) -> None:
    found = {}
    for name in ("ring linear", "ling 2.5"):
        (tmp_path / name).mkdir()
        save(name, tmp_path / name)
        planned = plan_model(str(tmp_path / name))
        assert not planned.derivation.warnings
        found[name] = [type(layer.mixer) for layer in planned.derivation.config.layers]
    # layers behind the last whole group attend
    lightning = [LightningConfig] * 2
    assert found["ring linear"] == [*lightning, AttentionConfig, AttentionConfig]
    assert found["ling 2.5"] == [*lightning, DeepseekMlaConfig]


@pytest.mark.parametrize("begin", ["model.mtp.0.", "model.layers.{count}."])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_out_is_told(name: str, begin: str, tmp_path: Path) -> None:
    """Their modules for multi-token prediction are not computed."""
    save(name, tmp_path)
    rewrite_config(tmp_path, num_nextn_predict_layers=1)
    assert not plan_model(str(tmp_path)).derivation.warnings
    begin = begin.format(count=CONFIGS[name]["num_hidden_layers"])
    more = {f"{begin}eh_proj.weight": torch.zeros(HIDDEN, 2 * HIDDEN)}
    more[f"{begin}enorm.weight"] = torch.zeros(HIDDEN)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), **more}, file)
    [warning] = plan_model(str(tmp_path)).derivation.warnings
    assert "multi-token prediction is left out" in warning
    with pytest.raises(ConfigError, match="multi-token prediction"):
        plan_model(str(tmp_path), with_mtp=True)


def test_ling_2_is_sarvam_by_another_name(tmp_path: Path) -> None:
    """Of which the transformers library has a class."""
    theirs = save_reference("sarvam_moe", tmp_path, changes=CASES["sarvam_moe"][1])
    rewrite_config(tmp_path, model_type="bailing_moe", score_function="sigmoid")
    ids = torch.arange(3, 33).tolist()
    ours = load(str(tmp_path), device=CPU, dtype="float32")
    assert ours.family == "bailing_moe"
    with torch.inference_mode():
        found = ours.module.forward_sequences(torch.tensor([ids]))[0]
    assert_as_right(found, *reference_truth(theirs, ids))
