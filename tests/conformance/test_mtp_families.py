"""Modules for multi-token prediction are read as their families publish them.

The reference is the transformers library's own layer, given the module's tensors under its names;
the library itself leaves such modules out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.nn.device import resolve_device
from tests.support.ggufs import write
from tests.support.hybrids import HYBRIDS
from tests.support.mtp import KINDS, save_with_mtp
from tests.support.references import CASES
from tests.support.tolerances import error

transformers = pytest.importorskip("transformers")
CPU = resolve_device("cpu")


def read(path: Path) -> nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    )
    if "experts" in repr(model):
        model.set_experts_implementation("eager")
    return model


def as_known(path: Path, case: str) -> Path:
    """The same model under the type that the library knows."""
    known = path / "known"
    known.mkdir()
    config = json.loads((path / "config.json").read_text("utf-8"))
    config["model_type"] = {**CASES, **HYBRIDS}[case][0]
    (known / "config.json").write_text(json.dumps(config), "utf-8")
    (known / "model.safetensors").symlink_to(path / "model.safetensors")
    return known


def scores_by_hand(path: Path, kind: str, ids: Tensor) -> Tensor:
    """What the module makes of whole texts, (B, T, V), with layers of the transformers library."""
    stored = KINDS[kind]
    model = read(path) if stored.model_type is None else read(as_known(path, stored.case))
    tensors = load_file(path / "model.safetensors")
    projection, *weights = (tensors[f"{name}.weight"] for name in stored.names)

    # the model's layers of the same kind get the module's tensors, as the file has them
    swapped = dict(tensors)
    for begin, like in stored.like.items():
        for name in tensors:
            if name.startswith(like):
                swapped[name] = tensors[stored.own_name(name, begin)]
    own = {name: each for name, each in swapped.items() if not name.startswith(stored.begin)}
    other = path / "swapped"
    model.config.save_pretrained(other)
    save_file(own, other / "model.safetensors", metadata={"format": "pt"})
    core, places = model.base_model, [int(like.split(".")[2]) for like in stored.like.values()]
    layers = [read(other).base_model.layers[place] for place in places]

    def norm(weight: Tensor) -> nn.Module:
        eps = getattr(model.config, "rms_norm_eps", None) or model.config.layer_norm_epsilon
        made = type(layers[0].input_layernorm if hasattr(core, "norm") else layers[0].norm)
        made = made(len(weight), eps=eps)
        made.weight = nn.Parameter(weight)
        return made

    of_embedding, of_hidden, last = map(norm, weights)
    embedded = of_embedding(model.get_input_embeddings()(ids))
    hidden = of_hidden(core(ids).last_hidden_state)
    before = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, :-1]), 1)
    both = (before, embedded) if stored.hidden_first else (embedded, before)
    x = torch.cat(both, -1) @ projection.T
    positions = torch.arange(ids.shape[1])[None]
    length = ids.shape[1]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    for layer in layers:
        given = {"attention_mask": mask, "position_ids": positions}
        kind_of_layer = getattr(getattr(layer, "self_attn", None), "layer_type", None)
        if kind_of_layer == "sliding_attention":
            far = torch.ones(length, length).tril(-model.config.sliding_window).bool()
            given["attention_mask"] = mask.masked_fill(far, float("-inf"))
        if hasattr(core, "rotary_emb"):
            is_by_type = hasattr(core.rotary_emb, "layer_types")
            by_type = [kind_of_layer] if is_by_type else []
            given["position_embeddings"] = core.rotary_emb(x, positions, *by_type)
        x = layer(x, **given)
        x = x[0] if isinstance(x, tuple) else x
    scores: Tensor = model.lm_head(last(x))
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_it_guesses_as_its_tensors_say(kind, tmp_path):
    path = save_with_mtp(kind, tmp_path)
    assert not any("left out" in each for each in plan_model(str(path)).derivation.warnings)
    loaded = load(str(path), device=CPU, with_mtp=True)
    assert loaded.config.mtp is not None
    ids = torch.randint(3, 50, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        ours = loaded.module.draft_sequences(ids)
        assert error(ours, scores_by_hand(path, kind, ids)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_left_out_unless_it_is_wanted(kind, tmp_path):
    path = save_with_mtp(kind, tmp_path)
    planned = plan_model(str(path))
    assert planned.derivation.config.mtp is None
    assert not any(step.parameter.startswith("mtp.") for step in planned.plan.steps)
    begin = KINDS[kind].begin
    assert all(name.startswith(begin) for name in planned.plan.ignored)


def test_of_several_modules_the_first_is_used(tmp_path):
    """MiMo-V2-Flash has three."""
    path = save_with_mtp("mimo_v2_flash", tmp_path)
    alone = load(str(path), device=CPU, with_mtp=True).module
    tensors = load_file(path / "model.safetensors")
    begin = KINDS["mimo_v2_flash"].begin
    more = {
        name.replace(begin, begin.replace("0", str(index))): torch.ones_like(tensor)
        for name, tensor in tensors.items()
        for index in (1, 2)
        if name.startswith(begin)
    }
    save_file({**tensors, **more}, path / "model.safetensors")
    beside = load(str(path), device=CPU, with_mtp=True).module
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        assert torch.equal(alone.draft_sequences(ids), beside.draft_sequences(ids))


def test_it_is_packed_like_the_rest(tmp_path):
    path = save_with_mtp("qwen3_next", tmp_path, hidden_size=32)
    loaded = load(str(path), device=CPU, with_mtp=True, quantize="q8_0")
    plain = load(str(path), device=CPU, with_mtp=True)
    assert type(loaded.module.mtp.projection.weight) is not type(plain.module.mtp.projection.weight)


def test_a_model_without_one_says_so():
    with pytest.raises(ConfigError, match="multi-token prediction") as raised:
        plan_model("nano", with_mtp=True)
    assert "ngram" in str(raised.value)


@pytest.mark.parametrize("kind", ["glm4_moe", "deepseek_v3"])
def test_gguf_says_the_same(kind, tmp_path):
    """The same tensors, under the names that llama.cpp's converter gives layers behind the last."""
    path = save_with_mtp(kind, tmp_path / "model")
    expected = load(str(path), device=CPU, with_mtp=True)
    begin = KINDS[kind].begin
    tensors = load_file(path / "model.safetensors")
    of_module = {
        f"blk.2.nextn.{theirs}.weight": tensors[f"{begin}{ours}.weight"]
        for ours, theirs in (
            *((name, name) for name in ("eh_proj", "enorm", "hnorm", "embed_tokens")),
            ("shared_head.norm", "shared_head_norm"),
            ("shared_head.head", "shared_head_head"),
        )
    }
    # as a model of three layers it can be converted
    plain = tmp_path / "plain"
    plain.mkdir()
    parts = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head")
    own = {n: t for n, t in tensors.items() if not n.startswith(tuple(begin + p for p in parts))}
    save_file(own, plain / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 0, "layer_types": None}
    (plain / "config.json").write_text(json.dumps(config))
    convert(str(plain), tmp_path / "plain.gguf")
    converted = open_checkpoint(tmp_path / "plain.gguf")
    found = {name: converted.read(name) for name in converted.tensors}
    prefix = converted.metadata["general.architecture"]
    file = write(
        tmp_path / "model.gguf",
        {**found, **of_module},
        {**converted.metadata, f"{prefix}.nextn_predict_layers": 1},
    )

    loaded = load(str(file), device=CPU, with_mtp=True)
    ids = torch.randint(3, 50, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        ours, theirs = (each.module.draft_sequences(ids) for each in (loaded, expected))
    assert error(ours, theirs) < 1e-4
    assert load(str(file), device=CPU).config.mtp is None
