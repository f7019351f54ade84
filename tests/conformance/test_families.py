"""Every family: the logits of recorded checkpoints, with and without their config."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.loading.load import load
from blazr.models.loading.plan import detect_family, plan_model
from blazr.nn.device import resolve_device
from tests.support import tiny
from tests.support.tiny import Tiny

GOLDEN = Path(__file__).parent.parent / "golden" / "oxidizr"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
CPU = resolve_device("cpu")
TOLERANCE = 1e-4
# Attention alone: several head sizes fit the shapes.
REFUSED = {
    "eps_attn_first", "gqa_mlp", "gqa_yaml_names", "hf_llama", "hf_llama3_tied",
    "hybrid_mixed_order", "mamba1_hybrid", "tied_head",
}  # fmt: skip
# Only config.json says how many experts a token runs through, or how many groups there are.
NEEDS_CONFIG = {"hybrid_groups", "hybrid_nano", "hybrid_partial_config", "moe_top1", "moe_top3"}


def logits_error(directory: Path, case: str) -> float:
    """The largest difference to the recorded logits, in float32."""
    expected = np.load(GOLDEN / case / "expected.npz")
    module = load(str(directory), device=CPU, dtype="float32").module
    with torch.inference_mode():
        found = module.forward_sequences(torch.from_numpy(expected["token_ids"])[None])[0]
    return float(np.abs(found.numpy() - expected["logits"]).max())


def without_config(case: str, directory: Path) -> Path:
    shutil.copy(GOLDEN / case / "model.safetensors", directory)
    return directory


def test_there_are_thirty_cases() -> None:
    assert len(CASES) == 30


@pytest.mark.parametrize("case", CASES)
def test_recorded_logits(case: str) -> None:
    assert logits_error(GOLDEN / case, case) < TOLERANCE


@pytest.mark.parametrize("case", sorted(set(CASES) - REFUSED - NEEDS_CONFIG))
def test_recorded_logits_from_shapes_alone(case: str, tmp_path: Path) -> None:
    assert logits_error(without_config(case, tmp_path), case) < TOLERANCE


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_heads_that_no_shape_tells_are_asked_for(case: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        plan_model(str(without_config(case, tmp_path)))
    assert '"num_attention_heads"' in caught.value.expected


@pytest.mark.parametrize("case", ["hybrid_nano", "mamba3_groups_hybrid", "gqa_mlp", "tied_head"])
def test_a_config_of_another_model_changes_nothing_that_shapes_tell(
    case: str, tmp_path: Path
) -> None:
    directory = without_config(case, tmp_path)
    text = (GOLDEN / case / "config.json").read_text()
    stale = text.replace('"hidden_size": 32', '"hidden_size": 48').replace(
        '"intermediate_size": 48', '"intermediate_size": 64'
    )
    (directory / "config.json").write_text(stale.replace('"vocab_size": 61', '"vocab_size": 99'))
    assert plan_model(str(directory)).derivation.warnings
    assert logits_error(directory, case) < TOLERANCE


def test_a_router_called_gate_is_the_same_model(tmp_path: Path) -> None:
    weights = load_file(GOLDEN / "mla_moe" / "model.safetensors")
    save_file(
        {name.replace("router.gate", "gate"): tensor for name, tensor in weights.items()},
        tmp_path / "model.safetensors",
    )
    shutil.copy(GOLDEN / "mla_moe" / "config.json", tmp_path)
    assert logits_error(tmp_path, "mla_moe") < TOLERANCE


def one_of_each(directory: Path) -> dict[str, Path]:
    """A model of every family that tensor names alone tell."""
    llama = Tiny(layers=("StandardTransformer",))
    mamba = {
        "backbone.embeddings.weight": (40, 8),
        "backbone.norm_f.weight": (8,),
        "backbone.layers.0.norm.weight": (8,),
        "backbone.layers.0.mixer.in_proj.weight": (32, 8),
        "backbone.layers.0.mixer.conv1d.weight": (16, 1, 4),
        "backbone.layers.0.mixer.conv1d.bias": (16,),
        "backbone.layers.0.mixer.x_proj.weight": (9, 16),
        "backbone.layers.0.mixer.dt_proj.weight": (16, 1),
        "backbone.layers.0.mixer.dt_proj.bias": (16,),
        "backbone.layers.0.mixer.A_log": (16, 4),
        "backbone.layers.0.mixer.D": (16,),
        "backbone.layers.0.mixer.out_proj.weight": (8, 16),
    }
    (directory / "mamba").mkdir()
    save_file(
        {name: torch.ones(shape) for name, shape in mamba.items()},
        directory / "mamba" / "model.safetensors",
    )
    return {
        "oxidizr": tiny.save(Tiny(), directory / "oxidizr"),
        "llama": tiny.save(llama, directory / "llama", layout="hf"),
        "mamba": directory / "mamba",
    }


def test_every_family_recognises_its_own_and_no_other(tmp_path: Path) -> None:
    models = one_of_each(tmp_path)
    for name, path in models.items():
        checkpoint = open_checkpoint(path)
        assert [row.name for row in FAMILIES.values() if row.matches(checkpoint)] == [name]
        assert detect_family(checkpoint) is FAMILIES[name]


@pytest.mark.parametrize("name", ["oxidizr", "llama", "mamba"])
def test_every_family_loads_and_computes(name: str, tmp_path: Path) -> None:
    module = load(str(one_of_each(tmp_path)[name]), device=CPU).module
    with torch.inference_mode():
        logits = module.forward_sequences(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3, module.config.vocab_size)
    assert logits.isfinite().all()


def test_what_is_no_familys_is_refused(tmp_path: Path) -> None:
    save_file({"classifier.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a language model") as caught:
        detect_family(open_checkpoint(tmp_path))
    assert "classifier.weight" in caught.value.found
