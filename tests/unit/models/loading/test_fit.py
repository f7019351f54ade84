"""What fits: counted from headers, and what the weights then really take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blazr.cli.info import info
from blazr.models.loading.fit import AS_STORED, fit
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.models.sizing import size_of
from blazr.nn.device import Device, resolve_device
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.weight import stored_weights
from tests.support import tiny
from tests.support.tiny import Tiny

CPU = resolve_device("cpu")
MODEL = Tiny(layers=("Mamba2", "MlaWithMoe", "StandardTransformer"), hidden_size=256,
             intermediate_size=256, kv_latent=32, vocab_size=500)  # fmt: skip
GGUF = Path(__file__).parents[3] / "golden" / "gguf" / "stories260K-q4_0.gguf"


class Small(Device):
    """A machine with little memory."""

    def free_bytes(self) -> int:
        return 2**29 + 5 * 2**20


@pytest.mark.parametrize("name", [AS_STORED, *QUANTIZERS])
def test_weights_take_what_was_said(name: str, tmp_path: Path) -> None:
    path = str(tiny.save(MODEL, tmp_path / "m"))
    choice = next(each for each in fit(path, CPU).choices if each.quantization == name)
    module = load(path, device=CPU, quantize=None if name == AS_STORED else name).module
    taken = sum(each.nbytes for each in stored_weights(module))
    # rows come in sixteens; kernels keep scales that blocks share once
    least = 0.92 if name.startswith("int") else 1
    assert least * choice.weights_bytes <= taken <= 1.06 * choice.weights_bytes
    assert choice.context == MODEL.max_seq_len


def test_a_small_machine_holds_less(tmp_path: Path) -> None:
    path = str(tiny.save(replace(MODEL, max_seq_len=2**26), tmp_path / "m"))
    found = fit(path, Small("cpu", "small"))
    by_name = {each.quantization: each for each in found.choices}
    assert by_name[AS_STORED].context == 0
    assert 64 <= by_name["q8_0"].context < by_name["q4_0"].context < 2**26
    assert found.bytes_per_token > 0
    size = size_of(plan_model(path).derivation.config, torch.float32)
    of_runs = size.working_bytes_per_sequence + size.log_bytes_per_sequence
    assert found.state_bytes == size.state_bytes_per_sequence + of_runs > 0
    left = found.free_bytes - by_name["q4_0"].weights_bytes
    assert by_name["q4_0"].context * found.bytes_per_token < left


def test_states_in_bfloat16_take_half(tmp_path: Path) -> None:
    path = str(tiny.save(MODEL, tmp_path / "m"))
    plain, stored = fit(path, CPU), fit(path, CPU, state_dtype="bfloat16")
    (mamba,) = (
        layer.mixer.cache_spec(torch.float32)
        for layer in plan_model(path).derivation.config.layers
        if layer.mixer.cache_spec(torch.float32).states
    )
    assert plain.state_bytes - stored.state_bytes == mamba.checkpoint["ssm"].nbytes / 2
    assert plain.bytes_per_token == stored.bytes_per_token
    without, same = fit(str(GGUF), CPU), fit(str(GGUF), CPU, state_dtype="bfloat16")
    assert without.state_bytes == same.state_bytes == 0, "attention has no states"


def test_gguf_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    info(str(GGUF), fit=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [each["quantization"] for each in found["choices"]] == [AS_STORED, *QUANTIZERS]
    info(str(GGUF), fit=True)
    assert "as stored" in capsys.readouterr().out
    info(str(GGUF))
    assert "Q4_0" in capsys.readouterr().out
