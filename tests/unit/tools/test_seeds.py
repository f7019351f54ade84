"""Ten seeds: which files need them, and what is not run twice."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.drawing import draws_by_text

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/unit/tools"
CELL = {"code": "abc", "tests": [HERE], "kernels": "avx2", "seed": 0, "failed": [], "count": 2}


@pytest.fixture(scope="module")
def seeds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seeds", ROOT / "tools" / "seeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("conformance/test_random_configs.py", True),  # Hypothesis
        ("integration/test_prefix_reuse.py", True),  # run_seed
        ("integration/test_cold_start.py", True),  # a generator of its own
        ("conformance/test_gguf_ollama.py", True),  # through a neighbour it imports
        ("unit/text/test_thinking_budget.py", False),
        ("unit/server/test_chat.py", False),
    ],
)
def test_what_draws_is_seen_by_its_text(name: str, draws: bool) -> None:
    assert draws_by_text(ROOT / "tests" / name) == draws


def test_a_cell_that_is_known_of_this_code_is_not_run_again(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    out, ran = tmp_path / "seeds.jsonl", []

    def run(kernels: str, seed: int, tests: list[str], options: list[str]) -> dict[str, object]:
        ran.append((kernels, seed))
        return {"failed": [], "count": 3, "seconds": 120, "drawing": []}

    known = [CELL | {"seconds": 60, "drawing": []}, CELL | {"code": "old", "seed": 1}]
    out.write_text("".join(json.dumps(each) + "\n" for each in known))
    monkeypatch.setattr(seeds, "run", run)
    monkeypatch.setattr(seeds, "code", lambda: "abc")
    arguments = ["seeds", "--seeds", "0-1", "--kernels", "avx2,portable", "--out", str(out), HERE]
    monkeypatch.setattr("sys.argv", arguments)
    assert seeds.main() == 0
    assert ran == [("avx2", 1), ("portable", 0), ("portable", 1)]
    assert seeds.main() == 0
    assert len(ran) == 3
    table = capsys.readouterr().out.splitlines()[-2:]
    assert table[0].split() == ["avx2", "0/2", "1", "min", "0/3", "2", "min"]
    monkeypatch.setattr(seeds, "code", lambda: "abc-dirty")
    seeds.main()
    assert len(ran) == 7
    seeds.main()
    assert len(ran) == 11, "two states of a tree that is being edited have one name"


def test_files_that_do_not_draw_are_left_out(seeds: ModuleType) -> None:
    tests = ["tests/unit/text/test_thinking_budget.py", "tests/unit/text/test_vocabs.py"]
    assert seeds.drawing_files({"drawing": []}, tests) == []
    assert seeds.drawing_files({"drawing": tests[1:]}, tests) == tests[1:]
    assert seeds.drawing_files({"drawing": []}, ["tests/integration/test_prefix_reuse.py"]) != []


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_code_is_named_by_its_trees(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        git("add", ".")
        git("commit", "-m", name)
        return seeds.code()

    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    git("init")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").touch()
    first = commit("src/a.py", "1")
    assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]{12}", first)
    assert commit("docs/a.md", "words") == first
    assert commit("src/a.py", "2") != first
    (tmp_path / "src/a.py").write_text("3")
    assert seeds.code().endswith("-dirty")


def test_where_nothing_draws_nothing_is_run(seeds: ModuleType, monkeypatch) -> None:
    monkeypatch.setattr(seeds.subprocess, "run", lambda *_, **__: pytest.fail("pytest was started"))
    cell = seeds.run("portable", 1, [], [])
    assert (cell["failed"], cell["count"]) == ([], 0)
