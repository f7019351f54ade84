"""Tiny models of families of which no release was read, from their rows alone."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families import FAMILIES
from blazr.models.families.base import Family
from blazr.models.families.rules import Stack
from tests.support.networks import CONTEXT, VOCAB
from tests.support.references import is_vision
from tests.support.seeds import run_seed

RELEASED = Path(__file__).resolve().parents[1] / "golden" / "headers"
# Those that two layers are too few for: none attends, or none has keys that others could share.
LATE = {"gemma3n_text", "lfm3", "recurrent_gemma", "zamba"}
# Those whose files hold matrices of heads side by side, which `save` does not write, and those
# whose configs say how each type of layer is rotated, which one of sizes does not.
OTHERS = {"sarvam_mla", "laguna", "mimo_v2_flash"}
# What a config must say, by the values' names here; each family has keys of its own for them.
SIZES: dict[str, object] = {
    "hidden_size": 24,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 40,
    "max_seq_len": CONTEXT,
    "vocab_size": VOCAB,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5_000.0,
    "tie_word_embeddings": False,
}


def own_families() -> set[str]:
    """Families of config.json of which no release was read."""
    configs = [json.loads(path.read_text())["config"] for path in RELEASED.glob("*.json")]
    parts = [config["text_config"] for config in configs if "text_config" in config]
    released = {part.get("model_type") for part in (*configs, *parts)}
    named = {name for name, row in FAMILIES.items() if row.keys and not is_vision(name)}
    return named - released - LATE - OTHERS


def config_of(family: Family) -> dict[str, object]:
    """A small model's config.json, in a family's own keys."""
    said = {family.keys.get(name, (name,))[0]: value for name, value in SIZES.items()}
    return {"model_type": family.name, **said}


def network_of(family: Family) -> CausalLM:
    """That model, with random weights."""
    names = [family.rules.sources(name)[0] for name in ("embed_tokens.weight", "lm_head.weight")]
    layer = family.rules.layer_beginnings[0]
    names += [f"{layer}{index}.any" for index in range(int(str(SIZES["num_layers"])))]
    shape = (VOCAB, int(str(SIZES["hidden_size"])))
    tensors = {name: TensorInfo(name, "F32", shape, Path("x"), 0, 0) for name in names}
    checkpoint = Checkpoint(path=Path("x"), files={}, tensors=tensors, config=config_of(family))
    module = CausalLM(family.derive(checkpoint).config)
    chance = torch.Generator().manual_seed(run_seed(len(family.name)))
    for name, parameter in module.named_parameters():
        spread, middle = (0.2, 1.0) if name.endswith("norm.weight") else (0.35, 0.0)
        torch.nn.init.normal_(parameter, middle, spread, generator=chance)
    return module.eval().requires_grad_(requires_grad=False)


def save(family: Family, directory: Path) -> CausalLM:
    """Write the model as a family's own files, and hand it back."""
    module = network_of(family)
    tensors: dict[str, Tensor] = {}
    for parameter, tensor in module.state_dict().items():
        found = family.rules.match(family.rules.sources(parameter, 0)[0])
        if found is not None and isinstance(found.transform, Stack):
            each = {family.rules.sources(parameter, i)[0]: part for i, part in enumerate(tensor)}
        else:
            written = tensor if found is None else found.transform.write(tensor)
            each = {family.rules.sources(parameter)[0]: written}
        tensors |= {
            name: part.clone(memory_format=torch.contiguous_format) for name, part in each.items()
        }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config_of(family)))
    return module
