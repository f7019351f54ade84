"""The front door: public names, and a command line that answers at once."""

import subprocess
import sys

import blazr

HELP = """
import sys
sys.argv = ["blazr", "--help"]
from blazr.cli.app import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_every_public_name_resolves() -> None:
    for name in blazr.__all__:
        assert getattr(blazr, name) is not None
    assert set(dir(blazr)) >= set(blazr.__all__)


def test_public_names_are_the_documented_ones() -> None:
    classes = {"LLM", "AsyncLLM", "SamplingParams", "StructuredOutputsParams", "Message"}
    assert set(blazr.__all__) == classes | {"__version__"}


def test_importing_blazr_imports_next_to_nothing() -> None:
    """Under 20 ms is the aim; it is one."""
    code = "import sys; before = set(sys.modules); import blazr; print(*set(sys.modules) - before)"
    done = _run(code)
    found = {name.partition(".")[0] for name in done.stdout.split()}
    assert found <= {"blazr", "importlib", "warnings", "__future__"}, done.stderr
    assert "blazr" in done.stdout.split()
    assert "blazr." not in done.stdout


def test_help_is_light_and_quick() -> None:
    """Its time goes into importing modules, so they are counted: a clock would be no measure."""
    done = _run(HELP)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout
    imported = set(done.stderr.split())
    heavy = {"torch", "numpy", "starlette", "uvicorn", "prompt_toolkit", "httpx2", "tokenizers"}
    assert not imported & heavy, "imported for nothing"
    assert len(imported) < 400, "it is 300, of which the library it is written with takes half"
