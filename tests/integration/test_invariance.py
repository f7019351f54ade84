"""Replies are the same bits under every circumstance; what lets others into a reply is found.

`tools/invariance.py` compares as many as are wanted, of every kind of network.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.mlp import Mlp
from tests.support.invariance import CIRCUMSTANCES, Trial, differences
from tests.support.kinds import KINDS, STORED
from tests.support.seeds import run_seed

pytestmark = [
    pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled"),
    pytest.mark.usefixtures("kernels_as_before"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind", ["hybrid of all", "gated delta", "packed in turns", "deepseek in fp8"]
)
def test_no_reply_differs(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind](torch.bfloat16)
    trial = Trial(model, run_seed(1), tmp_path, STORED.get(kind, {}))
    for name in CIRCUMSTANCES:
        num_differing, compared = differences(trial, name)
        assert compared, name
        assert not num_differing, f"{name}: {num_differing} of {compared} replies differed"


def test_a_layer_that_sees_its_neighbours_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Mlp.forward

    def leaky(self, x, *args, **kwargs):
        y = own(self, x, *args, **kwargs)
        return y + 1e-4 * y[-1:]

    monkeypatch.setattr(Mlp, "forward", leaky)
    trial = Trial(KINDS["hybrid"](torch.float32), run_seed(1), tmp_path)
    for name in ("with 7 others", "in chunks of 17", "preempted"):
        assert differences(trial, name)[0] > 0, name
