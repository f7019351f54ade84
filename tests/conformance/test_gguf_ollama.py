"""Files as Ollama's converter makes them: the scores of the same model from llama.cpp's.

Each case takes a file that llama.cpp's own converter made and lays it out as the named Go file of
GitHub ollama/ollama does, written from what that file says and not from the reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from test_gguf_converted import EXPECTED, unpacked
from torch import Tensor, nn

from blazr.bench.independent import ask_witness
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.gguf import OLLAMA_DIALECTS
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.text.tokenizers.gguf_patterns import PATTERNS
from tests.support import ggufs
from tests.support.tolerances import assert_same_network

CPU = resolve_device("cpu")
Keys = dict[str, object]
Tensors = dict[str, Tensor]


IDS = torch.tensor([EXPECTED["tokens"]])


@dataclass
class Form:
    """A file: its architecture, what is said of it without that name in front, its tensors."""

    arch: str
    keys: Keys
    tensors: Tensors

    def rename(self, names: dict[str, str]) -> None:
        """Parts of layers: whole names, or all of them up to a dot."""
        for name in list(self.tensors):
            at, part = name.split(".", 2)[:2], name.split(".", 2)[-1]
            for old, new in names.items():
                if part == old or part.startswith(f"{old}."):
                    self.tensors[".".join([*at, new + part.removeprefix(old)])] = self.tensors.pop(
                        name
                    )

    def beside(self, *names: str) -> None:
        """Add tensors that have nothing to do with text."""
        self.tensors |= {name: torch.ones(3) for name in names}

    def layers(self) -> range:
        return range(self.keys["block_count"])


def from_llama_cpp(name: str, directory: Path) -> Form:
    checkpoint = open_checkpoint(unpacked(name, directory))
    arch = str(checkpoint.metadata["general.architecture"])
    keys = {
        key.removeprefix(f"{arch}."): list(value) if isinstance(value, memoryview) else value
        for key, value in checkpoint.metadata.items()
        if key.startswith(f"{arch}.")
    }
    return Form(arch, keys, {each: checkpoint.read(each).clone() for each in checkpoint.tensors})


def write(form: Form, path: Path, *, splits: str = "default") -> Path:
    keys = {f"{form.arch}.{key}": value for key, value in form.keys.items()}
    path.parent.mkdir(exist_ok=True)
    said = {"general.architecture": form.arch, "tokenizer.ggml.pre": splits}
    return ggufs.write(path, form.tensors, said | keys)


def network(path: Path) -> nn.Module:
    return load(str(path), device=CPU, dtype="float32").module


def logits(path: Path) -> Tensor:
    with torch.inference_mode():
        return network(path).forward_sequences(IDS)[0]


def gptoss(form: Form) -> None:
    """convert_gptoss.go, config.json by Hugging Face."""
    form.arch = "gptoss"
    form.rename({"attn_output": "attn_out", "post_attention_norm": "ffn_norm"})
    form.rename({"attn_sinks.weight": "attn_sinks"})
    for key in ("type", "yarn_beta_fast", "yarn_beta_slow"):
        del form.keys[f"rope.scaling.{key}"]
    del form.keys["expert_feed_forward_length"]


def gptoss_first(form: Form) -> None:
    """convert_gptoss.go of version 0.11.0: OpenAI's matrices as they are."""
    gptoss(form)
    tensors = form.tensors
    for layer in form.layers():
        for part in ("weight", "bias"):
            each = [tensors.pop(f"blk.{layer}.attn_{name}.{part}") for name in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{part}"] = torch.cat(each)
            each = [tensors.pop(f"blk.{layer}.ffn_{name}_exps.{part}") for name in ("gate", "up")]
            tensors[f"blk.{layer}.ffn_gate_up_exps.{part}"] = torch.stack(each, 2).flatten(1, 2)


def olmo3(form: Form) -> None:
    """convert_olmo.go: all that YaRN stretches by is said, one base for all layers."""
    form.arch = "olmo3"
    del form.keys["rope.freq_base_swa"]
    form.keys["rope.scaling.attn_factor"] = 0.1 * math.log(form.keys["rope.scaling.factor"]) + 1


def nemotron(form: Form) -> None:
    """convert_nemotron_h.go."""
    form.rename({"ffn_latent_down": "ffn_latent_in", "ffn_latent_up": "ffn_latent_out"})
    form.beside("mtp.layers.0.mixer.experts.3.up_proj.weight")
    for key in ("moe_latent_size", "rope.scaling.finetuned", "vocab_size"):
        del form.keys[key]
    form.keys["attention.layer_norm_rms_epsilon"] = form.keys["attention.layer_norm_epsilon"]
    form.keys["rope.freq_base"] = 10000.0


def nemotron_omni(form: Form) -> None:
    """convert_nemotron_h.go: text, images and sound in one."""
    nemotron(form)
    form.arch = "nemotron_h_omni"
    form.rename({"exp_probs_b.bias": "exp_probs_b"})  # model.go takes it, too
    form.beside("v.blk.0.attn_q.weight", "a.blk.0.ln1.weight", "mm.a.fc.weight")
    form.keys["vision.block_count"] = 1


def by_layer(form: Form) -> None:
    heads = form.keys["attention.head_count_kv"]
    attends = [f"blk.{layer}.attn_q.weight" in form.tensors for layer in form.layers()]
    form.keys["attention.head_count_kv"] = [heads * each for each in attends]


def qwen3next(form: Form) -> None:
    """convert_qwen3next.go, the first one."""
    by_layer(form)
    form.rename({"ssm_dt.bias": "ssm_dt"})
    form.keys["norm_top_k_prob"] = True


def qwen3next_later(form: Form) -> None:
    """convert_qwen3next.go since it has Qwen 3.5: Qwen3-Next under that name."""
    qwen3next(form)
    form.arch = "qwen35moe"
    form.keys["attention.head_count_kv"] = max(form.keys["attention.head_count_kv"])


def qwen35(form: Form) -> None:
    """convert_qwen3next.go: values of a key apart, parts that see and that look ahead."""
    qwen3next(form)
    form.beside("v.blk.0.attn_q.weight", "v.merger.norm.weight", "mtp.fc.weight")
    form.keys["ssm.v_head_reordered"] = True
    form.keys["mrope_sections"] = form.keys["rope.mrope_section"] = [11, 11, 10]
    form.keys["rope.dimension_sections"] = [11, 11, 10]
    form.keys["rope.mrope_interleaved"] = True
    form.keys["vision.block_count"] = 1


def qwen35_grouped(form: Form) -> None:
    """The same without what ssm.v_head_reordered says: values of a key side by side."""
    qwen35(form)
    form.keys["ssm.v_head_reordered"] = False
    keys, heads = form.keys["ssm.group_count"], form.keys["ssm.time_step_rank"]

    def grouped(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (heads // keys, keys, -1)).transpose(0, 1).reshape(tensor.shape)

    values = form.keys["ssm.inner_size"]
    for name, tensor in form.tensors.items():
        if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
            tensor[-values:] = grouped(tensor[-values:])
        elif name.endswith(("attn_gate.weight", "alpha.weight", "beta.weight", "ssm_a", "ssm_dt")):
            form.tensors[name] = grouped(tensor)
        elif name.endswith("ssm_out.weight"):
            form.tensors[name] = grouped(tensor.mT).mT


def lfm2(form: Form) -> None:
    """convert_lfm2.go."""
    form.tensors["output_norm.weight"] = form.tensors.pop("token_embd_norm.weight")
    dim = form.keys["embedding_length"] // form.keys["attention.head_count"]
    form.keys |= {"attention.key_length": dim, "attention.value_length": dim}


def deepseek2(form: Form) -> None:
    """convert_deepseek2.go: keys and values in one matrix, sizes of a head."""
    heads, keys = form.keys["attention.head_count"], form.keys
    keys["attention.head_count_kv"] = heads
    for each in ("key", "value"):
        keys[f"attention.{each}_length"] = keys.pop(f"attention.{each}_length_mla")
    for layer in form.layers():
        at = f"blk.{layer}.attn_"
        both = form.tensors.pop(f"{at}k_b.weight").mT, form.tensors.pop(f"{at}v_b.weight")
        form.tensors[f"{at}kv_b.weight"] = torch.cat(both, 1).flatten(0, 1)


def glm4moelite(form: Form) -> None:
    """convert_glm4moelite.go: the same words as elsewhere, with their meanings changed over."""
    form.arch, keys = "glm4moelite", form.keys
    for each in ("key", "value"):
        one, other = f"attention.{each}_length", f"attention.{each}_length_mla"
        keys[one], keys[other] = keys[other], keys[one]


def mistral3(form: Form) -> None:
    """convert_mistral.go: no scaling, and nothing that sharpens."""
    form.beside("v.patch_conv.weight", "mm.norm.weight")
    form.keys |= {"rope.scaling.type": "", "rope.scaling.factor": 0.0, "rope.scaling_beta": 0.0}
    form.keys |= {"rope.scaling.beta_fast": 0.0, "rope.scaling.beta_slow": 0.0}


def ministral(form: Form) -> None:
    """convert_mistral_causal.go."""
    mistral3(form)
    form.keys["rope.scaling.type"] = "default"


def tempered(form: Form) -> None:
    """convert_mistral.go: Ministral 3's scores and its YaRN."""
    form.beside("v.patch_conv.weight", "mm.norm.weight")
    del form.keys["rope.scaling.yarn_log_multiplier"]
    form.keys["rope.scaling_beta"] = form.keys.pop("attention.temperature_scale")
    yarn = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    form.keys |= {f"rope.scaling.{key}": value for key, value in yarn.items()}


def gemma3(form: Form) -> None:
    """convert_gemma3.go of the first months: its own words for two bases."""
    form.beside("v.patch_embedding.weight", "mm.mm_soft_emb_norm.weight")
    form.keys["rope.global.freq_base"] = form.keys.pop("rope.freq_base")
    form.keys["rope.local.freq_base"] = form.keys.pop("rope.freq_base_swa")
    del form.keys["attention.layer_norm_rms_epsilon"]


def qwen3moe(form: Form) -> None:
    """convert_qwen3.go."""
    form.keys |= {"norm_top_k_prob": True, "rope.mrope_section": [2, 2, 2]}


CASES: dict[str, tuple[str, Callable[[Form], None]]] = {
    "gptoss": ("gpt-oss", gptoss),
    "gptoss first": ("gpt-oss", gptoss_first),
    "olmo3": ("olmo2-windows", olmo3),
    "nemotron_h_moe": ("nemotron_h_moe", nemotron),
    "nemotron_h_omni": ("nemotron_h_moe", nemotron_omni),
    "qwen3next": ("qwen3next", qwen3next),
    "qwen3next later": ("qwen3next", qwen3next_later),
    "qwen35": ("qwen35", qwen35),
    "qwen35 grouped": ("qwen35", qwen35_grouped),
    "qwen35moe": ("qwen35moe", qwen35),
    "lfm2": ("lfm2", lfm2),
    "lfm2moe": ("lfm2moe", lfm2),
    "deepseek2": ("deepseek2-v3", deepseek2),
    "glm4moelite": ("deepseek2-v3", glm4moelite),
    "mistral3": ("mistral3", mistral3),
    "mistral3 alone": ("mistral3", ministral),
    "mistral3 temperature": ("mistral3-temperature", tempered),
    "gemma3": ("gemma3", gemma3),
    "qwen3moe": ("qwen3moe", qwen3moe),
}


def test_every_dialect_has_a_case() -> None:
    assert set(OLLAMA_DIALECTS) <= {name.split()[0] for name in CASES}


@pytest.mark.sample
@pytest.mark.parametrize("case", CASES)
def test_the_scores_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    name, lay_out = CASES[case]
    form = from_llama_cpp(name, tmp_path)
    lay_out(form)
    path = write(form, tmp_path / "ollama" / "model.gguf")
    found = network(path)
    assert_same_network(found, torch.tensor(EXPECTED["logits"][name]), IDS)
    witness = ask_witness(found, open_checkpoint(path), EXPECTED["tokens"])
    assert witness.is_there, witness.name
    assert witness.agrees, witness


YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 8,
}
# What Ollama says, and llama.cpp in its place.
SAID: dict[str, tuple[str, Keys, Keys]] = {
    "zeros": ("mistral3", YARN | {"rope.scaling.beta_fast": 0.0}, YARN),
    "mistral3": (
        "mistral3",
        YARN
        | {"rope.scaling.beta_fast": 4.0, "rope.scaling.beta_slow": 2.0}
        | {"rope.scaling.mscale": 1.0, "rope.scaling.mscale_all_dim": 1.0},
        YARN
        | {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 2.0}
        | {"rope.scaling.yarn_log_multiplier": 1.0},
    ),
    "gemma3": (
        "gemma3",
        YARN | {"rope.scaling.beta_fast": 64.0, "rope.scaling.extrapolation_factor": 1.0},
        YARN | {"rope.scaling.yarn_beta_fast": 64.0},
    ),
    "qwen3moe": ("qwen3moe", {"norm_top_k_prob": False}, {"expert_weights_norm": False}),
}


@pytest.mark.parametrize("case", SAID)
def test_words_that_change_the_scores_change_them_alike(case: str, tmp_path: Path) -> None:
    name, ours, theirs = SAID[case]
    form = from_llama_cpp(name, tmp_path)
    plain, keys = logits(write(form, tmp_path / "plain" / "model.gguf")), form.keys
    found = []
    for each in (ours, theirs):
        form.keys = keys | each
        found.append(logits(write(form, tmp_path / "said" / "model.gguf")))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert not torch.allclose(found[0], plain, atol=1e-3)


@pytest.mark.parametrize(
    "said",
    [
        YARN | {"rope.scaling.extrapolation_factor": 0.5},
        YARN | {"rope.scaling.mscale": 0.7, "rope.scaling.mscale_all_dim": 1.0},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0},  # of which length?
    ],
)
def test_what_would_be_computed_otherwise_is_refused(said: Keys, tmp_path: Path) -> None:
    form = from_llama_cpp("mistral3", tmp_path)
    form.keys |= said
    with pytest.raises(ConfigError):
        load(str(write(form, tmp_path / "said" / "model.gguf")), device=CPU)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("attn_out.weight", "attn_output.weight"),
        ("attn_sinks", "attn_sinks.weight"),
        ("ffn_norm.weight", "post_attention_norm.weight"),
        ("ffn_gate_up_exps.weight", "ffn_gate_exps.weight"),
    ],
)
def test_a_part_under_two_names_is_refused(new: str, old: str, tmp_path: Path) -> None:
    form = from_llama_cpp("gpt-oss", tmp_path)
    form.arch = "gptoss"
    form.tensors[f"blk.0.{new}"] = form.tensors[f"blk.0.{old}"]
    with pytest.raises(CheckpointError, match=new):
        load(str(write(form, tmp_path / "twice" / "model.gguf")), device=CPU)


def test_a_way_to_split_text_that_is_not_said(tmp_path: Path) -> None:
    assert {row.pre_tokenizer for row in OLLAMA_DIALECTS.values()} <= {"", *PATTERNS}
    form = from_llama_cpp("gpt-oss", tmp_path)
    gptoss(form)
    for said, meant in (("default", "gpt-4o"), ("", "gpt-4o"), ("qwen2", "qwen2")):
        path = write(form, tmp_path / "said" / "model.gguf", splits=said)
        assert open_checkpoint(path).metadata["tokenizer.ggml.pre"] == meant


def test_the_first_form_has_as_many_tensors_as_the_release(tmp_path: Path) -> None:
    form = from_llama_cpp("gpt-oss", tmp_path)
    gptoss_first(form)
    layers = len(form.layers())
    # a log of gpt-oss:120b, 36 layers, GitHub ollama/ollama issue 12113: num_tensors=471
    assert len(form.tensors) - 3 == layers * (471 - 3) // 36


@pytest.mark.parametrize("rows", [87, 89])
def test_rows_that_are_no_halves_are_refused(rows: int, tmp_path: Path) -> None:
    form = from_llama_cpp("gpt-oss", tmp_path)
    gptoss_first(form)
    for name in [name for name in form.tensors if "gate_up" in name]:
        form.tensors[name] = form.tensors[name][:, [row % 88 for row in range(rows)]]
    with pytest.raises(CheckpointError, match="ffn_"):
        load(str(write(form, tmp_path / "odd" / "model.gguf")), device=CPU)
