"""A script ends as it should, whatever the engine that nobody has closed is doing."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEGINNING = """
from blazr import LLM, SamplingParams
llm = LLM()
events = llm.stream("Once", SamplingParams(max_tokens=2000, ignore_eos=True))
next(events)
"""


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("events.close()", 0), ("raise ValueError", 1)], ids=str
)
def test_in_the_middle_of_a_reply(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGINNING + end], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "terminate" not in done.stderr
