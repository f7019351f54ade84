"""The recorded checkpoints through the Python API: logits however computed, and greedy tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from blazr import LLM, SamplingParams
from tests.support.seeds import run_seed

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "oxidizr"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
SMOKE = {
    "hf_llama",
    "hybrid_bf16",
    "hybrid_mixed_order",
    "mamba1_hybrid",
    "mamba3_mimo",
    "moe_top2",
}
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.smoke] * (case in SMOKE)) for case in CASES]
)
def test_a_recorded_checkpoint(case):
    expected = np.load(GOLDEN / case / "expected.npz")
    ids, wanted = expected["token_ids"].tolist(), torch.from_numpy(expected["logits"])
    with LLM(str(GOLDEN / case)) as llm:
        engine = llm.core.engine
        cuts = {
            "whole": (),
            "random chunks": Random(f"{case} {run_seed()}").sample(
                range(1, len(ids)), len(ids) // 4
            ),
            "token by token": range(1, len(ids)),
        }
        assert torch.equal(llm.logits(ids), engine.logits(ids))
        for how, places in cuts.items():
            error = (engine.logits(ids, tuple(places)) - wanted).abs().max()
            assert error < TOLERANCE, f"{how}: {error:.1e}"
        greedy = expected["greedy_ids"].tolist()
        params = SamplingParams(temperature=0, max_tokens=len(greedy), ignore_eos=True)
        (completion,) = llm.generate([ids], params)
        assert list(completion.token_ids) == greedy


@pytest.mark.parametrize("model_type", ["llama", "oxidizr"])
@pytest.mark.parametrize("case", ["gqa_mlp", "mamba2_pure"])
def test_a_type_that_somebody_added_to_its_config(case: str, model_type: str, tmp_path: Path):
    """Whatever it says, the tensors are not named as those of transformers."""
    shutil.copytree(GOLDEN / case, tmp_path / case)
    config_path = tmp_path / case / "config.json"
    config = json.loads(config_path.read_text())
    config_path.write_text(json.dumps(config | {"model_type": model_type}))
    expected = np.load(GOLDEN / case / "expected.npz")
    with LLM(str(tmp_path / case)) as llm:
        found = llm.logits(expected["token_ids"].tolist())
    assert (found - torch.from_numpy(expected["logits"])).abs().max() < TOLERANCE
