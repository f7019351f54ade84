"""The check of a GPU, tried on a CPU."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from benchmarks import gpu_check
from blazr.bench.roofline import product_counts
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from tests.support.networks import build_network


def run(out: Path, *more: str) -> tuple[int, list[dict[str, object]]]:
    """The exit status, and the lines that were written."""
    status = gpu_check.main(["--device", "cpu", "--tiny", "--out", str(out), *more])
    return status, [json.loads(line) for line in out.read_text().splitlines()]


def test_every_stage_says_what_it_found(tmp_path):
    only = [word for stage in ("ops", "replies", "speed") for word in ("--only", stage)]
    status, lines = run(tmp_path / "out" / "check.jsonl", *only)
    assert [line for line in lines if "error" in line] == []
    assert status == 0
    wanted = {"device", "replies", "decode", "prompt", "speed", "end"}
    assert {line["stage"] for line in lines} - {"ops"} == wanted
    assert lines[-1]["name"] == "done"
    speeds = [line["tokens_per_s"] for line in lines if line["stage"] == "decode"]
    assert len(speeds) == 4
    assert min(speeds) > 0
    assert sum(str(line["name"]).endswith("exact") for line in lines) == 2


def test_of_experts_the_chosen_ones_alone_are_multiplied():
    device = resolve_device("cpu")
    model = build_network(("mla+moe", "gqa+mlp"))
    subject = gpu_check.Subject(model, device, {"bytes_per_s": 1.0, "flops_per_s": 1e9})
    found = subject.read(40)
    (numbers,) = product_counts(model).values()
    assert numbers < subject.parameters
    per_s = found["share_of_products"] * 1e9
    assert per_s == pytest.approx(2 * numbers * found["tokens_per_s"], rel=0.05)


@pytest.mark.slow  # transformers takes long to import
def test_a_rival_is_measured_beside(tmp_path):
    pytest.importorskip("transformers")
    status, lines = run(tmp_path / "check.jsonl", "--only", "rivals")
    assert status == 0
    found = [line for line in lines if line["stage"] == "rivals"]
    assert len(found) == len(gpu_check.RIVALS)
    assert min(min(line["tokens_per_s"], line["blazr_tokens_per_s"]) for line in found) > 0


@pytest.mark.skipif(bool(compiled.missing()), reason="the kernels are not compiled")
def test_a_kernel_that_is_wrong_is_told(monkeypatch, tmp_path):
    def wrong(row, *_):
        assert row.op != "add", "the sums are wrong"

    monkeypatch.setattr(gpu_check, "agree", wrong)
    status, lines = run(tmp_path / "check.jsonl", "--only", "ops")
    assert status == 1
    errors = [line for line in lines if "error" in line]
    assert {line["name"].partition(" ")[0] for line in errors} == {"cpu.add"}
    assert "the sums are wrong" in errors[0]["error"]


def test_replies_that_differ_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check.Lab, "ask", lambda lab, prompt, **_: _ask_other(lab, prompt))
    status, lines = run(tmp_path / "check.jsonl", "--only", "replies")
    assert status == 1
    assert any("differ" in str(line.get("error")) for line in lines)


_ask = gpu_check.Lab.ask
_asked: list[int] = []


def _ask_other(lab, prompt):
    _asked.append(len(_asked))
    return _ask(lab, [*prompt, _asked[-1] % 50], max_tokens=20)


def test_when_no_time_is_left_the_rest_is_left_out(tmp_path):
    status, lines = run(tmp_path / "check.jsonl", "--seconds", "0")
    assert status == 0
    assert all("skipped" in line for line in lines[:-1])
    # nothing is left that would end this process later
    assert not any(isinstance(each, threading.Timer) for each in threading.enumerate())


def test_without_the_device_it_says_so(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: unknown device\.\n"):
        run(tmp_path / "check.jsonl", "--device", "abacus")
    assert not (tmp_path / "check.jsonl").exists()
