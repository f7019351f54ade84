"""What happens between the start of a process and its first token."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
from blazr import LLM, SamplingParams
with LLM() as llm:  # more tokens than steps are computed before one is recorded
    print(llm.generate("Once upon a time", SamplingParams(max_tokens=8, temperature=0))[0].text)
heavy = ("torch._dynamo", "torch._inductor", "sympy", "torch.fx.experimental.symbolic_shapes")
sys.exit(", ".join(name for name in heavy if name in sys.modules) or None)
"""


def test_no_compiler_of_torch_is_imported_on_the_way_to_a_token() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    assert done.stdout.strip()
