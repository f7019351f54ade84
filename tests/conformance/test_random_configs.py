"""Every family at sizes and settings that nobody has released: as right as transformers is."""

from __future__ import annotations

import json
import tempfile
from copy import deepcopy
from math import isfinite
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from tests.support.networks import VOCAB, Lab
from tests.support.random_configs import Changes, random_changes
from tests.support.references import CASES, SIZES, reference_truth, save_reference
from tests.support.tolerances import assert_as_right

pytestmark = pytest.mark.sample

transformers = pytest.importorskip("transformers", reason="the reference is that library")

CPU = resolve_device("cpu")
KINDS = sorted({kind for kind, _ in CASES.values()})
SEEDS = st.integers(0, 2**32)
slow_to_draw = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


@pytest.mark.parametrize("kind", KINDS)
@settings(slow_to_draw, max_examples=2)
@given(seed=SEEDS)
def test_logits_are_as_right_as_theirs(kind: str, seed: int) -> None:
    _compare(kind, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@settings(slow_to_draw, max_examples=200, derandomize=False)
@given(seed=SEEDS)
def test_so_are_those_of_many_more(kind: str, seed: int) -> None:
    _compare(kind, seed)


def _compare(kind: str, seed: int) -> None:
    rng = Random(seed)
    case = deepcopy(rng.choice([changes for each, changes in CASES.values() if each == kind]))
    known = transformers.CONFIG_MAPPING[kind](**SIZES | deepcopy(case)).to_dict()
    changes = random_changes(rng, kind, case, known)
    ids = [rng.randrange(3, VOCAB) for _ in range(rng.choice((5, 37, 100)))]
    with tempfile.TemporaryDirectory() as folder:
        truth, loss = _theirs(kind, Path(folder), seed, changes, ids)
        ours = load(folder, device=CPU, dtype="float32").module
    lab = Lab(ours)
    cuts = sorted(rng.sample(range(1, len(ids)), 2))
    with torch.inference_mode():
        whole = ours.forward_sequences(torch.tensor([ids]))[0]
    for found in (whole, lab.runner.logits(ids, ()), lab.runner.logits(ids, cuts)):
        assert_as_right(found, truth, loss, json.dumps(changes))


def _theirs(
    kind: str, directory: Path, seed: int, changes: Changes, ids: list[int]
) -> tuple[Tensor, float]:
    """What is right and what they lose; configs that do not fit together are not ours to judge."""
    try:
        model = save_reference(kind, directory, seed=seed, changes=changes)
        truth, loss = reference_truth(model, ids)
    except Exception:  # noqa: BLE001  (whatever that library raises)
        reject()
    assume(bool(truth.isfinite().all()) and isfinite(loss))
    return truth, loss


def test_sizes_of_a_mixer_that_no_layer_has_refuse_nothing(tmp_path: Path) -> None:
    changes: Changes = {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 3,
    }
    theirs = save_reference("qwen3_next", tmp_path, changes=changes)
    truth, loss = reference_truth(theirs, [3, 4, 5])
    ours = load(str(tmp_path), device=CPU, dtype="float32").module
    found = ours.forward_sequences(torch.tensor([[3, 4, 5]]))[0]
    assert_as_right(found, truth, loss, json.dumps(changes))
