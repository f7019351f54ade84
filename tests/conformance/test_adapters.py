"""Adapters beside a model give what the merged weights give, for each request its own."""

from __future__ import annotations

import copy
import functools
import gc
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr import LLM, SamplingParams
from blazr.core.errors import BlazrError, CheckpointError, ConfigError, RequestError
from blazr.engine.outputs import TokenOutput
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion
from blazr.models.loading.convert import convert
from blazr.nn.operands.lora import LoraFactors
from tests.support.adapters import projections, save_adapter
from tests.support.references import CASES, reference_logits, save_reference

pytestmark = pytest.mark.sample

pytest.importorskip("transformers")
IDS = (3, 5, 7, 11, 13, 2, 9, 4, 30, 22)
# Of each family the projections that adapters may change: all but these. Networks of transformers
# have matrices for users of other blocks, too, which nobody reads.
REFUSED = {"zamba2 untied": r"layers\.(0.*_list\.2|3.*_list\.0)\."}
FAMILIES = (
    *("llama biases", "llama tied", "phi3", "qwen2_moe", "gemma3_text", "glm4"),
    *("deepseek_v2", "deepseek_v3"),
    *("mamba", "mamba2", "bamba", "nemotron_h", "falcon_h1", "zamba2 untied", "lfm2"),
    *("qwen3_next", "qwen3_5_text", "kimi_linear", "olmo_hybrid", "lfm3", "recurrent_gemma"),
    *("zamba untied", "bailing_hybrid"),
)


def supported(case: str, model: nn.Module) -> list[str]:
    """The names of the projections that adapters of a family may change."""
    refused = projections(model, REFUSED[case]) if case in REFUSED else {}
    is_tied = model.config.tie_word_embeddings
    return [
        name
        for name in projections(model)
        if name not in refused and not (is_tied and name == "lm_head")
    ]


def ask(llm: LLM, adapter: str | None = None, ids: tuple[int, ...] = IDS) -> Completion:
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    return llm.generate([list(ids)], params, adapter=adapter)[0]


def scores(completion: Completion) -> list[float]:
    """The log-probabilities of a prompt and its reply."""
    every = [*(completion.prompt_logprobs or ())[1:], *(completion.logprobs or ())]
    return [each.logprob for each in every if each is not None and each.logprob is not None]


def reference_scores(reference: nn.Module, whole: list[int]) -> Tensor:
    """Log-probabilities of all tokens but the first, by a network of transformers, (T - 1,)."""
    expected = reference_logits(reference, whole).log_softmax(-1)
    return expected[range(len(whole) - 1), whole[1:]]


def distance(completion: Completion, reference: nn.Module, ids: tuple[int, ...] = IDS) -> float:
    """How far they are from what a network of transformers gives, relative to the largest."""
    wanted = reference_scores(reference, [*ids, *completion.token_ids])
    error = (torch.tensor(scores(completion)) - wanted).abs().max()
    return float(error / max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("case", FAMILIES)
def test_an_adapter_gives_what_merged_weights_give(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    merged = save_adapter(tmp_path / "adapter", model, supported(case, model))
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        before, changed, after = ask(llm), ask(llm, "mine"), ask(llm)
    assert scores(before) == scores(after)
    own = distance(before, model)
    assert distance(changed, merged) < max(1e-5, 10 * own)
    assert distance(changed, model) > 1e-2


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 7}},
        {"alpha_pattern": {"v_proj": 1, "down_proj": 30}},
        {"use_dora": True},
        {"lora_alpha": 0.5},
        {"fan_in_fan_out": True},  # which linear layers are not
    ],
    ids=["rank stabilised", "ranks", "alphas", "DoRA", "a small alpha", "fan in, fan out"],
)
def test_kinds(config: dict[str, object], tmp_path: Path) -> None:
    model = save_reference("llama", tmp_path / "model", changes={"attention_bias": True})
    names = [*projections(model)]
    if not config.get("use_dora"):
        names.append("model.embed_tokens")
    merged = save_adapter(tmp_path / "adapter", model, names, config=config)
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        assert distance(ask(llm, "mine"), merged) < 2e-5


_ROWS = "token_adapter.trainable_tokens_delta"


@pytest.mark.parametrize("rows", [None, [30, 5, 2]])
def test_an_adapter_fits_the_weights_that_come_after_it(
    rows: list[int] | None, tmp_path: Path
) -> None:
    """Also one that sets the lengths of rows, which are those of the sum with new weights."""
    old = save_reference("llama", tmp_path / "old", seed=1)
    new = save_reference("llama", tmp_path / "new", seed=2)
    with torch.no_grad():
        for part in projections(new).values():
            part.weight *= 1.5
    new.save_pretrained(tmp_path / "new")
    names = [*projections(old, "self_attn|mlp")]
    whole = {"lm_head": old.lm_head, "model.embed_tokens": old.model.embed_tokens}

    def add_whole(written: dict[str, torch.Tensor]) -> None:
        for name, part in whole.items():
            numbers = part.weight + 0.1 * torch.randn(part.weight.shape)
            kind = "modules_to_save.weight" if rows is None else _ROWS
            own = numbers if rows is None else numbers[rows]
            written[f"base_model.model.{name}.{kind}"] = own.detach()

    config = {"use_dora": True}
    if rows is not None:
        config["trainable_token_indices"] = {"embed_tokens": rows, "lm_head": rows}
    save_adapter(tmp_path / "adapter", old, names, config=config, tensors=add_whole)
    adapter = f"mine={tmp_path / 'adapter'}"
    with LLM(str(tmp_path / "old"), adapter=adapter) as llm:
        assert llm.core.bundle is not None
        llm.core.replace_weights(llm.core.bundle.with_weights(str(tmp_path / "new")))
        found = ask(llm, "mine")
    with LLM(str(tmp_path / "new"), adapter=adapter) as llm:
        expected = ask(llm, "mine")
    assert found.token_ids == expected.token_ids
    assert scores(found) == pytest.approx(scores(expected), rel=1e-5, abs=1e-5)


_MLP = ["gate_proj", "up_proj", "down_proj"]
_DELTA = ["in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate", "q_proj"]
# What PEFT is told besides rank and alpha, by the model and a word. It leaves alone what Mamba's
# networks of transformers multiply with outside of modules.
PEFT = {
    "llama plain": {"target_modules": ["q_proj", "down_proj", "lm_head"]},
    "llama stable": {"target_modules": ["k_proj", "up_proj"], "use_rslora": True},
    "llama DoRA": {"target_modules": ["v_proj", "o_proj", "gate_proj"], "use_dora": True},
    "llama ranks": {"target_modules": _MLP, "rank_pattern": {"up_proj": 3, "layers.1.mlp": 7}},
    "llama alphas": {"target_modules": _MLP, "alpha_pattern": {"layers.0.mlp.down_proj": 20}},
    "llama parameter": {
        "target_modules": ["v_proj"],
        "target_parameters": ["q_proj.weight", "k_proj.weight"],
        "alpha_pattern": {"q_proj": 30, "v_proj": 9},
        "rank_pattern": {"k_proj.weight": 3},
    },
    "mixtral router": {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]},
    "olmoe router": {"target_modules": ["q_proj"], "modules_to_save": ["gate"]},
    "llama whole": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    "llama tokens": {"target_modules": ["v_proj"], "trainable_token_indices": [30, 5, 2]},
    "llama tokens of both": {
        "target_modules": ["v_proj"],
        "trainable_token_indices": {"embed_tokens": [30, 5], "lm_head": [*range(12, 40)]},
    },
    "llama more": {"target_modules": ["v_proj"], "modules_to_save": ["q_proj", "down_proj"]},
    "phi3 whole": {"target_modules": ["o_proj"], "modules_to_save": ["qkv_proj", "gate_up_proj"]},
    "llama embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "phi3 joined": {"target_modules": ["qkv_proj", "gate_up_proj"]},
    "glm4 joined": {"target_modules": ["gate_up_proj", "o_proj"]},
    "mamba": {"target_modules": ["in_proj", "x_proj"]},
    "mamba2": {"target_modules": ["in_proj"]},
    "bamba DoRA": {"target_modules": ["in_proj", "out_proj", "q_proj"], "use_dora": True},
    "nemotron_h": {"target_modules": ["in_proj", "up_proj", "k_proj"]},
    "falcon_h1": {"target_modules": ["in_proj", "v_proj", "down_proj"]},
    "lfm2": {"target_modules": ["in_proj", "w1", "q_proj"]},
    "qwen3_next": {"target_modules": _DELTA},
    "lfm3": {"target_modules": ["g_proj", "in_proj"]},
    "olmo_hybrid": {"target_modules": ["q_proj", "v_proj", "g_proj", "o_proj"]},
    "recurrent_gemma": {"target_modules": ["linear_x", "linear_y", "linear_out", "q_proj"]},
    "kimi_linear gates": {"target_modules": ["f_a_proj", "f_b_proj", "o_proj"]},
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"]},
    "gpt2 DoRA": {"target_modules": ["c_attn", "c_proj"], "use_dora": True},
    "gpt_bigcode": {"target_modules": ["c_attn", "c_proj", "c_fc"]},
    "gpt_neo": {"target_modules": ["q_proj", "out_proj", "c_proj"]},
    "gptj": {"target_modules": ["q_proj", "fc_in"]},
    "codegen": {"target_modules": ["qkv_proj", "fc_out"]},
    "opt": {"target_modules": ["v_proj", "out_proj", "fc1"]},
    "kimi_linear": {"target_modules": ["kv_a_proj_with_mqa", "kv_b_proj", "b_proj"]},
}


@pytest.mark.filterwarnings("ignore")  # PEFT asks transformers for old names
@pytest.mark.parametrize("case", PEFT)
def test_peft_gives_the_same(case: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    kind, changes = CASES.get(case.partition(" ")[0], (case.partition(" ")[0], {}))
    model = save_reference(kind, tmp_path / "model", changes=changes)
    plain = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, **PEFT[case]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name and "magnitude" not in name:
            nn.init.normal_(parameter, 0, 0.2)
        elif "modules_to_save" in name or "tokens_delta" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
        elif "magnitude" in name:
            parameter.data *= 1 + 0.2 * torch.rand_like(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        own = distance(ask(llm), plain)
        changed = ask(llm, "mine")
    assert distance(changed, adapted.eval()) < max(1e-5, 10 * own)
    assert distance(changed, plain) > 1e-2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3", "deepseek_v3 dense"])
def test_keys_and_values_from_latents(case: str, tmp_path: Path) -> None:
    """As PEFT adapts them, long enough to be read in parts, beside requests with others."""
    peft = pytest.importorskip("peft")
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    plain = copy.deepcopy(model)
    names = [name for name in projections(model, "kv_b_proj|o_proj") if "layers.1" in name]
    save_adapter(tmp_path / "other", model, names, rank=7, seed=3)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["kv_b_proj"])
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    every = f"mine={tmp_path / 'adapter'},other={tmp_path / 'other'}"
    wanted = ["mine", None, "other", "mine", None]
    with LLM(str(tmp_path / "model")) as llm:
        base = [llm.generate([[number, *IDS]], greedy())[0].token_ids for number in (1, 4)]
    with LLM(str(tmp_path / "model"), adapter=every, token_budget=8) as llm:
        before, changed = ask(llm), ask(llm, "mine")
        alone = [
            llm.generate([[number, *IDS]], greedy(), adapter=each)[0].token_ids
            for number, each in enumerate(wanted)
        ]
        llm.core.engine.forget_prefixes()
        beside = generate_all(llm, wanted)
    own = distance(before, plain)
    assert distance(changed, adapted.eval()) < max(1e-5, 10 * own)
    assert distance(changed, plain) > 1e-2
    assert beside == alone
    assert [beside[1], beside[4]] == base


def test_changes_of_a_shared_block_are_saved_with_each_layer(tmp_path: Path) -> None:
    """The same ones are one; where they differ, nothing is guessed."""
    kind, changes = CASES["zamba2"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    block = "shared_transformer.feed_forward.gate_up_proj"
    users = [name for name in projections(model) if name.endswith(block)]
    owners = {id(model.get_submodule(name).weight): name for name in reversed(users)}
    others = [name for name in users if name not in owners.values()]
    assert others

    def once_more(written: dict[str, torch.Tensor], *, more: float = 0.0) -> None:
        for name in others:
            owner = owners[id(model.get_submodule(name).weight)]
            for part in ("A", "B"):
                numbers = written[f"base_model.model.{owner}.lora_{part}.weight"]
                written[f"base_model.model.{name}.lora_{part}.weight"] = numbers + more

    chosen = [*owners.values()]
    merged = save_adapter(tmp_path / "adapter", model, chosen, tensors=once_more)
    for name in others:
        owner = owners[id(model.get_submodule(name).weight)]
        merged.get_submodule(name).weight = merged.get_submodule(owner).weight
    unlike = functools.partial(once_more, more=1.0)
    save_adapter(tmp_path / "unlike", model, chosen, tensors=unlike)
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        assert distance(ask(llm, "mine"), merged) < max(1e-5, 10 * distance(ask(llm), model))
        with pytest.raises(CheckpointError, match="not supported"):
            llm.core.adapters.load("unlike", tmp_path / "unlike")


EXPERTS = {
    "qwen2_moe": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "mixtral": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "deepseek_v3": ["mlp.experts.down_proj"],
    "gpt_oss": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "qwen3_5_moe_text": ["mlp.experts.gate_up_proj"],
    "nemotron_h experts": ["mixer.experts.up_proj", "mixer.experts.down_proj"],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", EXPERTS)
def test_experts_in_one_tensor(case: str, tmp_path: Path) -> None:
    """As PEFT adapts them, by ``target_parameters``; beside a projection, and a request without."""
    peft = pytest.importorskip("peft")
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    plain = copy.deepcopy(model)
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=EXPERTS[case]
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    merged = adapted.eval()
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        before, changed = ask(llm), ask(llm, "mine")
        beside = generate_all(llm, ["mine", None, "mine", None])
        alone = [
            llm.generate([[number, *IDS]], greedy(), adapter=each)[0].token_ids
            for number, each in enumerate(["mine", None, "mine", None])
        ]
    own = distance(before, plain)
    assert distance(changed, merged) < max(1e-5, 10 * own)
    assert distance(changed, plain) > 1e-2
    assert beside == alone


def turn_experts(directory: Path, experts: int, release: str | None) -> None:
    """Write factors of experts for the transposed matrices, as releases of PEFT before 0.20 did."""
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if "experts" in name and "lora_A" in name]:
        other = name.replace("lora_A", "lora_B")
        a = tensors[name].unflatten(0, (experts, -1))  # (E, r, in)
        b = tensors[other].unflatten(1, (-1, experts))  # (out, r, E)
        tensors[name] = b.permute(2, 1, 0).flatten(0, 1).contiguous()
        tensors[other] = a.permute(2, 1, 0).flatten(1).contiguous()
    save_file(tensors, path)
    about = json.loads((directory / "adapter_config.json").read_text())
    about |= {"peft_version": release}
    (directory / "adapter_config.json").write_text(json.dumps(about))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "sizes", "parameters", "release"),
    [
        ("olmoe", {}, ["experts.gate_up_proj", "experts.down_proj"], "0.18.1"),
        # what is square is what the others are, or else what the release makes
        ("olmoe", {"intermediate_size": 12}, EXPERTS["mixtral"], "main"),
        ("olmoe", {"intermediate_size": 12}, EXPERTS["mixtral"][:1], "0.18.1"),
        ("olmoe", {"intermediate_size": 12}, EXPERTS["mixtral"][:1], "0.19.0"),
        ("olmoe", {"intermediate_size": 12}, EXPERTS["mixtral"][:1], None),  # before 0.18
        ("gpt_oss", {"intermediate_size": 24}, EXPERTS["gpt_oss"][1:], "0.19.1"),
    ],
)
def test_experts_as_older_peft_wrote_them(
    case: str, sizes: dict[str, int], parameters: list[str], release: str | None, tmp_path: Path
) -> None:
    """They were refused where that shows, and multiplied the wrong way round in square matrices."""
    peft = pytest.importorskip("peft")
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes={**changes, **sizes})
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=parameters
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    experts = changes.get("num_experts") or changes["num_local_experts"]
    turn_experts(tmp_path / "adapter", experts, release)
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        assert distance(ask(llm, "mine"), adapted.eval()) < 1e-5
    convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    with LLM(str(tmp_path / "out")) as llm:
        assert distance(ask(llm), adapted.eval()) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]},  # twice the rank
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
            "rank_pattern": {"experts": 2, "experts.gate_up_proj": 5},
            "alpha_pattern": {"experts": 50, "experts.down_proj": 17},
        },
    ],
    ids=["all projections", "patterns"],
)
def test_ranks_and_alphas_of_parameters_are_found_by_their_names(
    config: dict[str, object], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    kind, changes = CASES["olmoe"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, **config))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        assert distance(ask(llm, "mine"), adapted.eval()) < 1e-5


@pytest.mark.parametrize(
    ("case", "parameter", "rows", "columns"),
    [
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_bias", 4, 88),
        ("mamba", "backbone.layers.0.mixer.A_log", 44, 5),
    ],
)
def test_parameters_that_no_matrix_is_multiplied_with_are_refused(
    case: str, parameter: str, rows: int, columns: int, tmp_path: Path
) -> None:
    """Their changes were taken for repetitions of themselves, and left out without a word."""
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    module, _, leaf = parameter.rpartition(".")

    def add(tensors: dict[str, Tensor]) -> None:
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.ones(4, columns)
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.ones(rows, 4)

    about = {"target_parameters": [leaf]}
    save_adapter(tmp_path / "adapter", model, [], config=about, tensors=add)
    with LLM(str(tmp_path / "model")) as llm:
        words = f"adapters of {parameter.replace('.', '[.]')} are not supported"
        with pytest.raises(CheckpointError, match=words) as caught:
            llm.core.adapters.load("mine", tmp_path / "adapter")
    assert "blazr convert --merge-adapter" in caught.value.hint


def test_experts_one_by_one(tmp_path: Path) -> None:
    """As PEFT adapts models whose experts are modules: some matrices of some experts."""
    kind, changes = CASES["qwen2_moe"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    merged = copy.deepcopy(model)
    rng = torch.Generator().manual_seed(3)
    written: dict[str, torch.Tensor] = {}
    for layer, expert, name in ((0, 0, "gate"), (0, 3, "down"), (1, 1, "up"), (1, 1, "gate")):
        experts = merged.model.layers[layer].mlp.experts
        inner = experts.down_proj.shape[-1]
        rows = {"gate": slice(None, inner), "up": slice(inner, None), "down": slice(None)}[name]
        stack = experts.down_proj if name == "down" else experts.gate_up_proj
        part = stack[expert, rows]
        a = torch.randn(4, part.shape[1], generator=rng) * 0.2
        b = torch.randn(part.shape[0], 4, generator=rng) * 0.2
        at = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{name}_proj"
        written |= {f"{at}.lora_A.weight": a, f"{at}.lora_B.weight": b}
        part += 2 * (b @ a)
    (tmp_path / "adapter").mkdir()
    save_file(written, tmp_path / "adapter" / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["gate_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(about))
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        changed = ask(llm, "mine")
    assert distance(changed, merged) < 1e-5
    assert distance(changed, model) > 1e-2


@pytest.mark.filterwarnings("ignore")
def test_a_change_of_a_tied_head_says_what_helps(tmp_path: Path) -> None:
    """The hints are right: merging by PEFT for a whole head, a head of its own for low rank."""
    peft = pytest.importorskip("peft")
    model = save_reference("llama", tmp_path / "model", changes={"tie_word_embeddings": True})
    apart = copy.deepcopy(model)
    apart.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    apart.config.tie_word_embeddings = False
    apart.save_pretrained(tmp_path / "apart")
    merged = save_adapter(tmp_path / "low", apart, ["lm_head", *projections(apart, "q_proj")])
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, 0, 0.2)
    adapted.save_pretrained(tmp_path / "whole")
    with LLM(str(tmp_path / "model")) as llm:
        for name, words in (("low", "head of its own"), ("whole", "merge_and_unload")):
            with pytest.raises(CheckpointError, match="head is its embedding") as caught:
                llm.core.adapters.load("mine", tmp_path / name)
            assert words in caught.value.hint
            assert "--merge-adapter" not in caught.value.hint  # which refuses it, too
    with LLM(str(tmp_path / "apart"), adapter=f"mine={tmp_path / 'low'}") as llm:
        assert distance(ask(llm, "mine"), merged) < 1e-5
    unloaded = copy.deepcopy(adapted).merge_and_unload()
    unloaded.save_pretrained(tmp_path / "unloaded")
    with LLM(str(tmp_path / "unloaded")) as llm:
        assert distance(ask(llm), adapted.eval()) < 1e-5


@pytest.mark.parametrize(
    ("indices", "count", "words"),
    [
        ([3, 53], 2, "rows of model.embed_tokens.weight are not of this model"),
        ([3, 4, 5], 2, "not those that adapter_config.json names"),
        ([3, 3], 2, "not those that adapter_config.json names"),
        ([3, -1], 2, "not those that adapter_config.json names"),
        ({"lm_head": [3, 4]}, 2, "not those that adapter_config.json names"),
        ([3, 4], 0, "not those that adapter_config.json names"),
    ],
)
def test_rows_of_tokens_that_are_not_there_are_refused(
    indices: object, count: int, words: str, tmp_path: Path
) -> None:
    model = save_reference("llama", tmp_path / "model")
    name = f"base_model.model.model.embed_tokens.{_ROWS}"
    rows = {name: torch.ones(count, 24)} if count else {}
    config = {"trainable_token_indices": indices}
    names = [*projections(model, "q_proj")]
    where = tmp_path / "adapter"
    save_adapter(where, model, names, config=config, tensors=lambda x: x.update(rows))
    with LLM(str(tmp_path / "model")) as llm, pytest.raises(CheckpointError, match=words):
        llm.core.adapters.load("mine", where)
    with pytest.raises(CheckpointError, match=words):
        convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=where)


# What chooses experts, which is a linear layer in some versions of the library, and where those
# before the fifth had it under another name.
ROUTER = re.compile(r"\.(gate|router|router\.proj)$")
BEFORE = {
    "mixtral": (".mlp.gate.", ".block_sparse_moe.gate."),
    "granitemoe": (".router.", ".router.layer."),
}


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("mixtral", {}),
        ("mixtral", {"use_dora": True}),
        ("qwen2_moe", {}),
        ("granitemoe", {}),
        ("gpt_oss", {}),
        ("deepseek_v3", {}),
        ("gemma4_text experts", {}),
    ],
)
def test_routers(case: str, config: dict[str, object], tmp_path: Path) -> None:
    """As PEFT's all-linear adapts them where they are modules of linear layers."""
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    names = [
        name
        for name, part in model.named_modules()
        if ROUTER.search(name) and hasattr(part, "weight")
    ]
    assert names
    old, new = BEFORE.get(kind, ("", ""))

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [*tensors]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    names += projections(model, "q_proj|o_proj")
    merged = save_adapter(tmp_path / "adapter", model, names, config=config, tensors=rename)
    with LLM(str(tmp_path / "model"), adapter=f"mine={tmp_path / 'adapter'}") as llm:
        before, changed, after = ask(llm), ask(llm, "mine"), ask(llm)
    assert scores(before) == scores(after)
    assert distance(changed, merged) < max(1e-5, 10 * distance(before, model))
    assert distance(changed, model) > 1e-2


def test_routers_decide_in_float32_whatever_the_weights_are(tmp_path: Path) -> None:
    kind, changes = CASES["gpt_oss"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    save_adapter(tmp_path / "adapter", model, ["model.layers.1.mlp.router"])
    adapter = f"mine={tmp_path / 'adapter'}"
    with LLM(str(tmp_path / "model"), adapter=adapter, dtype="bfloat16") as llm:
        module = llm.core.bundle.weights.module
        router = module.layers[1].feed_forward.router
        a, b = (getattr(router.lora.table.factors[1], name).double() for name in ("a", "b"))
        x = torch.randn(5, a.shape[1]).bfloat16()
        plain = x.double() @ router.weight.double().T + router.bias.double()
        with torch.inference_mode(), module.step_adapters.using(torch.tensor([1, 0, 1, 0, 1])):
            found = router(x)
    expected = plain + torch.tensor([1, 0, 1, 0, 1])[:, None] * (x.double() @ a.T @ b)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_dora_of_heads_and_experts_says_what_to_train_instead(tmp_path: Path) -> None:
    kind, changes = CASES["deepseek_v3"]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    dora = {"use_dora": True}
    names = [*projections(model, "layers.1.*kv_b_proj")]
    save_adapter(tmp_path / "heads", model, names, config=dora)
    rows, columns = model.model.layers[1].mlp.experts.down_proj.shape[1:]
    shapes = {"lora_A.weight": (4, columns), "lora_B.weight": (rows, 4)}
    shapes["lora_magnitude_vector"] = (rows,)
    at = "base_model.model.model.layers.1.mlp.experts.0.down_proj"
    of_expert = {f"{at}.{name}": torch.ones(shape) for name, shape in shapes.items()}
    save_adapter(
        tmp_path / "experts", model, [], config=dora, tensors=lambda x: x.update(of_expert)
    )
    with LLM(str(tmp_path / "model")) as llm:
        for name, tensor in (("heads", "kv_b_proj"), ("experts", "down_proj")):
            with pytest.raises(CheckpointError, match=f"DoRA of .*{tensor}") as caught:
                llm.core.adapters.load("mine", tmp_path / name)
            assert "lora_magnitude_vector" in caught.value.found
            assert "use_dora=False" in caught.value.hint


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid model and five adapters of it, of several ranks."""
    root = tmp_path_factory.mktemp("adapters")
    kind, changes = CASES["bamba"]
    model = save_reference(kind, root / "model", changes=changes)
    names = supported("bamba", model)
    for number in range(5):
        some = [name for place, name in enumerate(names) if (place + number) % 3]
        save_adapter(root / f"a{number}", model, some, rank=2 + 3 * number, seed=number)
    return root


@pytest.fixture
def llm(shelf: Path) -> Iterator[LLM]:
    every = ",".join(f"a{number}={shelf / f'a{number}'}" for number in range(5))
    with LLM(str(shelf / "model"), adapter=every, max_running=8) as llm:
        yield llm


def test_each_request_of_a_batch_has_its_own(llm: LLM, shelf: Path) -> None:
    with LLM(str(shelf / "model")) as plain:
        base = [plain.generate([[each, *IDS]], greedy())[0].token_ids for each in range(8)]
    wanted = ["a0", None, "a1", "a2", None, "a3", "a4", "a0"]
    alone = [
        llm.generate([[number, *IDS]], greedy(), adapter=name)[0].token_ids
        for number, name in enumerate(wanted)
    ]
    for number, name in enumerate(wanted):
        assert (alone[number] == base[number]) == (name is None)
    llm.core.engine.forget_prefixes()
    for spec in (None, "ngram"):
        with LLM(
            str(shelf / "model"), adapter=adapters_of(shelf), max_running=8, spec=spec
        ) as other:
            replies = generate_all(other, wanted)
        assert replies == alone


KINDS: tuple[dict[str, object], ...] = (
    {},
    {"use_rslora": True, "lora_alpha": 3},  # as strong as the others, about
    {"use_dora": True},
    {"rank_pattern": {"o_proj": 11}},
    {"alpha_pattern": {"down_proj": 15}},
)


@pytest.mark.parametrize(
    "case", ["llama biases", "qwen2_moe", "deepseek_v3", "qwen3_next", "mamba2", "zamba2 untied"]
)
def test_eight_at_once_with_five_kinds_and_none(case: str, tmp_path: Path) -> None:
    """Each gives what its merged weights give, and to the bit what it gives alone."""
    kind, changes = CASES[case]
    model = save_reference(kind, tmp_path / "model", changes=changes)
    networks: dict[str | None, nn.Module] = {None: model}
    for number, config in enumerate(KINDS):
        names = supported(case, model)
        if config.get("use_dora"):
            names = [name for name in names if "kv_b_proj" not in name]
        networks[f"a{number}"] = save_adapter(
            tmp_path / f"a{number}", model, names, rank=2 + number, seed=number, config=config
        )
    wanted = ["a0", None, "a1", "a2", None, "a3", "a4", "a0"]
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    with LLM(str(tmp_path / "model"), adapter=adapters_of(tmp_path), max_running=8) as llm:
        together = complete_all(llm, wanted, params)
        alone = [
            llm.generate([[number, *IDS]], params, adapter=name)[0]
            for number, name in enumerate(wanted)
        ]
    # transformers' own float32 is up to 2e-5 off in Zamba2, so the sums are made in float64
    exact = {name: copy.deepcopy(network).double() for name, network in networks.items()}
    for number, name in enumerate(wanted):
        assert distance(together[number], exact[name], (number, *IDS)) < 1e-5, name
        assert scores(together[number]) == scores(alone[number])


def greedy(count: int = 20) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def adapters_of(shelf: Path) -> str:
    return ",".join(f"a{number}={shelf / f'a{number}'}" for number in range(5))


def generate_all(llm: LLM, adapters: list[str | None]) -> list[tuple[int, ...]]:
    """What all requests reply that come at once, one for each adapter."""
    return [each.token_ids for each in complete_all(llm, adapters, greedy())]


def complete_all(
    llm: LLM, adapters: Sequence[str | None], params: SamplingParams
) -> list[Completion]:
    """All requests at once, one for each adapter."""
    from blazr.llm.generation import GenerationRequest
    from blazr.llm.results import fold

    requests = [
        GenerationRequest(prompt=[number, *IDS], params=params, adapter=name)
        for number, name in enumerate(adapters)
    ]
    return list(fold(llm.events(requests)))


def test_prefixes_are_an_adapter_s_own(llm: LLM) -> None:
    prompt = list(range(1, 50)) * 4
    assert llm.generate([prompt], greedy(1))[0].usage.cached_tokens == 0
    assert llm.generate([prompt], greedy(1), adapter="a1")[0].usage.cached_tokens == 0
    assert llm.generate([prompt], greedy(1), adapter="a2")[0].usage.cached_tokens == 0
    assert llm.generate([prompt], greedy(1), adapter="a1")[0].usage.cached_tokens == 192
    assert llm.generate([prompt], greedy(1))[0].usage.cached_tokens == 192


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_loaded_and_unloaded_often_under_load(llm: LLM, shelf: Path, count: int) -> None:
    """Nothing of it is left; replies that run keep their adapter to the end."""
    expected = llm.generate([[1, *IDS]], greedy(200), adapter="a1")[0].token_ids
    adapters, slots = llm.core.adapters, llm.core.engine._put_adapter.__self__._adapters
    free, factors = len(slots._free), num_factors()
    for number in range(count):
        name = f"other{number}"
        running = llm.stream([1, *IDS], greedy(200), adapter="a1") if number % 20 == 0 else None
        if running is not None:
            next(running)
        adapters.load(name, shelf / f"a{number % 5}")
        using = llm.stream([2, *IDS], greedy(4), adapter=name)
        next(using)
        adapters.unload(name)
        with pytest.raises(RequestError, match="no such adapter"):
            llm.generate([[2, *IDS]], greedy(1), adapter=name)
        list(using)
        if running is not None:
            ids = [each for event in running for each in getattr(event, "token_ids", ())]
            assert tuple(ids) == expected[-len(ids) :]
    llm.generate([[2, *IDS]], greedy(1))
    assert len(slots._free) == free
    assert len(adapters.by_name) == 5
    assert num_factors() == factors
    for lora in slots._loras.values():
        assert len(lora.table.factors) <= 5


def test_one_that_is_unloaded_goes_with_its_last_reply(llm: LLM, shelf: Path) -> None:
    """Also where that is aborted, and nothing else runs."""
    slots = llm.core.engine._put_adapter.__self__._adapters
    free = len(slots._free)
    llm.core.adapters.load("leaving", shelf / "a1")
    reply = llm.stream([1, *IDS], greedy(200), adapter="leaving")
    next(reply)
    llm.core.adapters.unload("leaving")
    reply.close()
    llm.core.engine.call(lambda: None)  # after what was asked before
    assert len(slots._free) == free


def test_one_that_is_replaced_goes_with_its_last_reply(llm: LLM, shelf: Path) -> None:
    """Replies that run keep the old one; what has not begun gets the new one, with its prefixes."""
    adapters, engine = llm.core.adapters, llm.core.engine
    slots = engine._put_adapter.__self__._adapters
    free = len(slots._free)
    prompt = [*range(1, 50)] * 2
    old, new = [
        llm.generate([prompt], greedy(60), adapter=name)[0].token_ids for name in ("a1", "a2")
    ]
    assert old != new
    adapters.load("name", shelf / "a1", in_place=True)  # there is none to replace yet
    running = llm.stream(prompt, greedy(60), adapter="name")
    next(running)
    late = llm.core.prepare(GenerationRequest(prompt=prompt, params=greedy(60), adapter="name"))
    for each in ("a3", "a4", "a2"):
        adapters.load("name", shelf / each, in_place=True)
    with pytest.raises(CheckpointError):
        adapters.load("name", shelf / "none", in_place=True)
    assert llm.generate([prompt], greedy(60), adapter="name")[0].token_ids == new
    ids = [each for event in running for each in getattr(event, "token_ids", ())]
    assert tuple(ids) == old[-len(ids) :]
    outputs: SimpleQueue[TokenOutput] = SimpleQueue()
    engine.submit(late.request, outputs.put)
    found: list[int] = []
    while len(found) < len(new):
        output = outputs.get(timeout=60)
        assert output.error is None
        found += output.token_ids
    assert tuple(found) == new
    adapters.unload("name")
    assert len(slots._free) == free


def num_factors() -> int:
    """How many changes of matrices are in memory."""
    gc.collect()
    return sum(isinstance(each, LoraFactors) for each in gc.get_objects())


def test_packed_weights_take_adapters(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = save_reference("llama", tmp_path / "model", changes=sizes)
    merged = save_adapter(tmp_path / "adapter", model, [*projections(model)])
    adapter = f"mine={tmp_path / 'adapter'}"
    with LLM(str(tmp_path / "model"), adapter=adapter, quantize="q8_0") as llm:
        rounding = distance(ask(llm), model)
        assert 0 < rounding < 1
        assert distance(ask(llm, "mine"), merged) < 4 * rounding
        assert distance(ask(llm, "mine"), model) > 8 * rounding


def spoiled(shelf: Path, where: Path, **changes: object) -> Path:
    """The first adapter with other keys in its configuration."""
    where.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (where / name).write_bytes((shelf / "a0" / name).read_bytes())
    config = json.loads((where / "adapter_config.json").read_text()) | changes
    (where / "adapter_config.json").write_text(json.dumps(config))
    return where


def test_bad_adapters_are_refused_and_the_model_goes_on(
    llm: LLM, shelf: Path, tmp_path: Path
) -> None:
    expected = ask(llm).token_ids
    bad: list[tuple[Path, type[BlazrError], str]] = []
    other = save_reference("llama", tmp_path / "other", changes={"hidden_size": 32})
    save_adapter(tmp_path / "foreign", other, [*projections(other, "self_attn")])
    bad.append((tmp_path / "foreign", CheckpointError, "not of this model|no matrix|supported"))
    bad.append((tmp_path / "nothing", CheckpointError, "is no adapter"))
    bad.append((spoiled(shelf, tmp_path / "r0", r=0), ConfigError, "rank"))
    bad.append((spoiled(shelf, tmp_path / "r3", r=5), CheckpointError, "do not fit"))
    bad.append((spoiled(shelf, tmp_path / "kind", peft_type="IA3"), ConfigError, "kind"))
    bad.append((spoiled(shelf, tmp_path / "a", lora_alpha="x"), ConfigError, "lora_alpha"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        where = spoiled(shelf, tmp_path / f"no {name}")
        (where / name).unlink()
        bad.append((where, CheckpointError, "missing"))
    pickled = spoiled(shelf, tmp_path / "pickle")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    bad.append((pickled, CheckpointError, "pickle"))
    cut = spoiled(shelf, tmp_path / "cut")
    content = (cut / "adapter_model.safetensors").read_bytes()
    (cut / "adapter_model.safetensors").write_bytes(content[: len(content) // 2])
    bad.append((cut, CheckpointError, "bytes|header|cut"))

    def put_nan(tensors: dict[str, torch.Tensor]) -> None:
        next(iter(tensors.values()))[0, 0] = float("nan")

    def put_whole(tensors: dict[str, torch.Tensor]) -> None:
        tensors["base_model.model.lm_head.modules_to_save.weight"] = torch.ones(3)

    kind, changes = CASES["bamba"]
    model = save_reference(kind, tmp_path / "again", changes=changes)
    names = supported("bamba", model)
    save_adapter(tmp_path / "nan", model, names, tensors=put_nan)
    bad.append((tmp_path / "nan", CheckpointError, "NaN"))
    save_adapter(tmp_path / "whole", model, names, tensors=put_whole)
    bad.append((tmp_path / "whole", CheckpointError, "not of this model|bring .* along"))
    for path, error, words in bad:
        with pytest.raises(error, match=words):
            llm.core.adapters.load("bad", path)
    assert "bad" not in llm.core.adapters.by_name
    assert ask(llm).token_ids == expected


def test_a_refusal_never_leads_to_another_one(tmp_path: Path) -> None:
    """Merging by blazr was advised where it refuses the same, and by PEFT where it cannot."""
    model = save_reference("llama", tmp_path / "model")
    names = [*projections(model, "q_proj")]
    save_adapter(tmp_path / "prompt", model, names, config={"peft_type": "PROMPT_TUNING"})
    save_adapter(tmp_path / "factors", model, names, config={"peft_type": "LOHA"})
    score = {"base_model.model.score.weight": torch.ones(3, 24)}
    save_adapter(tmp_path / "classifier", model, names, tensors=lambda x: x.update(score))
    at = "base_model.model.model.embed_tokens.lora_"
    of_embedding = {f"{at}magnitude_vector": torch.ones(24)}
    of_embedding |= {f"{at}embedding_A": torch.ones(4, 53), f"{at}embedding_B": torch.ones(24, 4)}
    save_adapter(
        tmp_path / "embedding",
        model,
        [],
        config={"use_dora": True},
        tensors=lambda x: x.update(of_embedding),
    )
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "adapter_config.json").write_text('{"fine_tune_type": "lora"}')
    save_file({"a": torch.ones(1)}, tmp_path / "mlx" / "adapters.safetensors")
    wanted = {
        "prompt": ("kind of adapter", "ordinary LoRA"),
        "factors": ("kind of adapter", "PEFT's merge_and_unload"),
        "classifier": ("no matrix 'score.weight'", ""),
        "embedding": ("magnitudes of model.embed_tokens.weight", "PEFT's merge_and_unload"),
        "mlx": ("mlx-lm", "mlx_lm.fuse"),
    }
    with LLM(str(tmp_path / "model")) as llm:
        for name, (words, hint) in wanted.items():
            with pytest.raises(BlazrError, match=words) as caught:
                llm.core.adapters.load("mine", tmp_path / name)
            assert hint in (caught.value.hint or ""), name
            assert "--merge-adapter" not in (caught.value.hint or ""), name


def test_numbers_of_eight_bits(tmp_path: Path) -> None:
    model = save_reference("llama", tmp_path / "model")
    one = torch.full((4, 24), 0.5)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"

    def put(numbers: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda tensors: tensors.update({name: numbers})

    names = [*projections(model, "q_proj")]
    save_adapter(tmp_path / "plain", model, names, tensors=put(one))
    save_adapter(tmp_path / "small", model, names, tensors=put(one.to(torch.float8_e4m3fn)))
    every = f"plain={tmp_path / 'plain'},small={tmp_path / 'small'}"
    with LLM(str(tmp_path / "model"), adapter=every) as llm:
        assert scores(ask(llm, "small")) == scores(ask(llm, "plain"))


@pytest.mark.parametrize(("part", "factor"), [("lora_A", 1e6), ("lora_B", 1e6), ("alpha", 1e8)])
def test_numbers_that_overflow_in_the_network_s_dtype_are_refused(
    part: str, factor: float, tmp_path: Path
) -> None:
    """They were infinite, and so each reply with the adapter ended with NaN."""
    model = save_reference("llama", tmp_path / "model")

    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if part in name:
                tensors[name] = factor * tensors[name]

    config = {"lora_alpha": factor} if part == "alpha" else {}
    names = [*projections(model, "layers.1.self_attn.q_proj")]
    save_adapter(tmp_path / "large", model, names, config=config, tensors=enlarge)
    with LLM(str(tmp_path / "model"), dtype="float16") as llm:
        words = "large: the change of .*layers.1.self_attn.q_proj.* is not finite in float16"
        with pytest.raises(CheckpointError, match=words):
            llm.core.adapters.load("mine", tmp_path / "large")
        assert ask(llm).token_ids
    with LLM(str(tmp_path / "model"), dtype="bfloat16") as llm:
        llm.core.adapters.load("mine", tmp_path / "large")


def test_patterns_that_take_long_are_refused(llm: LLM, shelf: Path, tmp_path: Path) -> None:
    slow = {"(" + ".*" * 13 + ")x": 4}  # so many ways to cut a name that none is found in time
    with pytest.raises(ConfigError, match="rank_pattern"):
        llm.core.adapters.load("slow", spoiled(shelf, tmp_path / "slow", rank_pattern=slow))


@pytest.mark.parametrize("key", ["use_rslora", "use_dora"])
def test_settings_that_are_not_true_or_false_are_refused(
    llm: LLM, shelf: Path, tmp_path: Path, key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        llm.core.adapters.load("bad", spoiled(shelf, tmp_path / key, **{key: 1}))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lora_A", "lora_A.other", "by another name"),
        (r"base_model.model.model.", "base_model.model.backbone.", "changed twice"),
        ("lora_B.weight", "lora_magnitude_vector", "lengths of rows"),
    ],
)
def test_tensors_that_contradict_others_are_refused(
    llm: LLM, shelf: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    """They were read, and others left out, without a word."""
    where = spoiled(shelf, tmp_path / "bad")
    tensors = load_file(where / "adapter_model.safetensors")
    for name in [name for name in tensors if old in name and "embed" not in name]:
        again = 2 * tensors[name]
        tensors[name.replace(old, new)] = again[:, 0] if "magnitude" in new else again
    save_file(
        {name: each.contiguous() for name, each in tensors.items()},
        where / "adapter_model.safetensors",
    )
    with pytest.raises(CheckpointError, match=words):
        llm.core.adapters.load("bad", where)


def test_flags_that_say_nothing_are_refused() -> None:
    for text in ("path", "=path", "name=", "a=x,a=y"):
        with pytest.raises(ConfigError, match="--adapter"):
            LLM(adapter=text)
