"""Verifying: a sound engine passes, whatever its layers; one that computes otherwise does not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import typer
from torch import Tensor

from blazr.bench.verify import verify
from blazr.cli.verify import verify as command
from blazr.core.errors import ConfigError
from blazr.nn.device import resolve_device
from blazr.nn.layers import moe
from blazr.nn.layers.mla import Mla
from blazr.nn.layers.moe import Router
from blazr.nn.operands.experts import Routing
from blazr.nn.ops.moe import route
from tests.support import tiny
from tests.support.quantized import quantize_directory
from tests.support.references import CASES, save_reference
from tests.support.tiny import Tiny

CPU = resolve_device("cpu")
HYBRID = Tiny(
    layers=("Mamba2", "Mamba1", "MlaWithMoe", "Mamba3", "GqaWithMoe"), hidden_size=64,
    intermediate_size=64, kv_latent=32,
)  # fmt: skip

MIXTURE = Tiny(layers=("GqaWithMoe", "GqaWithMoe"), hidden_size=64, num_experts=8)


@pytest.fixture
def hybrid(tmp_path: Path) -> str:
    return str(tiny.save(HYBRID, tmp_path / "m"))


@pytest.mark.parametrize("quantize", [None, "q8_0", "int4"])
def test_a_sound_engine_passes(hybrid: str, quantize: str | None) -> None:
    found = verify(hybrid, CPU, dtype="float32", quantize=quantize, max_tokens=4)
    assert found.is_ok, found
    assert found.first_diverging_layer is None
    assert [layer.index for layer in found.layers] == [-1, 0, 1, 2, 3, 4]
    assert found.layers[3].type == "MlaWithMoe"
    assert (found.greedy.tokens, found.greedy.agreeing) == (8, 8)
    if quantize is None:
        assert found.layers[0].error == 0
        assert found.logits_error > 0  # of two computations: is_ok says that it is small enough
    assert found.transformers in {"not applicable", "not installed"}


@pytest.mark.parametrize("wrong", ["network", "kernel"])
def test_the_first_layer_that_is_wrong_is_named(
    hybrid: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
) -> None:
    """The file's formulas judge what every path computes; float64, what kernels alone do."""
    forward = Mla.forward

    def changed(self, x, batch, cache):
        out = forward(self, x, batch, cache)
        is_reference = torch.is_grad_enabled()  # kernels compute no gradients
        return out if wrong == "kernel" and is_reference else out * 1.01

    monkeypatch.setattr(Mla, "forward", changed)
    found = verify(hybrid, CPU, dtype="float32", max_tokens=4)
    named = (found.witness.first_wrong_layer, found.first_diverging_layer)
    assert named == ((2, None) if wrong == "network" else (None, 2))
    assert not found.is_ok
    with pytest.raises(typer.Exit) as caught:
        command(hybrid, dtype="float32", tokens=4, device="cpu")
    assert caught.value.exit_code == 1
    assert re.search(r"layer 2 .* <- diverges", capsys.readouterr().out)


def test_a_tolerance_of_zero_is_one(hybrid: str) -> None:
    found = verify(hybrid, CPU, dtype="float32", max_tokens=1, tolerance=0.0)
    assert found.tolerance == 0
    assert not found.is_ok  # no two computations agree to the last bit


@pytest.mark.parametrize("tolerance", [-1.0, math.nan])
def test_a_tolerance_that_is_none_is_refused(hybrid: str, tolerance: float) -> None:
    with pytest.raises(ConfigError, match="the tolerance is out of range"):
        verify(hybrid, CPU, tolerance=tolerance)


def test_wrong_tokens_are_told(hybrid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from blazr.engine.sampling.sampler import Sampler

    draws = Sampler.draws

    def second(self, logits):
        worst = logits.clone()
        worst.scatter_(1, logits.argmax(1, keepdim=True), -1e9)
        return draws(self, worst)

    monkeypatch.setattr(Sampler, "draws", second)
    found = verify(hybrid, CPU, dtype="float32", max_tokens=4)
    assert found.first_diverging_layer is None
    assert found.greedy.agreeing < found.greedy.tokens
    assert len(found.greedy.faults[0]) == 4
    assert not found.is_ok


def swapped(most: float) -> Callable[[Router, Tensor], Tensor]:
    """Routers of the engine that exchange the last expert with the next, if that is a near tie."""
    forward = Router.forward

    def wrong(self: Router, x: Tensor) -> Tensor:
        scores = forward(self, x)
        if scores.dtype == torch.float64:
            return scores
        top = MIXTURE.experts_per_tok
        pair = scores.argsort(-1, descending=True)[:, top - 1 : top + 1]
        other = scores.scatter(1, pair, scores.gather(1, pair).flip(1))
        error = (other - scores).norm(dim=-1) / scores.norm(dim=-1)
        return torch.where((error <= most).unsqueeze(-1), other, scores)

    return wrong


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    return str(tiny.save(MIXTURE, tmp_path / "m"))


@pytest.mark.parametrize(("most", "is_right"), [(0.04, True), (10.0, False)])
def test_experts_that_are_as_good_but_for_rounding(
    mixture: str, monkeypatch: pytest.MonkeyPatch, most: float, *, is_right: bool
) -> None:
    """The engine may take either; scores that are off by more are wrong as before."""
    monkeypatch.setattr(Router, "forward", swapped(most))
    found = verify(mixture, CPU, dtype="bfloat16", max_tokens=4)
    assert (found.first_diverging_layer is None) is is_right
    assert found.choices.total == 2 * 48
    assert found.choices.followed > 0
    assert found.is_ok is is_right


def test_the_wrong_experts_by_right_scores_are_wrong(
    mixture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(scores: Tensor, routing: Routing, *more: Tensor | None) -> tuple[Tensor, Tensor]:
        if scores.dtype != torch.float64:
            best = scores.argmax(-1, keepdim=True)
            scores = scores.scatter(1, best, -math.inf)
        return route(scores, routing, *more)

    monkeypatch.setattr(moe, "route", second)
    found = verify(mixture, CPU, dtype="bfloat16", max_tokens=4)
    assert not found.is_ok
    assert found.first_diverging_layer is not None


def test_json_for_other_programs(hybrid: str, capsys: pytest.CaptureFixture[str]) -> None:
    command(hybrid, tokens=2, device="cpu", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["greedy"]["agreeing"] == found["greedy"]["tokens"] == 4
    assert len(found["layers"]) == 6


def test_json_knows_no_infinity(hybrid: str, capsys: pytest.CaptureFixture[str]) -> None:
    command(hybrid, tokens=1, tolerance=math.inf, device="cpu", as_json=True)
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["tolerance"] is None


@pytest.fixture
def qwen2(tmp_path: Path) -> tuple[str, torch.nn.Module]:
    """A directory of the library, and its model."""
    pytest.importorskip("transformers")
    return str(tmp_path), save_reference("qwen2", tmp_path, seed=1)


def test_transformers_is_asked_where_it_can_be(
    qwen2: tuple[str, torch.nn.Module],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers.utils import logging

    path, _ = qwen2
    monkeypatch.setattr(logging, "_tqdm_active", True)
    found = verify(path, CPU, dtype="float32", max_tokens=4)
    assert found.is_ok
    assert found.transformers == "agrees"
    assert found.transformers_error is not None
    assert not capsys.readouterr().err  # no progress bars where stderr is no terminal


def test_scores_that_are_not_those_of_transformers_are_wrong(
    qwen2: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    path, theirs = qwen2
    other = theirs.double()
    other.lm_head.weight.mul_(1.1)
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: other
    )
    found = verify(path, CPU, dtype="float32", max_tokens=1)
    assert found.transformers == "differs"
    assert not found.is_ok


def test_where_transformers_fails_the_others_judge(
    qwen2: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def fails(*_: object, **__: object) -> None:
        raise ValueError("this is\nnot for me")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    found = verify(qwen2[0], CPU, dtype="float32", max_tokens=1)
    assert found.transformers == "failed: ValueError: this is not for me"
    assert found.is_ok
    assert found.witness.is_there


def test_a_hybrid_without_attention_is_read_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    kind, changes = CASES["granitemoehybrid mamba"]
    save_reference(kind, tmp_path, seed=1, changes=changes)
    assert verify(str(tmp_path), CPU, dtype="float32", max_tokens=1).transformers == "agrees"


def test_a_bias_of_the_scores_is_not_forgotten(tmp_path: Path) -> None:
    """The float64 network left it out, so that every Phi was said to be wrong."""
    pytest.importorskip("transformers")
    kind, changes = CASES["phi"]
    save_reference(kind, tmp_path, seed=1, changes=changes)
    found = verify(str(tmp_path), CPU, dtype="float32", max_tokens=2)
    assert found.is_ok, found
    assert found.witness.is_there
    assert found.transformers == "agrees"


def test_transformers_does_not_judge_quantized_files(tmp_path: Path) -> None:
    source, quantized = tmp_path / "source", tmp_path / "quantized"
    tiny.save(tiny.Tiny(layers=("StandardTransformer",)), source, layout="hf", seed=1)
    quantize_directory(source, "fp8 per matrix", quantized, tmp_path / "plain")
    found = verify(str(quantized), CPU, dtype="float32", max_tokens=1)
    assert found.is_ok
    assert found.transformers == "not applicable"
