"""Models that also see images, as transformers writes them: what they say to text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from blazr import LLM
from blazr.bench.reference import SECTIONS
from blazr.bench.reference.open import open_reference
from blazr.bench.verify import verify
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.families import FAMILIES
from blazr.models.families.base import Family
from blazr.models.families.hf import vision
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.nn.device import resolve_device
from tests.support.adapters import projections, save_adapter
from tests.support.networks import VOCAB
from tests.support.references import SIZES, reference_truth, rewrite_config
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_as_right

pytestmark = pytest.mark.sample

transformers = pytest.importorskip("transformers", reason="the reference is transformers")

CPU = resolve_device("cpu")
_HEADS = {"num_attention_heads": 2, "intermediate_size": 20}
_TOWER = {**_HEADS, "hidden_size": 16, "num_hidden_layers": 1}
_CLIP = {**_TOWER, "model_type": "clip_vision_model", "image_size": 14, "patch_size": 7}
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model"}
_IDEFICS = {**_TOWER, "image_size": 14, "patch_size": 7}
_QWEN = {"depth": 1, "hidden_size": 16, "out_hidden_size": 24, "num_heads": 2}
_QWEN |= {"intermediate_size": 20}
_QWEN3 = {**_QWEN, "deepstack_visual_indexes": [0]}
_GLM = {**_QWEN, "out_hidden_size": 48, "image_size": 28, "patch_size": 7}
_EAR = {"num_mel_bins": 8, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
_EAR |= {"encoder_ffn_dim": 20}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 1]}
_M_ROPE = {"rope_parameters": _ROPE}
_HALF_M_ROPE = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_group": 1, "topk_group": 1}
_LATENT = {"kv_lora_rank": 12, "q_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6}
_LATENT |= {"v_head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 8}
_GEMMA4 = {"head_dim": 6, "global_head_dim": 8, "sliding_window": 8, "num_hidden_layers": 3}
_GEMMA4 |= {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}

_LLAMA4 = {"head_dim": 6, "intermediate_size_mlp": 36, "num_local_experts": 4}

# By type: what text_config and vision_config say beside SIZES.
CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "audioflamingo3": ({"model_type": "qwen2"}, _EAR),
    "qwen2_audio": ({"model_type": "qwen2"}, _EAR),
    "gemma3": ({"head_dim": 6, "query_pre_attn_scalar": 6, "sliding_window": 8}, _SIGLIP),
    "gemma4": (
        {
            **_GEMMA4,
            "num_kv_shared_layers": 1,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": VOCAB,
        },
        {**_TOWER, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 8},
    ),
    "gemma4_unified": (
        {**_GEMMA4, "attention_k_eq_v": True},
        {"patch_size": 2, "mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 16},
    ),
    "glm4v": ({"hidden_size": 48, **_HALF_M_ROPE}, _GLM),
    "glm4v_moe": (
        {"head_dim": 12, **_EXPERTS, "n_routed_experts": 4, **_HALF_M_ROPE},
        {**_GLM, "out_hidden_size": 24},
    ),
    "idefics3": ({"model_type": "llama"}, _IDEFICS),
    "internvl": (
        {"model_type": "qwen2"},
        {**_TOWER, "image_size": [14, 14], "patch_size": [7, 7]},
    ),
    "kimi_k25": ({"model_type": "deepseek_v3", **_LATENT, **_EXPERTS}, _TOWER),
    "lfm2_vl": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "head_dim": 6},
        {**_TOWER, "num_patches": 4, "patch_size": 7},
    ),
    "llama4": (
        {**_LLAMA4, "no_rope_layers": [1, 0], "interleave_moe_layer_step": 2},
        {**_TOWER, "image_size": 14, "patch_size": 7, "vision_output_dim": 16}
        | {"projector_input_dim": 16, "projector_output_dim": 16},
    ),
    "llava": ({"model_type": "llama"}, _CLIP),
    "llava_next": ({"model_type": "mistral", "head_dim": 6, "sliding_window": None}, _CLIP),
    "llava_onevision": ({"model_type": "qwen2"}, _SIGLIP),
    "mistral3": (
        {"model_type": "mistral", "head_dim": 6, "sliding_window": None},
        {**_IDEFICS, "model_type": "pixtral", "head_dim": 8},
    ),
    "paligemma": ({"model_type": "gemma", "head_dim": 6}, _SIGLIP),
    "qwen2_vl": (_M_ROPE, {"depth": 1, "embed_dim": 16, "hidden_size": 24, "num_heads": 2}),
    "qwen2_5_vl": (_M_ROPE, _QWEN),
    "qwen3_vl": ({**_M_ROPE, "head_dim": 6}, _QWEN3),
    "qwen3_vl_moe": ({**_M_ROPE, **_EXPERTS, "head_dim": 6, "num_experts": 4}, _QWEN3),
    "smolvlm": ({"model_type": "llama"}, _IDEFICS),
    "voxtral": ({"model_type": "llama", "head_dim": 6}, {**_TOWER, "num_mel_bins": 8}),
}
# These are tested with the text types that they have of their own; Gemma 3n needs timm here.
_ELSEWHERE = {"gemma3n", "qwen3_5", "qwen3_5_moe"}


def save(name: str, directory: Path, **changes: object) -> nn.Module:
    """A random model, written by the library."""
    text, tower = CASES[name]
    torch.manual_seed(run_seed(sum(name.encode())))
    sizes = {**SIZES, **text, **changes}
    part, auto = "vision_config", transformers.AutoModelForImageTextToText
    if "audio" in FAMILIES[name].takes:
        part, auto = "audio_config", transformers.AutoModelForSeq2SeqLM
    config = transformers.CONFIG_MAPPING[name](text_config=sizes, **{part: tower})
    model = auto.from_config(config).eval().float()
    if name == "paligemma":
        model.set_attn_implementation("eager")  # another has text see ahead
    for parameter, values in model.named_parameters():
        is_wide = "embed" in parameter or parameter.endswith("norm.weight")
        nn.init.normal_(values, 0.0, 1.0 if is_wide else 0.3)
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    # the library's names for Kimi's layers are not those of the published file
    tensors = {
        key.replace("language_model.model.blocks.", "language_model.model.layers."): tensor
        for key, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    if "experts" in repr(model):
        model.set_experts_implementation("eager")  # the others have no float64
    return model.requires_grad_(requires_grad=False)


def able(model: nn.Module) -> nn.Module:
    """The part that reads text, where transformers 5.23 fails in the whole (Llama 4)."""
    is_llama4 = isinstance(model, transformers.Llama4ForConditionalGeneration)
    return model.language_model if is_llama4 else model


def compare(directory: Path, theirs: nn.Module) -> None:
    chance = torch.Generator().manual_seed(run_seed(1))
    ids = torch.randint(3, VOCAB, (30,), generator=chance).tolist()
    ours = load(str(directory), device=CPU, dtype="float32").module
    with torch.inference_mode():
        found = ours.forward_sequences(torch.tensor([ids]))[0]
    assert_as_right(found, *reference_truth(able(theirs), ids))


def test_every_type_is_tried() -> None:
    rows = {name for name, row in vars(vision).items() if isinstance(row, Family)}
    assert {name.lower() for name in rows} == CASES.keys() | _ELSEWHERE
    assert rows <= {name.upper() for name in FAMILIES}


@pytest.mark.parametrize("name", CASES)
def test_text_alone(name: str, tmp_path: Path) -> None:
    compare(tmp_path, save(name, tmp_path))
    warnings = plan_model(str(tmp_path)).derivation.warnings
    assert any("left out" in each for each in warnings) is not bool(FAMILIES[name].takes)


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_still_sees(name: str, tmp_path: Path) -> None:
    """The parts for images and sounds were left out without a word."""
    save(name, tmp_path / "model")
    convert(str(tmp_path / "model"), tmp_path / "out", dtype="float16")
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in ("model", "out"))
    assert after.keys() == before.keys()
    for each in before:
        assert torch.equal(after[each], before[each].half()), each


@pytest.mark.parametrize("name", CASES)
def test_adapters_are_merged_by_the_names_of_either(name: str, tmp_path: Path) -> None:
    """Where the file has others than transformers, they were taken for those of another model."""
    model = save(name, tmp_path / "model")
    names = [*projections(model, "(language|text)_model.*(v|kv_b|o)_proj")]
    merged = save_adapter(tmp_path / "adapter", model, names)
    convert(str(tmp_path / "model"), tmp_path / "out", merge_adapter=tmp_path / "adapter")
    compare(tmp_path / "out", merged)


@pytest.mark.parametrize("name", ["llava", "glm4v", "qwen2_audio"])
def test_verify_asks_transformers(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    found = verify(str(tmp_path), CPU, dtype="float32", max_tokens=1)
    assert found.is_ok
    assert found.transformers == "agrees"
    assert found.witness.is_there
    assert bool(found.witness.layers) is (name in SECTIONS)


@pytest.mark.parametrize("name", ["gemma3", "llava", "qwen2_5_vl"])
def test_adapters_of_the_tower_are_refused_unless_they_are_zero(name: str, tmp_path: Path) -> None:
    """They were taken for those of another model; trained on text alone, B stays zero."""
    model = save(name, tmp_path / "model")
    names = [*projections(model, "(v_proj|down_proj|qkv|fc1)$")]
    towers = [each for each in names if "language_model" not in each]
    assert towers

    def clear(written: dict[str, torch.Tensor]) -> None:
        for each in written:
            if "language_model" not in each and "lora_B" in each:
                written[each] = torch.zeros_like(written[each])

    save_adapter(tmp_path / "of all", model, names)
    save_adapter(tmp_path / "of text", model, names, tensors=clear)
    with LLM(str(tmp_path / "model")) as llm:
        with pytest.raises(CheckpointError, match="are not supported") as caught:
            llm.core.adapters.load("mine", tmp_path / "of all")
        assert "exclude_modules" in caught.value.hint
        llm.core.adapters.load("mine", tmp_path / "of text")


@pytest.mark.parametrize("name", sorted(CASES.keys() & SECTIONS.keys()))
def test_what_verify_judges_by_says_the_same(name: str, tmp_path: Path) -> None:
    theirs = save(name, tmp_path)
    ids = list(range(3, 33))
    reference = open_reference([tmp_path / "model.safetensors"], tmp_path / "config.json")
    x = embedded = reference.embed(torch.tensor(ids))
    for layer in reference.layers:
        x = layer(x, embedded)
    assert_as_right(reference.logits(x), *reference_truth(able(theirs), ids))


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "smolvlm"])
def test_their_own_embedding_as_head(name: str, tmp_path: Path) -> None:
    compare(tmp_path, save(name, tmp_path, tie_word_embeddings=True))


def test_experts_as_they_are_published(tmp_path: Path) -> None:
    """On their sides; the library turns them as it loads, and does not turn them back."""
    theirs = save("qwen3_vl_moe", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        key: tensor.mT.contiguous() if ".experts." in key else tensor
        for key, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    compare(tmp_path, theirs)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_one_config_for_all(name: str, tmp_path: Path) -> None:
    """As the first files had it, with names of tensors that do not say what is text."""
    theirs = save(name, tmp_path)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors = {
        key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for key, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    whole = json.loads(config.read_text())
    text = whole.pop("text_config")
    rope = {"type": "mrope", "mrope_section": [1, 1, 1]}
    flat = {**text, **whole, "rope_theta": 10_000.0, "rope_scaling": rope, "rope_parameters": None}
    config.write_text(json.dumps({k: v for k, v in flat.items() if v is not None}))
    compare(tmp_path, theirs)


def test_sizes_that_a_config_does_not_repeat() -> None:
    """LLaVA 1.5 says of its language model what differs from Llama's first sizes."""
    said = vision._SILENT
    for name, sizes in said.items():
        default = transformers.CONFIG_MAPPING[name]()
        assert sizes == {key: getattr(default, key) for key in sizes}, name


@pytest.mark.parametrize("kind", ["persimmon", "idefics3", "gguf", "oxidizr"])
def test_a_language_model_that_is_not_supported(kind: str, tmp_path: Path) -> None:
    save("llava", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rewrite_config(tmp_path, text_config={**config["text_config"], "model_type": kind})
    with pytest.raises(ConfigError, match=f"'{kind}'"):
        plan_model(str(tmp_path))


@pytest.mark.parametrize("name", ["glm4v", "qwen2_vl", "qwen3_vl"])
def test_rows_and_columns_of_images_turn_channels_of_their_own(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    del text["rope_parameters"]["mrope_section"]
    rewrite_config(tmp_path, text_config=text)
    with pytest.raises(ConfigError, match="mrope_section"):
        plan_model(str(tmp_path))
