"""Grammars that cost too much, many at once, and what is left behind: nothing."""

from __future__ import annotations

import ast
import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from blazr.core.errors import CapacityError, EngineError, GrammarError
from blazr.text.grammars import child, compiler, constraint, trial
from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.grammars.constraint import GrammarConstraint
from blazr.text.grammars.embedded import embed
from blazr.text.grammars.plain import UNFORCED
from blazr.text.tokenizer import Tokenizer

# each costs the child all its time, in another place of llguidance
BOMBS = {
    "multiples": {
        "allOf": [{"type": "integer", "multipleOf": p} for p in (9973, 9967, 9949, 9941)]
    },
    "properties": {
        "type": "object",
        "properties": {
            f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,20}}{i}$"} for i in range(8000)
        },
    },
}
# cheap or refused by its own limits, never a crash
HOSTILE = [
    {"regex": "(((a{0,100}){0,100}){0,100}){0,100}"},
    {"regex": r"(\w{1,500}\p{L}{2,900}x?){1,900}y(.*z.{3,700}){1,900}"},
    {"regex": "(a|b)*a(a|b){200}"},
    {"regex": "[" * 50000},
    {"lark": "start: " + "(" * 20000 + '"a"' + ")" * 20000},
    {"lark": 'start: e\ne: e "+" e | e e | "(" e ")" | /[0-9]+/ | e'},
    {"lark": "start: /(a|b)*a(a|b){200}/ & ~/(a|b)*b(a|b){199}/"},
    {"json_schema": {"type": "string", "pattern": "(a{1,1000}){1,1000}"}},
    {
        "json_schema": {
            "type": "array",
            "minItems": 10**8,
            "items": {"type": "array", "minItems": 10**8},
        }
    },
    {"json_schema": {"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(40)]}},
    {"json_schema": {"enum": [f"v{i}" * 5 for i in range(3000)]}},
    {"json_schema": {"type": "integer", "minimum": 10**400, "maximum": 10**401}},
]


# Rules that force text which never ends. Looked for, its end kept all threads waiting.
ENDLESS = {
    "takes what must follow": ("lark", 'start: A "a" "b"\nA: "a"+'),
    "refers to itself": ("lark", 'start: A start\nA: "a"*'),
    "later": ("lark", 'start: /[xy]/ rest\nrest: A rest\nA: "a"*'),
    "asks for it": ("lark", '%llguidance {"no_forcing": false}\nstart: A start\nA: "a"*'),
    "GBNF": ("gbnf", 'root ::= a root\na ::= "a"*'),
}
FORCE = """
import sys
from llguidance import LLTokenizer
from blazr.text.grammars import GRAMMARS
from blazr.text.grammars.child import make_matcher
matcher = make_matcher(LLTokenizer("byte"), GRAMMARS[sys.argv[1]](sys.argv[2], {}))
matcher.try_consume_tokens(list(b"x"))
matcher.compute_ff_tokens()
"""


@pytest.mark.parametrize("name", ENDLESS)
def test_text_that_is_forced_without_end_is_not_looked_for(name: str) -> None:
    program = [sys.executable, "-c", FORCE, *ENDLESS[name]]
    assert subprocess.run(program, timeout=20, check=False).returncode == 0


def test_nor_in_the_input_of_a_custom_tool() -> None:
    assert embed(ENDLESS["later"][1], "input", in_json=False).source.endswith(UNFORCED)


@pytest.fixture
def grammars(chatty: Tokenizer):
    made = GrammarCompiler(chatty, vocab_size=chatty.size)
    yield made
    made.close()


def child_of(grammars: GrammarCompiler) -> subprocess.Popen[bytes] | None:
    return grammars._tools[1]._process


@pytest.mark.parametrize("name", BOMBS)
def test_a_grammar_that_takes_too_long_is_refused_and_hurts_nobody(grammars, name):
    grammars.compile({"json_object": True})
    first = child_of(grammars)
    assert first is not None
    with pytest.raises(GrammarError, match="too complex"):
        grammars.compile({"json_schema": BOMBS[name]})
    assert first.returncode == -signal.SIGPROF, "it was waited for, and is no zombie"
    with pytest.raises(GrammarError, match="too complex"):
        grammars.compile({"json_schema": BOMBS[name]})
    assert child_of(grammars) is None, "a refusal is remembered: nothing was started for it"
    assert grammars.compile({"choice": ["yes"]}).forced()
    assert child_of(grammars) is not None


def walk(state: GrammarConstraint, mask: np.ndarray) -> None:
    for _ in range(5):
        state.fill_mask(mask)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if bits[0] == state._vocab_size:
            return
        state.accept(int(bits[0]))


def test_the_child_may_take_so_much_memory_and_no_more(grammars):
    grammars.compile({"json_object": True})
    process = child_of(grammars)
    assert process is not None
    limit, _ = resource.prlimit(process.pid, resource.RLIMIT_AS)
    assert child.MEMORY_BYTES < limit < 4 * child.MEMORY_BYTES


def test_hostile_grammars_are_survived(grammars):
    grammars.compile({"json_object": True})
    mask = np.zeros(grammars._vocab_size // 32 + 1, np.int32)
    for grammar in HOSTILE:
        with contextlib.suppress(GrammarError):
            walk(grammars.compile(grammar).fork(), mask)
    assert grammars.compile({"choice": ["yes"]})


def test_a_child_that_reads_nothing_is_given_up(grammars, monkeypatch):
    monkeypatch.setattr(trial, "SILENCE_S", 0.2)
    grammars.compile({"regex": "a"})
    process = child_of(grammars)
    process.send_signal(signal.SIGSTOP)
    long = {"regex": "|".join(f"word{i}" for i in range(20_000))}  # more than a pipe holds
    asked = Thread(target=pytest.raises, args=(GrammarError, grammars.compile, long), daemon=True)
    asked.start()
    asked.join(10)
    process.kill()
    assert not asked.is_alive()
    grammars.compile({"regex": "b"})


def test_a_child_that_does_not_begin_is_given_up(monkeypatch, tmp_path):
    program = tmp_path / "child.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(trial, "START_S", 0.2)
    monkeypatch.setattr(child, "__file__", str(program))
    large = child.Vocabulary([bytes(1000)] * 1000, {})
    asked = Thread(
        target=pytest.raises, args=(EngineError, trial.Trial(large).run, "start: /a/"), daemon=True
    )
    asked.start()
    asked.join(10)
    assert not asked.is_alive()


def test_a_grammar_is_compiled_once_however_many_ask(grammars):
    with ThreadPoolExecutor(64) as threads:
        good = [threads.submit(grammars.compile, {"regex": "[a-z]+"}) for _ in range(64)]
        bad = [threads.submit(grammars.compile, {"regex": "(("}) for _ in range(8)]
        assert len({id(each.result()) for each in good}) == 1
        assert all(isinstance(each.exception(), GrammarError) for each in bad)
        assert len({id(each.exception()) for each in bad}) == 8


def test_the_cache_is_bounded(grammars):
    first = grammars.compile({"choice": ["a"]})
    assert grammars.compile({"choice": ["a"]}) is first
    for i in range(compiler.MAX_CACHED):
        grammars.compile({"choice": [f"b{i}"]})
    assert len(grammars._cache) == compiler.MAX_CACHED
    assert grammars.compile({"choice": ["a"]}) is not first


def test_a_grammar_much_used_is_compiled_anew(grammars, chatty):
    first = grammars.compile({"regex": "[ab]+"})
    state, mask = first.fork(), np.zeros(chatty.size // 32 + 1, np.int32)
    for _ in range(constraint.MAX_MASKS + 1):
        state.accept(chatty.encode("a")[0])
        state.fill_mask(mask)
    assert grammars.compile({"regex": "[ab]+"}) is not first
    state.accept(chatty.encode("b")[0])  # who has it keeps it


def test_a_grammar_that_ran_into_a_limit_is_compiled_anew(grammars, chatty):
    first = grammars.compile({"regex": "[ab]+"})
    with pytest.raises(GrammarError, match="cannot be followed"):
        first.fork().accept(chatty.encode("c")[0])
    assert grammars.compile({"regex": "[ab]+"}) is not first


def test_closing_leaves_no_process(grammars):
    grammars.compile({"json_object": True})
    process = child_of(grammars)
    assert process is not None
    grammars.close()
    grammars.close()
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert grammars.compile({"choice": ["again"]}).forced()


def test_a_forgotten_compiler_leaves_no_process(chatty):
    grammars = GrammarCompiler(chatty, vocab_size=chatty.size)
    grammars.compile({"json_object": True})
    process = child_of(grammars)
    assert process is not None
    del grammars
    assert process.returncode is not None


def test_the_child_dies_with_its_parent():
    program = """
import sys
from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.tokenizers import TOKENIZERS
tokenizer = TOKENIZERS["tokenizer.json"](sys.argv[1])
grammars = GrammarCompiler(tokenizer, vocab_size=tokenizer.size)
grammars.compile({"json_object": True})
assert "torch" not in sys.modules
print(grammars._tools[1]._process.pid, flush=True)
sys.stdin.read()
"""
    golden = Path(__file__).resolve().parents[2] / "golden/tokenizers/byte_level/tokenizer.json"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(golden)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        gone, _, _ = select.select([watched], [], [], 30)
        os.close(watched)
    assert gone


def test_the_child_imports_nothing_of_ours():
    tree = ast.parse(Path(child.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"llguidance"}


def test_only_so_many_may_wait(grammars):
    gate, opened = os.pipe()
    waiting = [grammars.submit(lambda: os.read(gate, 1)) for _ in range(compiler.MAX_PENDING)]
    with pytest.raises(CapacityError, match="too many grammars"):
        grammars.submit(lambda: None)
    os.write(opened, b"x" * compiler.MAX_PENDING)
    assert [each.result() for each in waiting] == [b"x"] * compiler.MAX_PENDING
    assert grammars.submit(lambda: 3).result() == 3
    os.close(gate)
    os.close(opened)


def test_who_waits_when_it_is_closed_is_told(grammars):
    gate, opened = os.pipe()
    running = [grammars.submit(lambda: os.read(gate, 1)) for _ in range(2)]
    waiting = grammars.submit(lambda: None)
    grammars.close()
    os.write(opened, b"xx")
    assert [each.result() for each in running] == [b"x"] * 2
    with pytest.raises(EngineError, match="closed"):
        waiting.result()
    with pytest.raises(EngineError, match="closed"):
        grammars.submit(lambda: None)
    os.close(gate)
    os.close(opened)
