"""Architectures that are a family under another name: the logits of the transformers library.

Names of tensors and keys are those of the ``gguf`` package, llama.cpp's own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support import ggufs
from tests.support.converted import READ
from tests.support.references import reference_logits, save_reference
from tests.support.tolerances import assert_same_network

gguf = pytest.importorskip("gguf", reason="names and keys are llama.cpp's")
pytest.importorskip("transformers", reason="the models are the transformers library's")

CPU = resolve_device("cpu")
IDS = list(range(3, 30))
_EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
_SPARSE = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
_UNGATED = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 40,
    "qkv_bias": False,
}
_WIDE = {"hidden_size": 32, "num_attention_heads": 4}
# GPT-2's words for what others call otherwise.
_SPELLINGS = {
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
}
_ROUTED = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.7}
# By the architecture, and what is odd about it: whose model it is, its settings, and the metadata
# that say the same.
CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    **dict.fromkeys(("internlm2", "xverse", "exaone", "pangu-embedded"), ("llama", {}, {})),
    # whose layers may lack a half: test_nas.py
    "deci": ("llama", {}, {}),
    "seed_oss": ("seed_oss", {"attention_bias": True, "head_dim": 12}, {}),
    "arcee": ("arcee", {}, {}),
    "qwen": ("qwen2", {"num_key_value_heads": 4}, {}),
    "qwen2vl": ("qwen2", {}, {}),
    "qwen3vl": ("qwen3", {}, {}),
    "qwen3vlmoe": (
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "norm_topk_prob": True,
        },
        {},
    ),
    # what a gate that is shut by half lets through, files have beside the experts without a gate
    "deepseek": (
        "qwen2_moe",
        {
            **_UNGATED,
            "num_key_value_heads": 4,
            "norm_topk_prob": False,
            "mlp_only_layers": [0],
        },
        {"expert_weights_scale": 1.0, "rope.scaling.type": "none"},
    ),
    "bailingmoe": (
        "qwen2_moe",
        {**_UNGATED, "norm_topk_prob": True},
        {"expert_weights_scale": 1.0, "expert_weights_norm": True},
    ),
    "minicpm": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 1.5,
            "attention_multiplier": 6**-0.5,
        },
        {"embedding_scale": 12.0, "residual_scale": 0.6, "logit_scale": 1.5},
    ),
    "baichuan": ("llama", {"num_hidden_layers": 32}, {}),
    "orion": ("stablelm", {**_WIDE, "layer_norm_eps": 1e-5, "partial_rotary_factor": 1.0}, {}),
    "codeshell": ("starcoder2", {"norm_epsilon": 1e-5, "tie_word_embeddings": False}, {}),
    "ernie4_5": ("ernie4_5", {"use_bias": False}, {}),
    "dots1": ("dots1", _EXPERTS, _ROUTED),
    "minimax-m2": (
        "minimax_m2",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 6},
        {"expert_gating_func": 2},
    ),
    "bailingmoe2": (
        "sarvam_moe",
        {**_EXPERTS, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "head_dim": 6},
        {**_ROUTED, "expert_group_count": 4, "expert_group_used_count": 2},
    ),
    "nemotron": ("nemotron", {**_WIDE, "norm_eps": 1e-5, "partial_rotary_factor": 0.5}, {}),
    "stablelm": (
        "stablelm",
        {**_WIDE, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "use_qkv_bias": True},
        {"use_parallel_residual": True},  # said of all, and true of those without a second norm
    ),
    "stablelm parallel": (
        "stablelm",
        {
            **_WIDE,
            "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "use_parallel_residual": True,
            "qk_layernorm": True,
        },
        {},
    ),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 20,
            "moe_layer_interval": 2,
            "num_hidden_layers": 3,
        },
        {},
    ),
    "exaone4": (
        "exaone4",
        {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, False]},
    ),
    "exaone4 without windows": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
        {},
    ),
    "exaone-moe": (
        "exaone_moe",
        {
            **_SPARSE,
            "num_experts": 6,
            "num_shared_experts": 2,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        {
            **_ROUTED,
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": [True, False],
        },
    ),
    "olmo": ("olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"head_dim": 12}, {}),
    "maincoder": ("hunyuan_v1_dense", {"head_dim": 12}, {}),
    "hunyuan-moe": ("hunyuan_v1_moe", {"head_dim": 6, "num_experts": 5, "moe_topk": 2}, {}),
    "afmoe": (
        "afmoe",
        {
            **_SPARSE,
            "head_dim": 12,
            "num_experts": 6,
            "num_shared_experts": 1,
            "route_scale": 1.7,
            "mup_enabled": True,
            "sliding_window": 6,
            "num_hidden_layers": 4,
        },
        {**_ROUTED, "attention.sliding_window": 6},
    ),
    "gptneox": (
        "gpt_neox",
        {**_WIDE, "num_key_value_heads": 4, "rotary_pct": 0.5},
        {"use_parallel_residual": True},
    ),
    "gpt2": ("gpt2", {"num_key_value_heads": 4}, {}),
    "gpt2 with a head": ("gpt2", {"num_key_value_heads": 4, "tie_word_embeddings": False}, {}),
    "starcoder": ("gpt_bigcode", {"num_key_value_heads": 1}, {}),
    "phi2": ("phi", _WIDE, {}),
    "command-r": ("cohere", {"logit_scale": 0.25}, {"logit_scale": 0.25}),
    "command-r norms": (
        "cohere",
        {"logit_scale": 0.25, "use_qk_norm": True},
        {"logit_scale": 0.25},
    ),
    "cohere2": (
        "cohere2",
        {
            "logit_scale": 0.25,
            "sliding_window": 6,
            "layer_types": None,
            "num_hidden_layers": 4,
        },
        {"logit_scale": 0.25, "attention.sliding_window": 6},
    ),
}


# Whose experts have another beside them that has no gate.
UNGATED = ("deepseek", "bailingmoe")


def tensors_of(directory: Path, arch: str, heads: tuple[int, int]) -> dict[str, Tensor]:
    """The model's tensors under llama.cpp's names, laid out as its converter says."""
    kind = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, 32)
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in _joined(load_file(directory / "model.safetensors"), arch).items():
        number = re.search(r"(?:experts|norms)\.(\d+)\.", name)
        plain = re.sub(r"experts\.\d+\.", "experts.", re.sub(r"\.norms\.\d+", "", name))
        theirs = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if theirs is None and plain.endswith(("e_score_correction_bias", "expert_bias")):
            theirs = names.get_name(plain.removesuffix("_bias")) or names.get_name(plain)
            theirs = f"{theirs}.bias"
        assert theirs is not None, name
        if number:
            experts.setdefault(theirs, {})[int(number[1])] = tensor
        else:
            found[theirs] = _laid_out(tensor, theirs, arch, heads)
    for name, each in experts.items():
        found[name] = torch.stack([each[index] for index in sorted(each)])
    return found


def _joined(tensors: dict[str, Tensor], arch: str) -> dict[str, Tensor]:
    """Tensors of transformers in the form of the model that has this architecture."""
    if arch in UNGATED:
        plain = {key: each for key, each in tensors.items() if "shared_expert_gate" not in key}
        return {key: each / (1 + ("shared_expert.down" in key)) for key, each in plain.items()}
    if arch not in ("codeshell", "qwen"):
        return tensors
    joined: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.q_proj\.(\w+)", name)
        if place:
            each = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined[f"transformer.h.{place[1]}.attn.c_attn.{place[2]}"] = torch.cat(each)
        elif "k_proj" not in name and "v_proj" not in name:
            joined[name] = tensor
    return joined


def _laid_out(tensor: Tensor, theirs: str, arch: str, heads: tuple[int, int]) -> Tensor:
    """What files have in the place of a tensor of transformers."""
    if arch == "nemotron" and "norm" in theirs and theirs.endswith("weight"):
        return tensor + 1  # its norms store their weights less one
    inner = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    if arch == "gpt2" and theirs.endswith(inner):
        return tensor.T  # stored as (in, out)
    if arch == "gptneox" and "attn_qkv" in theirs:  # head by head
        return tensor.unflatten(0, (heads[0], 3, -1)).transpose(0, 1).flatten(0, 2)
    row = ARCHITECTURES[arch]
    if row.has_neighbours and ("attn_q_norm" in theirs or "attn_k_norm" in theirs):
        return tensor.unflatten(0, (2, -1)).T.flatten()
    for part, count in zip(("attn_q.", "attn_k."), heads, strict=True):
        if part in theirs and (row.pairs_rows or row.has_neighbours):
            return tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
    return tensor


def metadata_of(config: dict[str, object], arch: str, more: dict[str, object]) -> dict[str, object]:
    heads = int(str(config["num_attention_heads"]))
    dim = int(str(config.get("head_dim") or int(str(config["hidden_size"])) // heads))
    rope = dict(config.get("rope_parameters", {}))
    eps = next(
        (v for k, v in config.items() if k in {"rms_norm_eps", "norm_eps", "layer_norm_eps"}), 1e-5
    )
    share = rope.get("partial_rotary_factor") or 1.0
    keys = gguf.Keys
    known = {
        keys.LLM.BLOCK_COUNT: config["num_hidden_layers"],
        keys.LLM.CONTEXT_LENGTH: 1024,
        keys.Attention.HEAD_COUNT: heads,
        keys.Attention.HEAD_COUNT_KV: config["num_key_value_heads"],
        keys.Attention.KEY_LENGTH: dim,
        keys.Attention.VALUE_LENGTH: dim,
        keys.Attention.LAYERNORM_RMS_EPS: eps,
        keys.LLM.EXPERT_USED_COUNT: next(
            (config[key] for key in ("num_experts_per_tok", "moe_k", "moe_topk") if key in config),
            0,
        ),
    }
    if rope:
        known[keys.Rope.FREQ_BASE] = rope["rope_theta"]
        known[keys.Rope.DIMENSION_COUNT] = config.get("rotary_dim") or int(dim * share)
    said = {key.format(arch=arch): value for key, value in known.items()}
    own = {f"{arch}.{key}": value for key, value in more.items()}
    return {"general.architecture": arch, **said, **own}


def test_every_architecture_without_a_file_of_the_converter_is_here() -> None:
    rows = ARCHITECTURES.items()
    named = {n for n, row in rows if not (row.families or row.is_hybrid or n in READ)}
    assert {case.split()[0] for case in CASES} == named


@pytest.mark.sample
@pytest.mark.parametrize("case", CASES)
def test_the_same_logits_as_by_transformers(case: str, tmp_path: Path) -> None:
    kind, changes, said = CASES[case]
    arch = case.split()[0]
    (tmp_path / "hf").mkdir()
    theirs = save_reference(kind, tmp_path / "hf", seed=len(arch), changes=changes)
    if arch in UNGATED:
        for name, parameter in theirs.named_parameters():
            if "shared_expert_gate" in name:
                parameter.zero_()  # of which the sigmoid is a half
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    config = {_SPELLINGS.get(key, key): value for key, value in written.items()}
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = tensors_of(tmp_path / "hf", arch, heads)
    path = ggufs.write(tmp_path / "m.gguf", tensors, metadata_of(config, arch, said))
    found = load(str(path), device=CPU, dtype="float32").module
    expected = reference_logits(theirs, IDS)
    assert_same_network(found, expected, torch.tensor([IDS]))
