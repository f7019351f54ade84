"""The front door: public names, and a command line that answers at once."""

import resource
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
    heavy = {"torch", "numpy", "starlette", "uvicorn", "prompt_toolkit"} & set(sys.modules)
    sys.stderr.write(",".join(sorted(heavy)))
"""


def _run(code: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The finished process, and the processor time it took, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    done, _ = _run(code)
    found = {name.partition(".")[0] for name in done.stdout.split()}
    assert found <= {"blazr", "importlib", "warnings", "__future__"}, done.stderr
    assert "blazr" in done.stdout.split()
    assert "blazr." not in done.stdout


def test_help_is_light_and_quick() -> None:
    """It takes about twice the processor time of importing the library it is written with."""
    best = library = 60.0
    for _ in range(2):
        done, seconds = _run(HELP)
        assert done.returncode == 0, done.stderr
        assert "generate" in done.stdout
        assert not done.stderr, "imported for nothing"
        best = min(best, seconds)
        library = min(library, _run("import typer, rich.console")[1])
    assert best < 4 * library
