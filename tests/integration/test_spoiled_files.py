"""Spoiled model files: each is refused or works, within limits of time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.seeds import run_seed
from tests.support.spoiled_files import KINDS
from tests.support.spoiled_kit import BY_HAND


def check(*kinds: str, count: int, seed: int) -> None:
    found = outcomes(*kinds, "--count", str(count), "--seed", str(run_seed(seed)))
    assert [*found] == [*kinds]
    for each in found.values():
        assert each["of"] == count
        assert each["refused"] > count / 10


def outcomes(*words: str) -> dict[str, dict[str, int]]:
    """How many of each kind ended how."""
    command = [sys.executable, "-m", "tests.support.spoiled_files", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {each.pop("kind"): each for each in lines}


def test_some_spoiled_files() -> None:
    check(*KINDS, count=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_spoiled_files(kind: str) -> None:
    check(kind, count=400, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", BY_HAND)
def test_files_spoiled_by_hand(kind: str) -> None:
    found = outcomes(kind)[kind]
    assert min(found["loaded"], found["refused"]) > 0
