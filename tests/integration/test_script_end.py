"""A script ends as it should, whatever the engine that nobody has closed is doing."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval

import pytest

# Nothing has computed when it forks: each script is as one that has imported torch itself.
_SCRIPTS = """
import os, sys
from blazr import LLM, SamplingParams
ended = {}
for end in sys.argv[1:]:
    script = os.fork()
    if not script:
        llm = LLM()
        events = llm.stream("Once", SamplingParams(max_tokens=2000, ignore_eos=True))
        next(events)
        exec(end)
        break
    ended[end] = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
else:
    print(ended)
"""
_ENDS = {"": 0, "events.close()": 0, "del llm, events": 0, "raise ValueError": 1}


@pytest.mark.slow
def test_in_the_middle_of_a_reply() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPTS, *_ENDS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert literal_eval(done.stdout) == _ENDS, done.stderr
    assert "terminate" not in done.stderr
