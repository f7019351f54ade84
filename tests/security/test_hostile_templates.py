"""Templates that nobody thought of: none may take long, or much memory."""

import subprocess
import sys

import pytest

from tests.support import hostile_templates
from tests.support.seeds import examples, run_seed


@pytest.mark.parametrize("options", [[], ["-O"]], ids=["checked", "optimized"])
def test_no_hostile_template_takes_long(options: list[str]) -> None:
    count = examples(50 if options else 200)  # without asserts it is the same program
    command = [sys.executable, *options, "-m", hostile_templates.__name__]
    seed = run_seed(len(options))
    done = subprocess.run(
        [*command, str(seed), str(count)], capture_output=True, text=True, check=False
    )
    tried = done.stdout.splitlines()
    assert done.returncode == 0, (tried[-1], done.stderr[-2000:])
    assert tried.pop() == "done"
    assert len(set(tried)) > count / 2
