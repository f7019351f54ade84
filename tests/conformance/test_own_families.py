"""Laws of families from their rows alone, also of those of no released model and no other library.

A family that somebody adds is tried here without a header and without a reference: `cobra` is what
they would write.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.hf.dense import LLAMA
from blazr.models.loading.convert import convert
from blazr.models.loading.load import LoadedModel, load
from blazr.models.loading.plan import detect_family, plan_model
from blazr.nn.device import resolve_device
from tests.support.networks import VOCAB, Lab
from tests.support.own_families import config_of, network_of, own_families, save
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_same_network

CPU = resolve_device("cpu")
PLUGGED_IN = {"cobra": "tests.support.cobra:COBRA"}
# Released ones that a config of sizes alone describes.
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "mixtral")
OWN = sorted({*PLUGGED_IN, *PLAIN, *own_families()})


@pytest.fixture(autouse=True)
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that a contributor would add."""
    monkeypatch.setattr(FAMILIES, "_lazy", {**FAMILIES._lazy, **PLUGGED_IN})
    monkeypatch.setattr(FAMILIES, "_names", tuple(dict.fromkeys((*FAMILIES, *PLUGGED_IN))))


def loaded(directory: Path) -> LoadedModel:
    return load(str(directory), device=CPU, dtype="float32")


@pytest.mark.parametrize("name", OWN)
def test_its_family_alone_recognises_it(name: str, tmp_path: Path) -> None:
    save(FAMILIES[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert [row for row in FAMILIES if FAMILIES[row].matches(checkpoint)] == [name]
    assert detect_family(checkpoint) is FAMILIES[name]


@pytest.mark.parametrize("name", OWN)
def test_every_tensor_has_its_place_and_every_key_is_read(name: str, tmp_path: Path) -> None:
    module = save(FAMILIES[name], tmp_path)
    planned = plan_model(str(tmp_path))
    assert {step.parameter for step in planned.plan.steps} == set(module.state_dict())
    assert not planned.derivation.warnings
    said = {value.name: value.value for value in planned.derivation.values}
    said.setdefault("rope_theta", 5_000.0)  # where none of its first layers rotates
    assert (said["hidden_size"], said["rope_theta"], said["vocab_size"]) == (24, 5_000.0, VOCAB)


@pytest.mark.sample
@pytest.mark.parametrize("name", OWN)
def test_the_same_scores_whole_cut_and_token_by_token(name: str, tmp_path: Path) -> None:
    module = save(FAMILIES[name], tmp_path)
    chance = torch.Generator().manual_seed(run_seed(3))
    ids = torch.randint(3, VOCAB, (40,), generator=chance)
    ours = loaded(tmp_path)
    assert_same_network(ours.module, module, ids[None])
    lab = Lab(ours.module)
    with torch.inference_mode():
        whole = module.forward_sequences(ids[None])[0]
    for cuts in ((), (3, 17), range(40)):
        torch.testing.assert_close(
            lab.runner.logits(ids.tolist(), cuts), whole, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("name", OWN)
def test_converted_it_is_the_same_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    module = save(FAMILIES[name], tmp_path / "one")
    convert(str(tmp_path / "one"), tmp_path / "two")
    assert_same_network(loaded(tmp_path / "two").module, module, torch.tensor([[5, 9, 2, 40, 7]]))


def test_cobra_is_llama_by_other_names(tmp_path: Path) -> None:
    cobra, llama = FAMILIES["cobra"], LLAMA
    both = config_of(cobra).keys() & config_of(llama).keys()
    assert both == {"model_type", "vocab_size", "head_dim", "tie_word_embeddings"}
    assert network_of(cobra).config == network_of(llama).config
    save(cobra, tmp_path)
    assert not any(name.startswith("model.") for name in open_checkpoint(tmp_path).tensors)
