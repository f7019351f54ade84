"""Released models of every kind, by their headers alone: each tensor finds its place."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.checkpoint.quantized import join_quantized
from blazr.models.families import FAMILIES
from blazr.models.families.gguf.architectures import ARCHITECTURES
from blazr.models.families.gguf.as_config import GgufFile
from blazr.models.families.gguf.as_file import architecture_of, metadata_of
from blazr.models.families.gguf.family import as_gguf, tensor_names, unused_beginnings
from blazr.models.loading.plan import LoadPlan, detect_family, plan_load
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig
from tests.support import headers
from tests.support.references import is_vision, known_to_transformers

pytestmark = pytest.mark.sample

# Names at the edges, which extracts of names may leave out.
EDGES = re.compile(r"lm_head|.*(embed_tokens|(?<!linear_attn\.)norm)\.weight")
# What the network has no place for: images, sounds, and heads that predict further tokens.
UNUSED = re.compile(
    r"(model\.)?(visual|vision_tower|vision_embedder|embed_vision|multi_modal_projector|mtp)\.|"
    r"(model\.)?(audio_tower|embed_audio)\.|(v|mm)\."
)
# Published with the experts of a layer in one tensor; the library writes them apart.
APART = {"Qwen3.5-35B-A3B"}
# The same tensors as those of their published files.
ALIKE = set(headers.RECORDED) & set(headers.MADE) - APART
# Of these not even the config.json of a released model was at hand.
UNREAD = {"bailing_hybrid", "gemma3n_text", "lfm3", "minimax", "olmo_hybrid"}
UNREAD |= {"recurrent_gemma", "sarvam_moe", "zamba", "cwm", "internlm3", "iquestcoder", "jais2"}
UNREAD |= {"ministral", "granite_swa", "granitemoe_swa", "vaultgemma", "hyperclovax"}
UNREAD |= {"hy_v3", "sarvam_mla", "nanochat", "llama4_text", "cohere2_moe", "laguna"}
UNREAD |= {"mimo_v2_flash", "phimoe", "bitnet"}


def derive(checkpoint: Checkpoint) -> ModelConfig:
    return detect_family(checkpoint).derive(checkpoint).config


def plan(checkpoint: Checkpoint, config: ModelConfig | None = None) -> tuple[LoadPlan, set[str]]:
    """Where each tensor goes, and what the network needs; the config of a GGUF file that is cut."""
    family = detect_family(checkpoint)
    if config is None:
        derived = family.derive(checkpoint)
        config, rules, unused = derived.config, derived.rules, derived.unused
    else:
        file = GgufFile(checkpoint)
        rules, unused = tensor_names(file, config), unused_beginnings(file)
    with torch.device("meta"):
        module = CausalLM(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = plan_load(
        checkpoint.tensors,
        shapes,
        rules,
        ignored=family.ignored,
        ignored_beginnings=unused,
    )
    return found, set(shapes)


def as_gguf_file(recorded: headers.Recorded) -> tuple[Checkpoint, ModelConfig]:
    """The GGUF file, with what it must say of itself by its config.json; what that derives to.

    Where only the first layers were read, a model of these.
    """
    made = headers.checkpoint({n: ("F32", s) for n, s in recorded.made.items()}, recorded.config)
    config, family = derive(made), detect_family(made).name
    name = architecture_of(family, config)
    assert name is not None
    row = ARCHITECTURES[name]
    if recorded.layers:
        config = replace(config, layers=config.layers[: recorded.layers])
    target = as_gguf(config, row)
    said = {f"{name}.{key}": value for key, value in metadata_of(target, row).items()}
    metadata = {"general.architecture": name, **said}
    embedding = {"token_embd.weight": ("F32", (config.vocab_size, config.hidden_size))}
    return headers.checkpoint(embedding | recorded.tensors, None, metadata), target


def test_there_is_one_of_every_other_family() -> None:
    pytest.importorskip("transformers", reason="it knows the types of released models")
    configs = [headers.made(model)[1] for model in headers.MADE]
    parts = [text for config in configs if isinstance(text := config.get("text_config"), dict)]
    kinds = {config["model_type"] for config in (*configs, *parts)}
    known = {name for name in FAMILIES if known_to_transformers(name)}
    assert kinds <= known
    assert {name for name in known - kinds if not is_vision(name)} == UNREAD


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=pytest.mark.slow) if model in ALIKE else model
        for model in headers.MADE
    ],
)
def test_a_released_model_is_planned_completely(model: str) -> None:
    shapes, config = headers.made(model)
    checkpoint = headers.checkpoint({name: ("F32", shapes[name]) for name in shapes}, config)
    assert detect_family(checkpoint).name == config["model_type"]
    planned, needed = plan(checkpoint)
    planned.check()
    assert len(planned.steps) == len(needed)
    assert all(UNUSED.match(name) for name in planned.ignored)


def test_command_r_reads_as_many_tokens_as_it_was_trained_on() -> None:
    """By its ``model_max_length``: its ``max_position_embeddings`` is 8,192."""
    shapes, config = headers.made("c4ai-command-r-v01")
    checkpoint = headers.checkpoint({name: ("F32", shapes[name]) for name in shapes}, config)
    assert derive(checkpoint).max_seq_len == 131_072


def is_beyond(name: str, layers: object) -> bool:
    """Whether it is of images, or of a layer that predicts further tokens."""
    return bool(UNUSED.match(name)) or name.startswith(f"model.layers.{layers}.")


@pytest.mark.parametrize("model", headers.RECORDED)
def test_a_published_file_is_planned_completely(model: str) -> None:
    """The names, shapes and types that were read in it, its quantization and all."""
    recorded = headers.recorded(model)
    found = headers.sums(recorded.tensors)
    assert {key: found[key] for key in recorded.says} == recorded.says
    if recorded.index:
        index = headers.index(recorded.tensors, recorded.index["files"])
        assert {key: index[key] for key in recorded.index} == recorded.index
    if recorded.metadata:
        planned, needed = plan(headers.checkpoint(recorded.tensors, None, recorded.metadata))
    elif recorded.is_gguf:
        planned, needed = plan(*as_gguf_file(recorded))
    else:
        rest = {name: ("BF16", shape) for name, shape in recorded.made.items()}
        tensors = recorded.tensors if recorded.is_whole else rest | recorded.tensors
        planned, needed = plan(join_quantized(headers.checkpoint(tensors, recorded.config)))
    if recorded.is_gguf and not recorded.is_whole:
        assert {problem.kind for problem in planned.problems} == {"missing"}
        assert planned.steps
        return
    planned.check()
    assert len(planned.steps) == len(needed)
    layers = recorded.config.get("num_hidden_layers")
    assert all(is_beyond(name, layers) for name in planned.ignored)


def test_what_files_of_ollama_leave_unsaid_is_as_published() -> None:
    recorded = headers.recorded("gemma-3-1b-it-GGUF")
    found = derive(headers.checkpoint(recorded.tensors, None, recorded.metadata))
    # which config.json does not have, and which chooses no other token
    assert found.logit_softcap == 30
    assert replace(found, logit_softcap=None) == as_gguf_file(recorded)[1]

    recorded = headers.recorded("gemma-3-4b-it-GGUF")
    made = headers.made("gemma-3-12b-it")
    shapes = {name: ("BF16", shape) for name, shape in made[0].items()}
    large = derive(headers.checkpoint(shapes, made[1])).layers
    small = derive(headers.checkpoint(recorded.tensors, None, recorded.metadata)).layers
    for index in (0, 5):
        assert attention(small[index]).rope == attention(large[index]).rope
        assert attention(small[index]).norm_eps == attention(large[index]).norm_eps


def test_what_a_published_file_says_of_itself_is_what_its_config_says() -> None:
    recorded = headers.recorded("SmolLM3-3B-GGUF")
    found = derive(headers.checkpoint(recorded.tensors, None, recorded.metadata))
    assert found == as_gguf_file(recorded)[1]


def test_what_llama_cpp_says_of_a_published_model_is_what_its_config_says() -> None:
    """Devstral Small 2, as loading its file prints it [GitHub danbev/learning-ai, notes/llama.cpp/
    devstral2-conversion.md, file 40242149007 of the index]."""
    shapes, config = headers.made("Devstral-Small-2-24B-Instruct-2512")
    found = derive(headers.checkpoint({name: ("BF16", shapes[name]) for name in shapes}, config))
    row = ARCHITECTURES["mistral3"]
    said = {
        "block_count": 40,
        "context_length": 393216,
        "embedding_length": 5120,
        "feed_forward_length": 32768,
        "vocab_size": 131072,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.temperature_scale": 0.1,
        "rope.freq_base": 1e8,
        "rope.dimension_count": 128,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 48.0,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "rope.scaling.original_context_length": 8192,
    }
    ours = metadata_of(as_gguf(found, row), row)
    assert ours == said | {"attention.layer_norm_epsilon": 1e-5}


def attention(layer: LayerConfig) -> AttentionConfig:
    assert isinstance(layer.mixer, AttentionConfig)
    return layer.mixer


@pytest.mark.parametrize("model", sorted(ALIKE))
def test_what_is_made_is_what_was_published(model: str) -> None:
    recorded, (shapes, _) = headers.recorded(model), headers.made(model)
    if recorded.config.get("quantization_config"):
        return
    found = {n: shape for n, (_, shape) in recorded.tensors.items() if not UNUSED.match(n)}
    expected = {name: shape for name, shape in shapes.items() if not UNUSED.match(name)}
    assert found.items() <= expected.items()
    assert not recorded.is_whole or found == expected


@pytest.mark.parametrize("model", headers.TOTALS)
def test_the_sums_are_those_of_the_published_files(model: str) -> None:
    totals, (shapes, config) = headers.TOTALS[model], headers.made(model)
    is_wide = config.get("torch_dtype") == "float32"
    tensors = {
        name: ("F32" if is_wide or name.endswith(totals.wide) else "BF16", shape)
        for name, shape in shapes.items()
    }
    found = headers.sums(tensors)
    found["parameters"] += totals.beyond
    found["bytes"] += 2 * totals.beyond
    assert {key: found[key] for key in totals.says} == totals.says
    assert totals.says or totals.billions
    assert not totals.billions or round(found["bytes"] / 2e9, 3) == totals.billions


@pytest.mark.parametrize("model", headers.NAMES)
def test_made_names_are_those_of_a_published_file(model: str) -> None:
    """Families of which only names were read, in models of other sizes."""
    made = {re.sub(r"(?<=\.)\d+(?=\.)", "#", name) for name in headers.made(model)[0]}
    made = {name for name in made if not UNUSED.match(name)}
    recorded = headers.NAMES[model]
    assert recorded <= made
    assert all(EDGES.match(name) for name in made - recorded)


def test_a_packed_file_of_falcon_mamba_has_room_for_its_vocabulary_and_no_more() -> None:
    """Its size tells the matrices that are packed in it from the rest, which is float32."""
    published, vocabulary = 8_603_547_776, 2_287_728  # the latter in llama.cpp's file of it alone
    shapes, _ = headers.made("falcon-mamba-7b")
    packed = ("in_proj.weight", "out_proj.weight", "embeddings.weight", "lm_head.weight")
    used = 0
    for name, shape in shapes.items():
        used += math.prod(shape) // 32 * 34 if name.endswith(packed) else math.prod(shape) * 4
    assert 40 * len(shapes) < published - used - vocabulary < 80 * len(shapes)  # descriptions


def test_adapters_of_users_of_the_other_block_are_left() -> None:
    shapes, config = headers.made("Zamba2-2.7B")
    by = re.compile(r"(.*layers\.)(6|12)(\..*adapter_list\.)\d(\..*)")
    adapters = {found for name in shapes if (found := by.fullmatch(name))}
    every = {
        f"{found[1]}{layer}{found[3]}{user}{found[4]}": shapes[found[0]]
        for found in adapters
        for layer in (6, 12)
        for user in range(9)
    }
    assert len(every) == 36
    tensors = {name: ("BF16", shape) for name, shape in (shapes | every).items()}
    planned, needed = plan(headers.checkpoint(tensors, config))
    planned.check()
    assert len(planned.steps) == len(needed)
    assert set(planned.ignored) == set(every) - set(shapes)
