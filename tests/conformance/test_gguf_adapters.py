"""Adapters in GGUF files give what the same ones give as PEFT saves them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_adapters import IDS, ask, distance, scores
from torch import Tensor

from blazr import LLM
from blazr.core.errors import BlazrError, CheckpointError, ConfigError
from blazr.models.loading.convert import convert
from tests.support.adapters import PREFIX, projections, save_adapter
from tests.support.converted import MODELS
from tests.support.references import CASES, save_reference

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

# What the converter calls modules of transformers' networks.
_ATTENTION = {f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"} | {
    "self_attn.o_proj": "attn_output"
}
_MLP = {f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}
_LATENT = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
}
_WHOLE = {"model.embed_tokens": "token_embd", "lm_head": "output"}
Edit = Callable[[dict[str, Tensor]], None]


def side_by_side(rows: Tensor, heads: int) -> Tensor:
    """As llama.cpp's converter permutes rows of queries and keys, whose pairs lie side by side."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    architecture: str = "llama",
    alpha: float = 8.0,
    kinds: Mapping[str, str] | None = None,
    packed: bool = False,
) -> Path:
    """An adapter as llama.cpp's converter writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (kinds or {"general.type": "adapter", "adapter.type": "lora"}).items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, each in tensors.items():
        numbers = each.contiguous().numpy()
        if packed and numbers.shape[-1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_gguf(
    directory: Path, names: Mapping[str, str], heads: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """The tensors of an adapter of PEFT's, under a GGUF file's names."""
    found: dict[str, Tensor] = {}
    for name, numbers in load_file(directory / "adapter_model.safetensors").items():
        module, _, part = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        end = ".lora_a" if part.endswith("A") else ".lora_b"
        if part == "lora_embedding_A":
            found["token_embd.weight.lora_a"] = numbers.T
            continue
        if module in _WHOLE:
            found[f"{_WHOLE[module]}.weight{end}"] = numbers
            continue
        _, _, layer, own = module.split(".", 3)
        count = (heads or {}).get(own.rpartition(".")[2])
        is_moved = count is not None and end == ".lora_b"
        rows = side_by_side(numbers, count or 1) if is_moved else numbers
        found[f"blk.{layer}.{names[own]}.weight{end}"] = rows
    return found


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "q8_0"])
def test_as_peft_has_it(tmp_path: Path, packed: bool) -> None:
    """Also queries and keys, whose rows lie in another order, and the embedding."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": False}
    model = save_reference("llama", tmp_path / "model", changes=sizes)
    names = [*projections(model), "model.embed_tokens"]
    merged = save_adapter(tmp_path / "peft", model, names)
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = as_gguf(tmp_path / "peft", _ATTENTION | _MLP, heads)
    path = write_gguf(tmp_path / "a.gguf", tensors, packed=packed)
    convert(str(tmp_path / "model"), tmp_path / "model.gguf")
    with LLM(str(tmp_path / "model"), adapter=f"peft={tmp_path / 'peft'},mine={path}") as llm:
        found, expected = ask(llm, "mine"), ask(llm, "peft")
    assert distance(expected, merged) < 1e-5
    with LLM(str(tmp_path / "model.gguf"), adapter=f"mine={path}") as llm:
        of_file = ask(llm, "mine")
        assert distance(ask(llm), model) < 1e-5
    if packed:
        assert distance(found, merged) < 0.05
        assert scores(found) != scores(expected)
    else:
        assert scores(found) == scores(expected)
        assert distance(of_file, merged) < 1e-5
    assert distance(found, model) > 1e-2


@pytest.mark.parametrize(
    ("case", "architecture", "names"),
    [
        ("qwen2", "qwen2", _ATTENTION | _MLP),
        ("phi3", "phi3", {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}),
        ("deepseek_v3", "deepseek2", _LATENT),
        ("qwen3_5_text", "qwen35", {"linear_attn.out_proj": "ssm_out"}),
        ("qwen3_moe", "qwen3moe", {"mlp.gate": "ffn_gate_inp", "self_attn.v_proj": "attn_v"}),
        ("bamba", "granitehybrid", {"mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out"}),
    ],
)
def test_of_other_architectures(
    case: str,
    architecture: str,
    names: Mapping[str, str],
    tmp_path: Path,
) -> None:
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    chosen = [name for name, _ in model.named_modules() if name.split(".", 3)[-1] in names]
    merged = save_adapter(tmp_path / "peft", model, chosen)
    tensors = as_gguf(tmp_path / "peft", names)
    if architecture == "qwen35":  # values that share a key lie apart
        tensors = {
            name: each[:, tiled_columns(model, each.shape[1])] if name.endswith("_a") else each
            for name, each in tensors.items()
        }
    path = write_gguf(tmp_path / "a.gguf", tensors, architecture=architecture)
    with LLM(str(tmp_path / "model"), adapter=f"peft={tmp_path / 'peft'},mine={path}") as llm:
        found, expected = ask(llm, "mine"), ask(llm, "peft")
        own = distance(ask(llm), model)
    assert scores(found) == scores(expected)
    assert distance(found, merged) < max(1e-5, 10 * own)
    assert distance(found, model) > 1e-2


def tiled_columns(model: torch.nn.Module, columns: int) -> list[int]:
    """Where the converter takes columns of values from: heads of one key lie side by side."""
    config = model.config
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    size, each = columns // heads, heads // keys
    order = [key * each + place for place in range(each) for key in range(keys)]
    return [head * size + channel for head in order for channel in range(size)]


PLAIN = (
    *("llama", "llama-experts", "qwen2", "qwen3moe", "phi3", "gemma2", "olmo2", "chatglm", "glm4"),
    *("granite", "gpt-oss", "deepseek2", "deepseek2-v3"),
)


@pytest.mark.parametrize("architecture", PLAIN)
def test_peft_s_beside_gguf_files(architecture: str, tmp_path: Path) -> None:
    """Rows of queries and keys lie in the network as they do in transformers'."""
    case, changes = MODELS[architecture]
    kind, settings = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=settings | changes)
    names = [*projections(model, r"self_attn|mlp\.(gate_up|down|up)_proj"), "model.embed_tokens"]
    merged = save_adapter(tmp_path / "peft", model, names)
    convert(str(tmp_path / "model"), tmp_path / "model.gguf")
    with LLM(str(tmp_path / "model.gguf"), adapter=f"mine={tmp_path / 'peft'}") as llm:
        own = distance(ask(llm), model)
        changed = ask(llm, "mine")
    assert distance(changed, merged) < max(1e-5, 10 * own)
    assert distance(changed, model) > 1e-2


def test_peft_s_beside_packed_files_and_hybrids(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    model = save_reference("llama", tmp_path / "model", changes=sizes)
    merged = save_adapter(tmp_path / "peft", model, [*projections(model)])
    convert(str(tmp_path / "model"), tmp_path / "model.gguf", quantize="q8_0")
    with LLM(str(tmp_path / "model.gguf"), adapter=f"mine={tmp_path / 'peft'}") as llm:
        rounding = distance(ask(llm), model)
        assert distance(ask(llm, "mine"), merged) < 4 * rounding
        assert distance(ask(llm, "mine"), model) > 8 * rounding
    kind, settings = CASES["mamba2"]
    changes = settings | MODELS["mamba2"][1]
    hybrid = save_reference(kind, tmp_path / "hybrid", changes=changes)
    save_adapter(tmp_path / "of hybrid", hybrid, [*projections(hybrid)])
    convert(str(tmp_path / "hybrid"), tmp_path / "hybrid.gguf")
    with (
        LLM(str(tmp_path / "hybrid.gguf")) as llm,
        pytest.raises(CheckpointError, match="beside such a GGUF file"),
    ):
        llm.core.adapters.load("mine", tmp_path / "of hybrid")


def test_experts(tmp_path: Path) -> None:
    """Those of all in one tensor, as PEFT has them with the experts' numbers side by side."""
    kind, changes = CASES["qwen2_moe"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    rng = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    merged = copy.deepcopy(model)
    with torch.no_grad():
        for number, layer in enumerate(merged.model.layers):
            experts = layer.mlp.experts
            count, columns, inner = experts.down_proj.shape
            for name, (rows, size) in {"down": (columns, inner), "up": (inner, columns)}.items():
                a = torch.randn(count, 3, size, generator=rng) * 0.2
                b = torch.randn(count, rows, 3, generator=rng) * 0.2
                stack = experts.down_proj if name == "down" else experts.gate_up_proj[:, inner:]
                stack += (6 / 3) * b @ a
                at = f"blk.{number}.ffn_{name}_exps.weight"
                tensors |= {f"{at}.lora_a": a, f"{at}.lora_b": b}
    path = write_gguf(tmp_path / "a.gguf", tensors, architecture="qwen2moe", alpha=6.0)
    with LLM(str(tmp_path / "model"), adapter=f"mine={path}") as llm:
        found = ask(llm, "mine")
    assert distance(found, merged) < 1e-5
    assert distance(found, model) > 1e-2


def _nan(tensors: dict[str, Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = np.nan


def _other_rank(tensors: dict[str, Tensor]) -> None:
    name = next(iter(tensors))
    tensors[name] = tensors[name][:2]


def _no_pair(tensors: dict[str, Tensor]) -> None:
    tensors.pop(next(iter(tensors)))


def _other_size(tensors: dict[str, Tensor]) -> None:
    for name in tensors:
        if name.endswith("a"):
            tensors[name] = tensors[name][:, :-1]


def _no_such_matrix(tensors: dict[str, Tensor]) -> None:
    for end in ("a", "b"):
        tensors[f"blk.7.attn_q.weight.lora_{end}"] = tensors.pop(f"blk.0.attn_q.weight.lora_{end}")


def _bias(tensors: dict[str, Tensor]) -> None:
    tensors["blk.0.attn_q.bias"] = torch.ones(4)


BAD: dict[str, tuple[Edit | None, dict[str, object], type[BlazrError], str]] = {
    "NaN": (_nan, {}, CheckpointError, "NaN"),
    "another rank": (_other_rank, {}, CheckpointError, "do not fit each other"),
    "no pair": (_no_pair, {}, CheckpointError, "no pair"),
    "another size": (_other_size, {}, CheckpointError, "not of this model"),
    "no such matrix": (_no_such_matrix, {}, CheckpointError, "no matrix|not supported"),
    "a bias": (_bias, {}, CheckpointError, "not supported"),
    "architecture": (None, {"architecture": "qwen2"}, CheckpointError, "another model"),
    "a model": (None, {"kinds": {"general.type": "model"}}, ConfigError, "no adapter"),
    "another kind": (
        None,
        {"kinds": {"general.type": "adapter", "adapter.type": "control"}},
        ConfigError,
        "no adapter",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_and_the_model_goes_on(case: str, tmp_path: Path) -> None:
    edit, settings, error, words = BAD[case]
    model = save_reference("llama", tmp_path / "model")
    save_adapter(tmp_path / "peft", model, [*projections(model, "self_attn")])
    tensors = as_gguf(tmp_path / "peft", _ATTENTION)
    if edit is not None:
        edit(tensors)
    path = tmp_path / "a.gguf"
    with LLM(str(tmp_path / "model")) as llm:
        before = ask(llm)
        write_gguf(path, tensors, **settings)
        with pytest.raises(error, match=words):
            llm.core.adapters.load("bad", path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(BlazrError):
            llm.core.adapters.load("bad", path)
        assert ask(llm, ids=IDS).token_ids == before.token_ids
