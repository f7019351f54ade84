"""Hybrids in GGUF: the logits of the same model as Hugging Face has it.

The tensors are laid out here as llama.cpp's converter describes it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.nn.device import resolve_device
from tests.support import ggufs
from tests.support.hybrids import HYBRIDS
from tests.support.references import save_reference
from tests.support.tolerances import assert_same_network

pytest.importorskip("transformers", reason="the models are the transformers library's")

CPU = resolve_device("cpu")
SEQUENCE = list(range(3, 43))
# By the architecture: whose model it is, and what that must not have for GGUF to hold it.
CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "mamba": ("mamba", "falcon_mamba", {"use_bias": False, "mixer_rms_eps": 1e-5}),
    "mamba2": ("mamba2", "mamba2", {}),
    "jamba": ("jamba", "jamba", {}),
    "granitehybrid": ("granitehybrid", "granitemoehybrid", {}),
    "granitehybrid dense": ("granitehybrid", "granitemoehybrid dense", {"attention_bias": False}),
    "nemotron_h": ("nemotron_h", "nemotron_h", {}),
    "nemotron_h_moe": ("nemotron_h_moe", "nemotron_h experts", {}),
    "falcon-h1": ("falcon-h1", "falcon_h1", {}),
    "falcon-h1 bare": ("falcon-h1", "falcon_h1 bare", {"mamba_d_ssm": 48}),
    "lfm2": ("lfm2", "lfm2", {}),
    "lfm2moe": ("lfm2moe", "lfm2_moe", {"routed_scaling_factor": 1.0}),
    "bailingmoe3": ("bailingmoe3", "bailing_hybrid", {}),
    "bailingmoe3 groups": ("bailingmoe3", "bailing_hybrid unsafe", {"kda_safe_gate": True}),
    "minimax-01": (
        "minimax-01",
        "minimax",
        {
            **{f"{k}_alpha_factor": 1.3 for k in ("full_attn", "linear_attn", "mlp")},
            **{f"{k}_beta_factor": 1.0 for k in ("full_attn", "linear_attn", "mlp")},
            "rms_norm_eps": 1e-6,
        },
    ),
}
TOP = {
    "model.embed_tokens": "token_embd",
    "model.word_embeddings": "token_embd",
    "backbone.embeddings": "token_embd",
    "model.norm": "output_norm",
    "model.final_layernorm": "output_norm",
    "backbone.norm_f": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}
NORMS = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "norm": "attn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "post_attention_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm",
}
MAMBA = {
    **{f"{name}_proj": f"ssm_{name}" for name in ("in", "x", "dt", "out")},
    **{f"{name}_layernorm": f"ssm_{name}_norm" for name in ("dt", "b", "c")},
    "conv1d": "ssm_conv1d",
    "norm": "ssm_norm",
}
ATTENTION = {f"{name}_proj": f"attn_{name}" for name in "qkv"} | {
    "o_proj": "attn_output",
    "out_proj": "attn_output",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
}
LIGHTNING = {"qkv_proj": "attn_qkv", "output_gate": "attn_gate", "norm": "attn_norm_2"}
LING = ATTENTION | {
    **{f"{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"},
    **{f"{name}_proj": f"ssm_{name}_a" for name in "fg"},
    **{f"{name}_layernorm": f"attn_{name}_norm" for name in ("q_a", "kv_a")},
    **{f"{name}_proj": f"attn_{name}" for name in ("q_a", "q_b", "kv_b")},
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "b_proj": "ssm_beta",
    "o_norm": "ssm_norm",
    "dense": "attn_output",
}
FEED = {f"{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")} | {
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
    "gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "router.layer": "ffn_gate_inp",
    **{f"shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")},
    "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
}
CONV = {"conv": "shortconv.conv", "in_proj": "shortconv.in_proj", "out_proj": "shortconv.out_proj"}
WHERE = {
    "": NORMS,
    "mamba.": MAMBA,
    "mixer.": MAMBA | {k: v for k, v in ATTENTION.items() if k != "out_proj"} | FEED,
    "self_attn.": ATTENTION | LIGHTNING,
    "attention.": LING,
    "mlp.": FEED,
    "conv.": CONV,
    "feed_forward.": FEED,
    "block_sparse_moe.": FEED,
}
Config = dict[str, object]


def renamed(name: str) -> str:
    """A name as llama.cpp has it; experts keep their number."""
    stem, _, part = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{part}"
    found = re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.*)", name)
    assert found, name
    at, rest = f"blk.{found[1]}.", found[2]
    for theirs, ours in (("A_log", "ssm_a"), ("D", "ssm_d"), ("dt_bias", "ssm_dt.bias")):
        if rest.endswith(f".{theirs}"):
            return at + ours
    if rest.endswith(("e_score_correction_bias", "expert_bias")):
        return at + "exp_probs_b.bias"
    stem = rest.rpartition(".")[0]
    expert = re.sub(r"experts\.(\d+)\.", "", stem)
    place = next(p for p in sorted(WHERE, key=len, reverse=True) if expert.startswith(p))
    word = WHERE[place][expert.removeprefix(place)]
    number = re.search(r"experts\.(\d+)\.", stem)
    return f"{at}{word}.{number[1]}.{part}" if number else f"{at}{word}.{part}"


def folded(name: str, tensor: Tensor, config: Config) -> Tensor:
    """Falcon-H1's multipliers are in its matrices."""
    key, attends = config["key_multiplier"], config["attention_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    factors = {
        "embed_tokens.": config["embedding_multiplier"],
        "lm_head.": config["lm_head_multiplier"],
        "down_proj.": down,
        "gate_proj.": gate,
        "k_proj.": key * attends,
        "q_proj.": attends,
        "v_proj.": attends,
        "o_proj.": config["attention_out_multiplier"],
        "mamba.out_proj.": config["ssm_out_multiplier"],
    }
    if "mamba.in_proj.weight" in name:
        inner = config["mamba_d_ssm"]
        maps = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = torch.tensor([inner, inner, maps, maps, config["mamba_n_heads"]])
        each = torch.tensor(config["ssm_multipliers"]).repeat_interleave(sizes)
        return tensor * each[:, None] * config["ssm_in_multiplier"]
    return tensor * next((factor for part, factor in factors.items() if part in name), 1.0)


def in_pairs(rows: Tensor, heads: int) -> Tensor:
    """Channels that are rotated together side by side."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def laid_out(name: str, tensor: Tensor, config: Config, arch: str) -> Tensor:
    """A tensor as llama.cpp has it under this name."""
    if name.endswith("ssm_a"):
        tensor = tensor.exp() if arch == "bailingmoe3" else -tensor.exp()
    if name.endswith(("ssm_a", "ssm_d")) and arch not in {"mamba", "jamba"}:
        return tensor[:, None]
    if name.endswith(("conv1d.weight", "shortconv.conv.weight")):
        return tensor.squeeze(1)
    if "ssm_conv1d_" in name:
        return tensor.reshape(1, len(tensor), 1, -1)
    if name.endswith("ssm_norm.weight") and arch != "bailingmoe3":
        groups = config.get("mamba_n_groups") or config.get("n_groups")
        return tensor.unflatten(0, (groups, -1))
    if arch == "granitehybrid" and name.endswith(("attn_q.weight", "attn_k.weight")):
        key = "num_attention_heads" if "attn_q." in name else "num_key_value_heads"
        return in_pairs(tensor, config[key])
    return tensor


def granite_linear(name: str, tensor: Tensor, *, has_experts: bool) -> dict[str, Tensor]:
    """Granite's fused matrices in two, and what comes behind them."""
    at = "blk." + re.search(r"layers\.(\d+)\.", name)[1]
    end = "_exps" if "_moe." in name else "_shexp" if has_experts else ""
    if "output_linear" in name:
        return {f"{at}.ffn_down{end}.weight": tensor}
    gate, up = tensor.chunk(2, -2)
    return {f"{at}.ffn_gate{end}.weight": gate, f"{at}.ffn_up{end}.weight": up}


def gguf_tensors(tensors: dict[str, Tensor], config: Config, arch: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("put_linear.weight"):
            has_experts = bool(config["num_local_experts"])
            found |= granite_linear(name, tensor, has_experts=has_experts)
            continue
        if name.endswith(("slope_rate", "_decay")):
            continue
        plain = folded(name, tensor, config) if arch == "falcon-h1" else tensor
        found[renamed(name)] = laid_out(renamed(name), plain, config, arch)
    return stacked(with_latents(found, config))


def with_latents(tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Matrices of keys and values by head, and gates of heads, where Ling 3 attends."""
    found = dict(tensors)
    for name in [each for each in tensors if each.endswith("attn_kv_b.weight")]:
        at = name.removesuffix("attn_kv_b.weight")
        both = found.pop(name).unflatten(0, (config["num_attention_heads"], -1))
        keys, values = both.split((config["qk_nope_head_dim"], config["v_head_dim"]), 1)
        found |= {f"{at}attn_k_b.weight": keys.mT.contiguous(), f"{at}attn_v_b.weight": values}
        found[f"{at}attn_gate.weight"] = found.pop(f"{at}ssm_g_a.weight")
    return found


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        number = re.fullmatch(r"(.*\.ffn_\w+)\.(\d+)\.weight", name)
        if number:
            experts.setdefault(f"{number[1]}_exps.weight", {})[int(number[2])] = tensor
        else:
            found[name] = tensor
    for name, each in experts.items():
        found[name] = torch.stack([each[index] for index in sorted(each)])
    return found


def metadata(config: Config, arch: str, tensors: dict[str, Tensor]) -> Config:
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    attends = [f"blk.{index}.attn_q.weight" in tensors for index in range(layers)]
    first = [config.get(key) for key in ("rms_norm_eps", "layer_norm_epsilon", "norm_eps")]
    known = {
        "block_count": layers,
        "context_length": 1024,
        "attention.layer_norm_rms_epsilon": next(eps for eps in first if eps),
        "attention.head_count": config.get("num_attention_heads", 0),
        "attention.head_count_kv": [config["num_key_value_heads"] * each for each in attends],
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.scale": config.get("attention_multiplier"),
        "embedding_scale": config.get("embedding_multiplier") if "granite" in arch else None,
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling"),
        "rope.freq_base": config.get("rope_parameters", {}).get("rope_theta"),
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
        "ssm.group_count": config.get("mamba_n_groups") or config.get("n_groups"),
        "ssm.state_size": next(
            (config[k] for k in ("mamba_d_state", "ssm_state_size", "state_size") if k in config),
            None,
        ),
        "ssm.dt_b_c_rms": True if arch == "mamba" else None,
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_gating_func": 2 if arch in {"nemotron_h_moe", "lfm2moe"} else None,
        "expert_weights_norm": config.get("norm_topk_prob"),
        "expert_weights_scale": config.get("routed_scaling_factor"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
    }
    if arch == "bailingmoe3":
        rotated = config["qk_rope_head_dim"]
        known |= {
            "attention.kv_lora_rank": config["kv_lora_rank"],
            "attention.key_length": config["kv_lora_rank"] + rotated,
            "attention.value_length": config["kv_lora_rank"],
            "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
            "attention.value_length_mla": config["v_head_dim"],
            "rope.dimension_count": rotated,
            "kda.head_dim": config["linear_head_dim"],
            "kda.gate_lower_bound": config["kda_lower_bound"],
            "expert_used_count": config["num_experts_per_token"],
            "expert_gating_func": 2,
            "expert_weights_norm": config["moe_renormalize"],
            "expert_group_count": config["num_expert_group"],
        }
    if arch == "minimax-01":
        known["residual_scale"] = config["mlp_alpha_factor"]
    pairs = {f"{arch}.{key}": value for key, value in known.items() if value is not None}
    return {"general.architecture": arch} | pairs


def network(path: Path) -> nn.Module:
    return load(str(path), device=CPU, dtype="float32").module


def test_every_architecture_has_a_case() -> None:
    hybrids = {name for name, row in ARCHITECTURES.items() if row.is_hybrid}
    recorded = {"qwen3next", "qwen35", "qwen35moe", "kimi-linear"}  # see test_gguf_converted.py
    assert {arch for arch, _, _ in CASES.values()} == hybrids - recorded


@pytest.mark.parametrize("case", CASES)
def test_the_same_logits_as_from_hugging_faces_files(case: str, tmp_path: Path) -> None:
    arch, name, changes = CASES[case]
    kind, settings = HYBRIDS[name]
    save_reference(kind, tmp_path, seed=len(case), changes=settings | changes)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = gguf_tensors(load_file(tmp_path / "model.safetensors"), config, arch)
    (tmp_path / "gguf").mkdir()
    path = tmp_path / "gguf" / "model.gguf"
    ggufs.write(path, tensors, metadata(config, arch, tensors))
    assert_same_network(network(path), network(tmp_path), torch.tensor([SEQUENCE]))


def test_clamps_of_experts_are_told_and_decays_without_a_limit_are_refused(tmp_path: Path) -> None:
    kind, settings = HYBRIDS["bailing_hybrid"]
    save_reference(kind, tmp_path, changes=settings)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = gguf_tensors(load_file(tmp_path / "model.safetensors"), config, "bailingmoe3")
    known = metadata(config, "bailingmoe3", tensors)
    clamped = known | {"bailingmoe3.swiglu_clamp_exp": [0.0, 0.0, 7.0]}
    path = ggufs.write(tmp_path / "m.gguf", tensors, clamped)
    [warning] = plan_model(str(path)).derivation.warnings
    assert "'bailingmoe3.swiglu_clamp_exp' is ignored" in warning
    ggufs.write(path, tensors, known | {"bailingmoe3.kda.safe_gate": False})
    with pytest.raises(ConfigError, match="safe_gate' is not supported"):
        plan_model(str(path))
