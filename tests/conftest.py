"""What every test gets: its threads, fixed seeds, no network."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings, strategies

# Set before anything imports torch or the hub's client, which read them once.
# One thread where several processes share the cores: more would wait on each other, spinning.
_THREADS = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"  # noqa: TID251
os.environ["OMP_NUM_THREADS"] = _THREADS  # noqa: TID251  (torch's variable, not ours)
os.environ["OMP_WAIT_POLICY"] = "passive"  # noqa: TID251  (spin on a shared core, and all wait)
os.environ["HF_HUB_OFFLINE"] = "1"  # noqa: TID251
# Workers, and the many tests that start a process, would each compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251
sys.dont_write_bytecode = False
# Another instruction set for the whole run, as on a processor that has no better one. It decides
# about torch's own operations too, whose random numbers and rounding differ.
KERNELS = os.environ.get("BLAZR_KERNELS", "")  # noqa: TID251
_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
_ELSEWHERE = {
    "avx2": _AVX2,
    "avx_vnni": {**_AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"},
    "portable": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
os.environ.update(_ELSEWHERE.get(KERNELS, {}))  # noqa: TID251
for name in list(os.environ):  # noqa: TID251
    if name.startswith("BLAZR_") or name == "RUST_LOG":
        del os.environ[name]  # noqa: TID251  (a developer's shell must not change the tests)
os.environ["BLAZR_NO_HISTORY"] = "1"  # noqa: TID251
if KERNELS:
    os.environ["BLAZR_KERNELS"] = KERNELS  # noqa: TID251

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # what several tests share is imported from tests.support

from tests.support.seeds import choose, run_seed  # noqa: E402

# The same examples in every run, and no opinion on how busy the machine is.
settings.register_profile("blazr", deadline=None, derandomize=True)
settings.load_profile("blazr")
MAX_WORKERS = 4
SAMPLE = 8  # cases of a test with the marker ``sample``


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for a few files, else one more than cores, as many tests wait; up to four."""
    if all(Path(arg.partition("::")[0]).is_file() for arg in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)) + 1, MAX_WORKERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the smoke run: to import them all takes longer than it."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.getoption("-m") == "smoke" and is_module:
        return "mark.smoke" not in collection_path.read_text("utf-8") or None
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all-cases, --torch-free, --seed, and --templates for those not ours to pass on."""
    parser.addoption("--all-cases", action="store_true", help="leave out none of a test's cases")
    parser.addoption("--torch-free", action="store_true", help="fail where torch is imported")
    parser.addoption("--templates", type=Path, help="more chat templates (*.jinja) to try tools on")
    parser.addoption("--seed", type=int, default=0, help="other random models, inputs and order")


@pytest.hookimpl(tryfirst=True)  # before the plugins that it sets up
def pytest_configure(config: pytest.Config) -> None:
    """Prepare for what was asked: a seed, kernels in Triton's interpreter, a run without torch."""
    seed = config.getoption("--seed")
    if seed:
        config.option.hypothesis_seed = config.option.randomly_seed = seed
        settings.register_profile("seed", deadline=None, derandomize=False, database=None)
        settings.load_profile("seed")
    choose(seed)
    if config.option.markexpr == "triton":  # before whatever imports Triton while it is collected
        os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251  (a variable of Triton's)
    if config.getoption("--torch-free"):
        sys.modules["torch"] = None  # type: ignore[assignment]  # how Python spells "not to be had"


@pytest.hookimpl(trylast=True)  # of those that are selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most cases of a test with the marker ``sample``, where all of the tests run.

    The seed decides which; where files, a keyword or other markers are chosen, all cases run.
    """
    is_whole = config.args == config.getini("testpaths") and not config.option.keyword
    if config.getoption("--all-cases") or not is_whole or "not slow" not in config.option.markexpr:
        return
    cases = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("sample")) is not None:
            size = marker.args[0] if marker.args else SAMPLE
            cases[item.nodeid.partition("[")[0], size].append(item)
    left_out: set[pytest.Item] = set()
    for (_, size), of_test in cases.items():
        of_test.sort(key=lambda item: crc32(f"{run_seed()} {item.nodeid}".encode()))
        left_out.update(of_test[size:])
    config.hook.pytest_deselected(items=[each for each in items if each in left_out])
    items[:] = [each for each in items if each not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, nor look through what was collected later: it all stays."""
    # Hypothesis makes its generator with the first test, and warns where no object that the
    # collector can see holds it.
    given(strategies.none())(lambda _: None)()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)  # what the tests' libraries hold is looked through less


@pytest.fixture(autouse=True, scope="session")
def _collected_tests_stay_frozen() -> Iterator[None]:
    """A model that is unloaded has nobody search through all tests, which takes two seconds."""
    from blazr.core import garbage

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage, "collect_all", gc.collect)
        yield
    # What is left is collected in the end, or libraries call it a leak; not before, because pytest
    # collects five times, which would take as many seconds.
    atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True, scope="session")
def _clients_share_certificates() -> Iterator[None]:
    """Each client of HTTP would read the system's certificates again, which takes 30 ms."""
    import httpcore2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture
def kernels_as_before() -> Iterator[None]:
    """Afterwards kernels are those of the same instruction set, on as many threads as before."""
    import torch

    from blazr.nn.kernels.cpu import compiled

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if not compiled.missing():
        compiled.use(KERNELS)


@pytest.fixture
def reference_ops() -> Iterator[None]:
    """Torch computes, and what is loaded stays as it is stored: exact products, and slow ones."""
    from tests.support.without_kernels import without_kernels

    with without_kernels():
        yield


@pytest.fixture(autouse=True)
def _finished_commands_log_no_more() -> Iterator[None]:
    """Commands that ran in the test have sent the log to a stderr that is closed by now."""
    yield
    logger = logging.getLogger("blazr")
    for handler in logger.handlers.copy():
        if isinstance(handler, logging.StreamHandler) and handler.stream.closed:
            logger.removeHandler(handler)
            logger.propagate = True


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(run_seed())
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(run_seed())
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed notes the stack for each kind of device, which takes a millisecond.
        is_cpu = not torch.cuda.is_available()
        (torch.default_generator if is_cpu else torch).manual_seed(run_seed())
