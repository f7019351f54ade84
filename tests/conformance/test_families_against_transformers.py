"""Every Hugging Face family against transformers: the same logits, the same greedy tokens."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from blazr.bench.reference.open import open_reference
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.hf.derive import ACTIVATIONS
from blazr.models.loading.load import LoadedModel, load
from blazr.models.loading.plan import detect_family, plan_model
from blazr.nn.device import resolve_device
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.operands.attention import AttentionTemperature
from blazr.nn.ops.attention import scale_queries
from blazr.nn.ops.pointwise import activate
from blazr.nn.quant.weight import Weight
from tests.support.hybrids import classic_layers
from tests.support.networks import VOCAB, Lab
from tests.support.references import (
    CASES,
    LLAMA4_APART,
    YARN,
    is_vision,
    known_to_transformers,
    reference_truth,
    rewrite_config,
    save_reference,
    take_experts_apart,
)
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_as_right, assert_greedy

pytest.importorskip("transformers", reason="the reference is the transformers library")

CPU = resolve_device("cpu")
# Models that also see images: their language model is one of the above.
SEEING = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


@dataclass(frozen=True)
class Pair:
    """One model, theirs and ours."""

    name: str
    directory: Path
    theirs: nn.Module
    exact: nn.Module  # theirs in float64
    ours: LoadedModel
    lab: Lab


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Pair] = {}

    def make(name: str) -> Pair:
        if name not in made:
            kind, changes = CASES[name]
            directory = tmp_path_factory.mktemp("model")
            seed = sum(name.encode())
            theirs = save_reference(kind, directory, seed=seed, changes=changes)
            ours = load(str(directory), device=CPU, dtype="float32")
            made[name] = Pair(
                name, directory, theirs, deepcopy(theirs).double(), ours, Lab(ours.module)
            )
        return made[name]

    return make


@pytest.fixture(scope="module", params=CASES)
def pair(request, make_pair) -> Pair:
    return make_pair(request.param)


def tokens_of(count: int, seed: int) -> list[int]:
    chance = torch.Generator().manual_seed(run_seed(seed))
    return torch.randint(3, VOCAB, (count,), generator=chance).tolist()


def assert_same_logits(directory: Path, theirs: nn.Module) -> LoadedModel:
    """Load what lies there, and find the logits of theirs in it."""
    ours = load(str(directory), device=CPU, dtype="float32")
    ids = tokens_of(30, seed=1)
    with torch.inference_mode():
        found = ours.module.forward_sequences(torch.tensor([ids]))[0]
    assert_as_right(found, *reference_truth(theirs, ids))
    return ours


def test_every_family_has_a_case() -> None:
    kinds = {kind for kind, _ in CASES.values()}
    known = {name for name in FAMILIES if known_to_transformers(name)}
    assert kinds == {name for name in known if not is_vision(name)}


def test_logits_are_the_same_whole_cut_and_token_by_token(pair: Pair) -> None:
    for count in (1, 50):
        ids = tokens_of(count, seed=count)
        truth, loss = reference_truth(pair.theirs, ids, pair.exact)
        with torch.inference_mode():
            whole = pair.ours.module.forward_sequences(torch.tensor([ids]))[0]
        cuts = (3, 20, *range(38, 50))  # in chunks, and the last tokens one by one
        found = [whole, pair.lab.runner.logits(ids), pair.lab.runner.logits(ids, cuts)]
        for logits in found:
            assert_as_right(logits, truth, loss)


def _one_of_each_kind() -> list[object]:
    """The cases, all but the first of a type of model as slow tests."""
    first = {kind: case for case, (kind, _) in reversed(CASES.items())}.values()
    slow = pytest.mark.slow
    return [case if case in first else pytest.param(case, marks=slow) for case in CASES]


@pytest.mark.sample
@pytest.mark.parametrize("pair", _one_of_each_kind(), indirect=True)
def test_greedy_tokens_are_the_same_alone_among_strangers_and_from_a_prefix(pair: Pair) -> None:
    prompts = [tokens_of(count, seed=9) for count in (5, 20, 60, 80)]
    lab = Lab(pair.ours.module)
    asked = [lab.ask(prompt, max_tokens=12) for prompt in prompts]
    lab.run()
    for prompt, request in zip(prompts, asked, strict=True):
        tokens, _ = lab.answer(request)
        truth, loss = reference_truth(pair.theirs, [*prompt, *tokens[:-1]], pair.exact)
        assert_greedy(tokens, truth[len(prompt) - 1 :], loss)
    again = [lab.ask(prompt, max_tokens=12) for prompt in prompts]  # from cached prefixes
    lab.run()
    assert [lab.answer(each)[0] for each in again] == [lab.answer(each)[0] for each in asked]
    alone = Lab(pair.ours.module, max_running=1, prefix_cache=False)
    request = alone.ask(prompts[1], max_tokens=12)
    alone.run()
    assert alone.answer(request)[0] == lab.answer(asked[1])[0]


@pytest.mark.sample
def test_its_family_alone_recognises_it(pair: Pair) -> None:
    checkpoint = open_checkpoint(pair.directory)
    names = [name for name in FAMILIES if FAMILIES[name].matches(checkpoint)]
    assert names == [CASES[pair.name][0]]
    assert detect_family(checkpoint).name == pair.ours.family == names[0]


def _classic(written: dict[str, object]) -> dict[str, object]:
    """The changes that make a config look as files did before ``rope_parameters``."""
    changes = classic_layers(written) | {"torch_dtype": "float32"}
    new = written.get("rope_parameters")
    came_later = written["model_type"].startswith(("gemma4", "lfm3", "mellum", "laguna", "mimo_v2"))
    # a theta of null, by which OLMo Hybrid says that there is no rotation, cannot be set here
    if new is None or came_later or new.get("rope_theta", "by type") is None:
        return changes
    whole = new.get("full_attention", new)
    rest = {k: v for k, v in whole.items() if k not in {"rope_theta", "partial_rotary_factor"}}
    kind = rest.pop("rope_type")
    changes |= {
        "rope_parameters": None,
        "rope_theta": whole["rope_theta"],
        "partial_rotary_factor": whole.get("partial_rotary_factor"),
        "rope_scaling": {"type": kind, **rest} if rest or kind != "default" else None,
    }
    if "sliding_attention" in new:
        local = new["sliding_attention"]["rope_theta"]
        is_gemma = written["model_type"] == "gemma3_text"
        changes |= {"rope_local_base_freq": local} if is_gemma else {}
    return changes


@pytest.mark.sample
def test_the_classic_spelling_says_the_same(pair: Pair) -> None:
    path = pair.directory / "config.json"
    before, text = plan_model(str(pair.directory)).derivation.config, path.read_text()
    rewrite_config(pair.directory, **_classic(json.loads(text)))
    try:
        assert plan_model(str(pair.directory)).derivation.config == before
    finally:
        path.write_text(text)


@pytest.mark.sample
def test_no_key_that_the_library_writes_is_unknown(pair: Pair) -> None:
    """DeepSeek-V2's ``norm_topk_prob`` is: its own code looks at it, and the library does not."""
    unknown = [
        warning
        for warning in plan_model(str(pair.directory)).derivation.warnings
        if "unknown keys" in warning and not warning.endswith(": norm_topk_prob.")
    ]
    assert not unknown


def _derived_with(directory: Path, text: str, key: str, value: object) -> ModelConfig | None:
    """The network of a config in which a key has a value or is absent; None where it is refused."""
    (directory / "config.json").write_text(text)
    rewrite_config(directory, **{key: value})
    try:
        return plan_model(str(directory)).derivation.config
    except (CheckpointError, ConfigError):
        return None


@pytest.mark.sample
@pytest.mark.parametrize("pair", _one_of_each_kind(), indirect=True)
def test_what_a_config_does_not_say_is_what_the_library_takes(pair: Pair) -> None:
    text = (pair.directory / "config.json").read_text()
    checkpoint, family = open_checkpoint(pair.directory), FAMILIES[pair.ours.family]
    # how long a text may be is no part of the network
    keys = json.loads(text).keys() - {"max_position_embeddings"}
    taken = {key: getattr(type(pair.theirs.config), key, None) for key in keys}

    def derived(changes: dict[str, object]) -> ModelConfig | None:
        """The network, whether tensors fit it or not."""
        try:
            return family.derive(replace(checkpoint, config=changes)).config
        except (CheckpointError, ConfigError):
            return None

    for key, default in taken.items():
        if isinstance(default, bool | int | float):
            silent = {k: v for k, v in json.loads(text).items() if k != key}
            if derived(silent) == derived(silent | {key: default}):
                continue
            found = [_derived_with(pair.directory, text, key, each) for each in (None, default)]
            assert None in found or found[0] == found[1], key
    (pair.directory / "config.json").write_text(text)


@pytest.mark.sample
def test_where_a_config_says_nothing_of_rotation_the_librarys_is_taken(pair: Pair) -> None:
    text = (pair.directory / "config.json").read_text()
    # the library cannot read the infinite limit of steps that it writes
    told = {"rope_parameters", "rope_scaling", "rope_theta", "time_step_limit"}
    config = pair.theirs.config
    written = json.loads(config.to_json_string())  # the file may be as another test has left it
    silent = {key: value for key, value in written.items() if key not in told}
    taken = type(config).from_dict(silent).to_dict().get("rope_parameters")
    if taken is not None:
        found = [
            _derived_with(pair.directory, json.dumps(silent), "rope_parameters", each)
            for each in (None, taken)
        ]
        assert found[0] in (None, found[1])  # ministral3 is refused
    (pair.directory / "config.json").write_text(text)


@pytest.mark.sample
def test_a_key_that_nobody_knows_is_named_and_ignored(pair: Pair) -> None:
    before = plan_model(str(pair.directory)).derivation
    rewrite_config(pair.directory, attention_twist=0.5, lora_r=8)
    after = plan_model(str(pair.directory)).derivation
    rewrite_config(pair.directory, attention_twist=None, lora_r=None)
    assert after.config == before.config
    [warning] = set(after.warnings) - set(before.warnings)
    assert "unknown keys are ignored: attention_twist, lora_r" in warning


@pytest.mark.parametrize("case", ["olmoe", "qwen2_moe", "gpt_oss", "deepseek_v3", "kimi_linear"])
def test_more_experts_than_there_are_are_refused(case: str, tmp_path: Path) -> None:
    """transformers fails with the first token; all of them were taken, without a word."""
    kind, changes = CASES[case]
    save_reference(kind, tmp_path, changes=changes)
    assert plan_model(str(tmp_path)).derivation.config
    key = "num_experts_per_token" if case == "kimi_linear" else "num_experts_per_tok"
    rewrite_config(tmp_path, **{key: 99})
    with pytest.raises(ConfigError, match="cannot choose more experts than there are") as caught:
        plan_model(str(tmp_path))
    assert caught.value.found.startswith("99 of ")


def test_a_dense_model_may_name_more_experts_than_its_one(tmp_path: Path) -> None:
    """As Jamba's configs do."""
    changes = CASES["jamba"][1] | {"num_experts": 1, "num_experts_per_tok": 2}
    save_reference("jamba", tmp_path, changes=changes)
    assert plan_model(str(tmp_path)).derivation.config


def test_more_experts_than_the_best_groups_have_are_refused(make_pair) -> None:
    """Their scores are equal, so which of them is taken, and weighed in full, is left to chance."""
    directory = make_pair("deepseek_v3").directory  # two of four groups, of two experts each
    rewrite_config(directory, num_experts_per_tok=5)
    with pytest.raises(ConfigError, match="groups of experts"):
        plan_model(str(directory))
    rewrite_config(directory, num_experts_per_tok=3)


def test_groups_of_experts_that_no_layer_has_need_not_fit(tmp_path: Path) -> None:
    changes = CASES["deepseek_v3 dense"][1] | {"n_group": 3}
    save_reference("deepseek_v3", tmp_path, changes=changes)
    assert plan_model(str(tmp_path)).derivation.config


def test_deepseek_v2_fills_up_with_experts_of_weight_zero(tmp_path: Path) -> None:
    changes = CASES["deepseek_v2"][1] | {"num_experts_per_tok": 6}
    theirs = save_reference("deepseek_v2", tmp_path, changes=changes)  # 4 in the best groups
    assert_same_logits(tmp_path, theirs)


def test_an_empty_section_about_rotation_says_that_it_is_plain(tmp_path: Path) -> None:
    """Where there is none, GPT-OSS stretches it; an empty one was said to contradict that."""
    theirs = save_reference("gpt_oss", tmp_path, changes=CASES["gpt_oss"][1])
    taken = type(theirs.config)(rope_parameters={}).rope_parameters
    assert taken["rope_type"] == "default"
    text = (tmp_path / "config.json").read_text()
    empty, plain = (_derived_with(tmp_path, text, "rope_parameters", each) for each in ({}, taken))
    assert empty is not None
    assert empty == plain


def test_exaone_rotates_all_layers_where_none_has_a_window(tmp_path: Path) -> None:
    """EXAONE 4.0 1.2B, whose config says so with null; a silent one has windows."""
    full = ["full_attention", "full_attention"]
    changes = {"sliding_window": None, "layer_types": full}
    theirs = save_reference("exaone4", tmp_path, changes=changes)
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3n_text"])
@pytest.mark.parametrize("theta", [None, 500.0])
def test_gemma_rotates_by_its_local_base_where_a_config_says_nothing_of_windows(
    kind: str, theta: float | None, tmp_path: Path
) -> None:
    """Layers with a window took the base of the others."""
    theirs = save_reference(kind, tmp_path, changes=CASES[kind][1])
    full = {"rope_type": "default", "rope_theta": 20_000.0}
    local = {"rope_local_base_freq": theta} if theta else {}
    text = json.dumps(json.loads((tmp_path / "config.json").read_text()) | local)
    silent = {"full_attention": full}
    taken = type(theirs.config)(rope_parameters=deepcopy(silent), **local).rope_parameters
    assert taken["sliding_attention"]["rope_theta"] == (theta or 10_000.0)
    found = [_derived_with(tmp_path, text, "rope_parameters", each) for each in (silent, taken)]
    assert found[0] is not None
    assert found[0] == found[1]


def test_masks_that_lie_in_a_file_are_not_loaded(tmp_path: Path) -> None:
    """As in Pythia's, which were written when such buffers were kept."""
    save_reference("gpt_neox", tmp_path, changes=CASES["gpt_neox"][1])
    path = tmp_path / "model.safetensors"
    at = "gpt_neox.layers.0.attention."
    kept = {"bias": torch.ones(1, 1, 9, 9).bool(), "masked_bias": torch.tensor(-1e9)}
    kept |= {"rotary_emb.inv_freq": torch.ones(3)}
    save_file(load_file(path) | {at + name: each for name, each in kept.items()}, path)
    assert load(str(tmp_path), device=CPU, dtype="float32").family == "gpt_neox"


@pytest.mark.usefixtures("reference_ops")
def test_experts_of_four_bits(tmp_path: Path) -> None:
    """GPT-OSS as it is published; transformers' own decoder says what the numbers are."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    sizes = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 8}
    theirs = save_reference(
        "gpt_oss", tmp_path, changes={**CASES["gpt_oss"][1], **sizes, "num_local_experts": 3}
    )
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    state = theirs.state_dict()
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 124, (experts, outer, inner // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path)
    assert_same_logits(tmp_path, theirs)
    for end, other in (("_blocks", torch.int8), ("_scales", torch.bfloat16)):
        name = next(name for name in tensors if name.endswith(end))
        save_file(tensors | {name: tensors[name].to(other)}, path)
        with pytest.raises(CheckpointError, match="is not made of bytes"):
            load(str(tmp_path), device=CPU, dtype="float32")
    tensors.pop(next(name for name in tensors if name.endswith("_scales")))
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="is missing"):
        plan_model(str(tmp_path))


@pytest.mark.parametrize("packing", ["q8_0", "q4_k"])
def test_transposed_experts_are_packed_as_they_load(packing: str, tmp_path: Path) -> None:
    """GPT-OSS in plain numbers, as it is fine-tuned."""
    sizes = {"hidden_size": 256, "intermediate_size": 32}
    save_reference("gpt_oss", tmp_path, changes={**CASES["gpt_oss"][1], **sizes})
    packed, plain = (
        load(str(tmp_path), device=CPU, dtype="float32", quantize=quantize).module.layers[0]
        for quantize in (f"experts={packing}", None)
    )
    for name in ("gate_proj", "up_proj", "down_proj"):
        weight = getattr(packed.feed_forward.experts, name)
        expected = getattr(plain.feed_forward.experts, name)
        assert isinstance(weight, Weight)
        lost = weight.dequantize(torch.float32) - expected
        assert lost.norm() < (0.02 if packing == "q8_0" else 0.15) * expected.norm()


@pytest.mark.parametrize("filters", ["of their projections", "in equal parts", "together"])
def test_olmo_hybrid_however_its_filters_are_cut(filters: str, tmp_path: Path) -> None:
    """Released with those of each projection; the library cuts what it has together in thirds."""
    theirs = save_reference("olmo_hybrid", tmp_path, changes=CASES["olmo_hybrid"][1])
    is_together = filters == "together"
    for old in tmp_path.glob("*.safetensors"):
        old.unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="1KB", save_original_format=not is_together)
    parts = list(tmp_path.glob("*.safetensors"))
    tensors = {name: tensor for part in parts for name, tensor in load_file(part).items()}
    at = "model.layers.0.linear_attn."
    assert (at + "conv1d.weight" in tensors) == is_together
    if not is_together:
        names = [f"{at}{n}_conv1d.weight" for n in "qkv"]
        whole = torch.cat([tensors[name] for name in names])
        assert [len(tensors[name]) for name in names] == [16, 16, 16]
        if filters == "of their projections":
            pieces = whole.split((10, 10, 28))
            tensors |= {n: each.clone() for n, each in zip(names, pieces, strict=True)}
            for part in (*parts, tmp_path / "model.safetensors.index.json"):
                part.unlink()
            save_file(tensors, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs)


def test_filters_of_olmo_hybrid_that_are_too_short_are_refused(tmp_path: Path) -> None:
    save_reference("olmo_hybrid", tmp_path, changes=CASES["olmo_hybrid"][1])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.linear_attn.v_conv1d.weight"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"is \[47, 1, 3\], the model needs \[48, 1, 3\]"):
        plan_model(str(tmp_path))
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"missing +\S+v_conv1d"):
        plan_model(str(tmp_path))


@pytest.mark.parametrize("kind", ["minimax_text_01", "minimax_m1"])
def test_minimax_under_the_keys_of_its_releases(kind: str, tmp_path: Path) -> None:
    """Types of layers are numbers there, and the weights of residuals have other names."""
    theirs = save_reference("minimax", tmp_path, changes=CASES["minimax"][1])
    written = json.loads((tmp_path / "config.json").read_text())
    names = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}
    released = {
        f"layernorm_{name}_{end}": written[f"{ours}_{end}_factor"]
        for ours, name in names.items()
        for end in ("alpha", "beta")
    }
    gone = dict.fromkeys(f"{ours}_{end}_factor" for ours in names for end in ("alpha", "beta"))
    attends = [int(each == "full_attention") for each in written["layer_types"]]
    said = {"attn_type_list": attends, "layer_types": None, "postnorm": True}
    said |= {"shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "model_type": kind}
    rewrite_config(tmp_path, **gone, **released, **said)
    ours = assert_same_logits(tmp_path, theirs)
    assert ours.family == kind
    rewrite_config(tmp_path, postnorm=False)
    with pytest.raises(ConfigError, match="'postnorm'"):
        plan_model(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "block", "users"),
    [
        ("zamba", "shared_transf", ((1, 3), (1, 4))),
        ("zamba2", "shared_transformer", ((1, 4), (3, 5))),
    ],
)
def test_shared_blocks_repeated_in_the_file(
    kind: str, block: str, users: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    theirs = save_reference(kind, tmp_path, changes=CASES[kind][1])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    copies = {
        name.replace(f"layers.{owner}.", f"layers.{user}."): tensor.clone()
        for name, tensor in tensors.items()
        for owner, user in users
        if f"layers.{owner}.{block}." in name
    }
    save_file(tensors | copies, path)
    assert_same_logits(tmp_path, theirs)


def test_experts_stacked_in_the_file(tmp_path: Path) -> None:
    """Qwen3.5 as it is published: one tensor for all experts' gates and ups, one for the downs."""
    theirs = save_reference("qwen3_5_moe_text", tmp_path, changes=CASES["qwen3_5_moe_text"][1])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts."
        stacks = {
            name: torch.stack([tensors.pop(f"{at}{e}.{name}_proj.weight") for e in range(6)])
            for name in ("gate", "up", "down")
        }
        tensors[f"{at}gate_up_proj"] = torch.cat((stacks["gate"], stacks["up"]), 1)
        tensors[f"{at}down_proj"] = stacks["down"]
    save_file(tensors, path)
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("llama", "put '_orig_mod.' before the names"),
        ("bamba", "put '_orig_mod.' before the names"),
        ("mamba", "tensors such as _orig_mod.backbone"),
    ],
)
def test_names_behind_those_of_a_wrapper_are_refused(
    kind: str, message: str, tmp_path: Path
) -> None:
    save_reference(kind, tmp_path, changes=CASES[kind][1])
    path = tmp_path / "model.safetensors"
    save_file({f"_orig_mod.{name}": each for name, each in load_file(path).items()}, path)
    with pytest.raises(CheckpointError) as raised:
        plan_model(str(tmp_path))
    assert message in str(raised.value)


# Whose names are others where the library is told not to save those of the releases.
OF_MODULES = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "granitemoe", "deepseek_v2"),
    *("ernie4_5_moe", "dots1", "minimax_m2", "gpt_neox", "cohere2_moe", "laguna", "mimo_v2_flash"),
    *("phimoe", "mellum", "hy_v3", "sarvam_mla", "sarvam_moe", "hunyuan_v1_moe", "flex_olmo"),
    *("granitemoeshared", "solar_open", "exaone_moe", "afmoe", "glm4_moe_lite", "lfm2_moe", "lfm3"),
    *("granitemoehybrid", "jamba", "qwen3_next", "qwen3_5_moe_text", "minimax", "kimi_linear"),
    *("bailing_hybrid", "bailing_hybrid unsafe"),
)


@pytest.mark.parametrize("case", OF_MODULES)
def test_names_of_the_library_s_own_modules(case: str, tmp_path: Path) -> None:
    """``save_original_format=False``, as programs write that save a state as it is."""
    kind, changes = CASES[case]
    theirs = save_reference(kind, tmp_path / "released", changes=changes)
    theirs.save_pretrained(tmp_path / "own", save_original_format=False)
    names = [set(load_file(tmp_path / each / "model.safetensors")) for each in ("released", "own")]
    assert names[0] != names[1]
    assert_same_logits(tmp_path / "own", theirs)


@pytest.mark.parametrize("layout", LLAMA4_APART)
@pytest.mark.parametrize("case", ["llama4_text", "llama4_text several"])
def test_experts_of_llama4_one_by_one(case: str, layout: str, tmp_path: Path) -> None:
    theirs = save_reference("llama4_text", tmp_path, changes=CASES[case][1])
    take_experts_apart(tmp_path, layout)
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize(
    "name", ["gemma", "gpt2", "granite", "mamba2", "opt behind", "qwen3_5_moe_text", "zamba2"]
)
def test_a_model_saved_without_its_head(name: str, tmp_path: Path) -> None:
    """Its names have no ``model.``, so that they begin like those of oxidizr."""
    kind, changes = CASES[name]
    whole = {**changes, "tie_word_embeddings": True}
    theirs = save_reference(kind, tmp_path / "whole", changes=whole)
    theirs.base_model.save_pretrained(tmp_path / "part")
    ours = assert_same_logits(tmp_path / "part", theirs)
    assert ours.family == kind


@pytest.mark.parametrize("layout", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize(("kind", "text"), [*SEEING.items(), ("mistral3", "ministral3")])
def test_the_language_model_of_one_that_sees(
    kind: str, text: str, layout: str, tmp_path: Path
) -> None:
    theirs = save_reference(text, tmp_path, changes=CASES[text][1])
    path = tmp_path / "model.safetensors"
    head = "language_model.lm_head." if layout.startswith("language") else "lm_head."
    renamed = {
        name.replace("model.", layout).replace("lm_head.", head): tensor
        for name, tensor in load_file(path).items()
    }
    sight = {"vision_tower.patch.weight": torch.ones(2, 3)}
    save_file(renamed | sight, path)
    config = tmp_path / "config.json"
    text_config = json.loads(config.read_text())
    if kind.startswith("qwen3_5"):  # as published: which of its two pairs turn with what
        text_config["rope_parameters"]["mrope_section"] = [2, 0, 0]
    whole = {"model_type": kind, "text_config": text_config, "vision_config": {}}
    config.write_text(json.dumps(whole))
    assert_same_logits(tmp_path, theirs)
    told = any("images" in warning for warning in plan_model(str(tmp_path)).derivation.warnings)
    assert told == ("image" not in FAMILIES[kind].takes)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_theirs_by_the_names_in_configs(name: str) -> None:
    """GPT-NeoX 20B was refused for its ``gelu_fast``."""
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    found = activate(x, ACTIVATIONS[name])
    torch.testing.assert_close(found, ACT2FN[name](x), rtol=1e-6, atol=1e-9)


def test_queries_grow_as_theirs_do() -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.tensor([0, 16_383, 16_384, 32_767, 32_768, 262_143, 2**24 - 1])
    queries = torch.ones(len(positions), 1, 1)
    found = scale_queries(queries, AttentionTemperature(0.1, 16_384), positions)
    expected = get_llama_4_attn_scale(positions[None], 0.1, 16_384)
    torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("without", "changes", "message"),
    [
        ("llama_4_scaling_beta", {}, "scores grow"),
        ("original_max_position_embeddings", {}, "scores grow"),
        ("", {"model_type": "mistral"}, "'llama_4_scaling_beta' is not supported"),
    ],
)
def test_what_ministral_does_not_say_is_not_guessed(
    without: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    kind, settings = CASES["ministral3 plain"]
    save_reference(kind, tmp_path, changes=settings)
    written = json.loads((tmp_path / "config.json").read_text())
    rope = {key: each for key, each in written["rope_parameters"].items() if key != without}
    rewrite_config(tmp_path, rope_parameters=rope, **changes)
    with pytest.raises(ConfigError, match=message):
        plan_model(str(tmp_path))


def test_nemotron_cuts_steps_off_where_the_library_wrote_it(tmp_path: Path) -> None:
    """Its class has a least step; the code of releases, and the kernels of their training, none."""
    kind, changes = CASES["nemotron_h"]
    theirs = save_reference(kind, tmp_path, seed=3, changes={**changes, "time_step_min": 0.3})
    assert_same_logits(tmp_path, theirs)
    rewrite_config(tmp_path, transformers_version="4.55.4")
    mixer = plan_model(str(tmp_path)).derivation.config.layers[0].mixer
    assert isinstance(mixer, Mamba2Config)
    assert mixer.dt_limits == (0.0, math.inf)


def test_keys_of_layers_that_share_others_may_be_in_the_file(tmp_path: Path) -> None:
    """As in Gemma 4's as it is published; transformers does not look at them either."""
    theirs = save_reference("gemma4_text", tmp_path, changes=CASES["gemma4_text"][1])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    at = "model.layers.{}.self_attn."
    unused = {
        at.format(4) + name: torch.ones(tensors[at.format(1) + name].shape)
        for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight")
    }
    save_file(tensors | unused, path)
    assert_same_logits(tmp_path, theirs)
    save_file(tensors | {at.format(2) + "k_norm.bias": torch.ones(8)}, path)
    with pytest.raises(CheckpointError, match="left over"):
        load(str(tmp_path), device=CPU, dtype="float32")


@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("deepseek_v3", ("rope_interleave",)),
        ("youtu", ("rope_interleave",)),
        ("falcon in turn", ("multi_query",)),
        ("falcon in turn", ("parallel_attn",)),
        ("gpt_oss", ("rope_parameters", "truncate")),
        ("gpt_neo", ("attention_types",)),
    ],
)
def test_null_where_the_default_is_true(case: str, path: tuple[str, ...], tmp_path: Path) -> None:
    """The library asks whether it is true, and of GPT-Neo looks at another list."""
    import transformers

    kind, changes = CASES[case]
    *sections, key = path
    model = save_reference(kind, tmp_path, changes=changes)
    written = json.loads((tmp_path / "config.json").read_text())
    inner = written
    for section in sections:
        inner = inner[section]
    inner[key] = None
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = transformers.CONFIG_MAPPING[kind].from_pretrained(str(tmp_path))
    theirs = type(model)._from_config(config, attn_implementation="eager").float().eval()
    theirs.load_state_dict(model.state_dict())
    if "experts" in repr(theirs):
        theirs.set_experts_implementation("eager")
    assert_same_logits(tmp_path, theirs)
    files = [tmp_path / name for name in ("model.safetensors", "config.json")]
    judge = open_reference(files[:1], files[1])
    ids = tokens_of(30, seed=1)
    x = embedded = judge.embed(torch.tensor(ids))
    for layer in judge.layers:
        x = layer(x, embedded)
    assert_as_right(judge.logits(x), *reference_truth(theirs, ids))


def test_gemma3n_whose_config_does_not_say_how_many_layers_share(tmp_path: Path) -> None:
    """The last 15 then, by types that follow from the layers' numbers; their keys are unused."""
    usual = ("layer_types", "num_kv_shared_layers", "activation_sparsity_pattern")
    changes = {key: value for key, value in CASES["gemma3n_text"][1].items() if key not in usual}
    changes |= {"num_hidden_layers": 21, "intermediate_size": 44}
    theirs = save_reference("gemma3n_text", tmp_path, changes=changes)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    at = "model.layers.{}.self_attn.k_proj.weight"
    shared = [layer for layer in range(21) if at.format(layer) not in tensors]
    assert shared == list(range(6, 21))
    save_file(tensors | {at.format(n): torch.ones(16, 24) for n in shared}, path)
    rewrite_config(tmp_path, **dict.fromkeys(usual))
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 5}, "no keys to share"),
        ({"per_layer_config": {"1": {"head_dim": 16, "sliding_window": 3}}}, "'sliding_window'"),
        ({"use_bidirectional_attention": "all"}, "only causal decoders"),
    ],
)
def test_what_gemma_4_might_say_and_is_not_implemented(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    save_reference("gemma4_text", tmp_path, changes=CASES["gemma4_text"][1])
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        plan_model(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size_per_layer_input": 0}, "'hidden_size_per_layer_input' has a wrong value"),
        ({"activation_sparsity_pattern": [0.5, 1.0, 0.0, 0.0]}, "share of gates"),
        ({"activation_sparsity_pattern": [0.5]}, "'activation_sparsity_pattern' is too short"),
        ({"altup_active_idx": 4}, "no such stream"),
    ],
)
def test_what_gemma_3n_cannot_be_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    """Without vectors of tokens it failed in the first step, and cutting all gates off gave NaN."""
    save_reference("gemma3n_text", tmp_path, changes=CASES["gemma3n_text"][1])
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        plan_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama4_text", {"attention_chunk_size": 100}, "'attention_chunk_size' is not supported"),
        ("granite_swa", {"layer_rope_theta": [500.0, 0]}, "'?layer_rope_theta'? does not fit"),
        ("granite_swa", {"layer_rope_theta": [500.0, 0, -1]}, "'?layer_rope_theta'? does not fit"),
        ("mellum", {"rope_parameters": {"rope_type": "default"}}, "layers of a type are rotated"),
        ("cwm", {"attention_bias": True}, "'attention_bias' is not supported"),
        ("iquestcoder", {"clip_qkv": 4.0}, "'clip_qkv' is not supported"),
        ("iquestcoder", {"use_sliding_window": True}, "'use_sliding_window' is not supported"),
        ("apertus", {"post_norm": True}, "'post_norm' is not supported"),
        ("apertus", {"rope_parameters": None, "rope_theta": 500_000.0}, "is scaled is missing"),
        ("hy_v3", {"n_group": 4}, "'n_group' is not supported"),
        ("laguna", {"gating": False}, "'gating' is not supported"),
        ("laguna", {"num_attention_heads_per_layer": [4, 2]}, "does not fit the layers"),
        ("laguna", {"moe_apply_router_weight_on_input": True}, "router_weight_on_input' is not"),
        ("mimo_v2_flash", {"swa_num_key_value_heads": 3}, "'swa_num_key_value_heads' is not"),
        ("mimo_v2_flash", {"add_full_attention_sink_bias": True}, "full_attention_sink_bias' is"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "'expert_selection_fn' is not supported"),
        ("phimoe short", {"rope_scaling": YARN, "rope_parameters": None}, "rotation is not supp"),
        ("sarvam_mla", {"score_function": "softmax"}, "'score_function' is not supported"),
    ],
)
def test_what_these_might_say_and_is_not_implemented(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    kind, settings = CASES[name]
    save_reference(kind, tmp_path, changes=settings)
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        plan_model(str(tmp_path))


def test_sarvam_under_the_keys_of_its_release(tmp_path: Path) -> None:
    changes = {**CASES["sarvam_mla"][1], "rope_scaling": {**YARN, "mscale": 1.0}}
    theirs = save_reference("sarvam_mla", tmp_path, changes=changes)
    scaling = {**YARN, "mscale": 1.0, "type": "deepseek_yarn", "rope_type": None}
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    written = json.loads((tmp_path / "config.json").read_text())
    released = {new: written[old] for old, new in names.items()} | dict.fromkeys(names)
    released |= {"head_dim": 576, "q_head_dim": 192, "rope_parameters": None}
    rewrite_config(tmp_path, **released, rope_scaling=scaling, rope_theta=10_000.0)
    assert_same_logits(tmp_path, theirs)
    assert not plan_model(str(tmp_path)).derivation.warnings


def test_mimo_v2_under_the_keys_of_its_release(tmp_path: Path) -> None:
    theirs = save_reference("mimo_v2_flash", tmp_path, changes=CASES["mimo_v2_flash"][1])
    written = json.loads((tmp_path / "config.json").read_text())
    gone = ("layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps", "sliding_window")
    said = {"hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1]}
    said |= {"layernorm_epsilon": written["rms_norm_eps"], "sliding_window_size": 7}
    said |= {"rope_theta": 5_000_000.0, "swa_rope_theta": 10_000.0, "attention_chunk_size": 7}
    said |= {"swa_num_key_value_heads": 2, "swa_head_dim": 12, "swa_v_head_dim": 10}
    said |= {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    rewrite_config(tmp_path, **dict.fromkeys(gone), **said, partial_rotary_factor=0.334)
    assert_same_logits(tmp_path, theirs)
    assert not plan_model(str(tmp_path)).derivation.warnings


def test_phi_moe_rotates_long_sequences_by_factors_of_their_own(tmp_path: Path) -> None:
    """Which the library takes from the config, but for the divisors of frequencies."""
    kind, changes = CASES["phimoe short"]
    save_reference(kind, tmp_path, changes=changes)
    mixer = plan_model(str(tmp_path)).derivation.config.layers[0].mixer
    assert isinstance(mixer, AttentionConfig)
    assert mixer.rope is not None
    positions = torch.tensor([0, 7])
    short, long = (
        mixer.rope.tables(positions, torch.tensor([length] * 2))[0] for length in (512, 513)
    )
    speeds = 1_000_000.0 ** -torch.tensor([0, 0.5])
    found = [short, long]
    expected = [
        scale * torch.cos(positions[:, None] * speeds / torch.tensor(factors))
        for scale, factors in ((1.3, [1.0, 1.5]), (1.5, [2.0, 5.0]))
    ]
    torch.testing.assert_close(found, expected)
