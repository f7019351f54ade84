"""Real trained Mamba-1 blocks give their recorded outputs, whole, cut, and token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from blazr.nn.layers.batch import LayerCache
from blazr.nn.layers.mamba1 import Mamba1, Mamba1Config
from blazr.nn.operands.step import Span
from tests.support.mixers import step_of

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "mamba1"
RECORDED = ("mamba1-kws3", "mamba1-kws10")


def block(name: str) -> tuple[Mamba1, dict[str, torch.Tensor]]:
    """The trained mixer, sizes read from its tensors, and the tensors around it."""
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    inner, states = tensors["mamba.A_log"].shape
    mixer = Mamba1Config(
        hidden_size=tensors["mamba.in_proj.weight"].shape[1],
        inner_size=inner,
        state_size=states,
        dt_rank=tensors["mamba.dt_proj.weight"].shape[1],
        variant="mamba_ssm",
    ).build()
    names = {"A_log": "a_log", "D": "d"}
    own = {
        names.get(key.removeprefix("mamba."), key.removeprefix("mamba.")): value
        for key, value in tensors.items()
        if key.startswith("mamba.")
    }
    own["conv1d.weight"] = own["conv1d.weight"].squeeze(1)
    mixer.load_state_dict(own)
    return mixer.requires_grad_(requires_grad=False), tensors


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_outputs(name):
    mixer, tensors = block(name)
    golden = load_file(GOLDEN / f"{name}-golden.safetensors")
    x = F.linear(golden["input"], tensors["linear_in.weight"], tensors["linear_in.bias"])
    y = mixer.forward_sequences(x[None])[0]
    scale = float(golden["mixer_output"].abs().max())
    assert (y - golden["mixer_output"]).abs().max() < 1e-5 * scale
    logits = F.linear(y.mean(0), tensors["classifier.weight"], tensors["classifier.bias"])
    assert logits.argmax() == golden["logits"].argmax()
    assert torch.allclose(logits, golden["logits"], atol=1e-5 * scale)


@pytest.mark.parametrize("name", [*RECORDED, "mamba1-har6"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_cut_anywhere_is_the_whole(name, chunk):
    mixer, tensors = block(name)
    x = torch.randn(100, tensors["mamba.in_proj.weight"].shape[1])
    spec = mixer.config.cache_spec(torch.float32)
    kinds = (spec.paged, spec.checkpoint, spec.log_tensors, spec.working_tensors)
    cache = LayerCache(*({k: torch.zeros(3, *t.shape) for k, t in each.items()} for each in kinds))
    parts = []
    for start in range(0, 100, chunk):
        end = min(start + chunk, 100)
        checkpoint = start // 64 * 64
        edge = end // 64 * 64
        span = Span(
            first=0,
            length=end - start,
            start=start,
            log_length=start - checkpoint,
            checkpoints=((edge - start, 1),) if edge > checkpoint else (),
        )
        batch = step_of([span], states=[int(checkpoint > 0)])
        parts.append(mixer(x[start:end], batch, cache))
    whole = mixer.forward_sequences(x[None])[0]
    scale = float(whole.abs().max())
    assert (torch.cat(parts) - whole).abs().max() < 1e-5 * scale
