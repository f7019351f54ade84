"""Thinking ends when enough was thought, whatever the model would have written."""

from __future__ import annotations

import numpy as np
import pytest

from blazr.text.grammars.compiler import GrammarCompiler
from blazr.text.reasoning import REASONING, thinking_budget
from blazr.text.splitter import Reasoning, merge
from blazr.text.thinking_budget import ThinkingBudget
from blazr.text.tokenizer import Tokenizer

NAMES = list(REASONING)
WORDS = " one two three four five six"


def budget_of(tokenizer: Tokenizer, name: str = "think", **changes: object) -> ThinkingBudget:
    settings = {"budget": 4, "is_inside": True, "vocab_size": tokenizer.size, **changes}
    return ThinkingBudget(REASONING[name], tokenizer, **settings)


def allowed(constraint: ThinkingBudget, vocab_size: int) -> set[int]:
    mask = np.zeros(vocab_size // 32 + 1, np.int32)
    constraint.fill_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocab_size + 1]
    return set(np.flatnonzero(bits).tolist())


def write(constraint: ThinkingBudget, ids: list[int]) -> list[int]:
    """What the reply is when the model wants these ids, and is overruled where it must be."""
    written = []
    for wanted in ids:
        while forced := constraint.forced():
            assert allowed(constraint, constraint._vocab_size) == {forced[0]}
            constraint.accept(forced[0])
            written.append(forced[0])
        constraint.accept(wanted)
        written.append(wanted)
    return written


@pytest.mark.parametrize("name", NAMES)
def test_after_the_budget_comes_the_end(cl100k: Tokenizer, name: str) -> None:
    ids = cl100k.encode(WORDS)
    end = list(REASONING[name].end_ids(cl100k))
    found = write(budget_of(cl100k, name), ids)
    assert found == ids[:4] + end + ids[4:]
    # what reads the reply sees it as it was meant
    reader = REASONING[name].splitter()
    text = REASONING[name].begin + cl100k.decode(found, skip_special=False)
    pieces = merge([*reader.push(text), *reader.flush()])
    thought = "".join(each.text for each in pieces if isinstance(each, Reasoning))
    said = "".join(each for each in pieces if isinstance(each, str))
    assert (thought.strip(), said.strip()) == ("one two three four", "five six")


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_ends_in_time_is_left_alone(cl100k: Tokenizer, name: str) -> None:
    text = f"ok{REASONING[name].end}{WORDS}"
    ids = cl100k.encode(text)
    constraint = budget_of(cl100k, name, budget=len(ids) - len(cl100k.encode(WORDS)) + 1)
    assert write(constraint, ids) == ids
    assert len(allowed(constraint, cl100k.size)) == cl100k.size + 1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_forced_where_nothing_is_thought(cl100k: Tokenizer, name: str) -> None:
    ids = cl100k.encode(WORDS * 5)
    assert write(budget_of(cl100k, name, budget=0, is_inside=False), ids) == ids


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_the_reply_begins_is_bounded_too(cl100k: Tokenizer, name: str) -> None:
    begin = cl100k.encode("\n" + REASONING[name].begin + "\n")
    found = write(budget_of(cl100k, name, is_inside=False), begin + cl100k.encode(WORDS * 5))
    end = list(REASONING[name].end_ids(cl100k))
    assert cl100k.decode(end, skip_special=False) in cl100k.decode(found, skip_special=False)
    assert len(begin) < [found[i : i + len(end)] == end for i in range(len(found))].index(True)


def test_no_budget_is_no_thinking(cl100k: Tokenizer) -> None:
    constraint = budget_of(cl100k, budget=0)
    assert list(constraint.forced()) == cl100k.encode("\n</think>\n\n")
    assert not constraint.is_finished


def test_several_thoughts_share_the_budget(cl100k: Tokenizer) -> None:
    form = REASONING["agent"]
    thought = cl100k.encode(f"{form.begin} a b{form.end} c d e f g h", allow_special=True)
    constraint = budget_of(cl100k, "agent", is_inside=False, budget=4)
    assert write(constraint, thought) == thought
    again = write(constraint, cl100k.encode(f"{form.begin} a b c d", allow_special=True))
    text = cl100k.decode(again, skip_special=False)
    assert text.index(form.end) < text.index(" d")


def test_characters_are_not_cut(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("🦜🦜")  # several tokens each
    assert len(ids) > 3
    found = write(budget_of(cl100k, budget=len(ids) - 1), [*ids, *cl100k.encode("!")])
    assert cl100k.decode(found) == "🦜🦜\n</think>\n\n!"
    first = [i for i in range(256) if cl100k.token_bytes(i) == b"\xf0"]
    found = write(budget_of(cl100k, budget=1), first * 9)
    assert cl100k.decode(found).count("</think>") == 1, "bytes that are none hold nobody up"


def test_forks_go_their_own_ways(cl100k: Tokenizer) -> None:
    ids = cl100k.encode(WORDS)
    first = budget_of(cl100k)
    write(first, ids[:3])
    second = first.fork()
    assert write(first, ids[3:]) == write(second, ids[3:])


@pytest.fixture(scope="module")
def compiler(cl100k: Tokenizer):
    found = GrammarCompiler(cl100k, vocab_size=cl100k.size)
    yield found
    found.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_grammar_begins_after_the_forced_end(
    cl100k: Tokenizer, compiler: GrammarCompiler, name: str
) -> None:
    form = REASONING[name]
    inner = compiler.compile(
        {"choice": ["yes", "no"]}, after=form.end + form.link, header=form.header
    )
    constraint = budget_of(cl100k, name, inner=inner.fork())
    ids = cl100k.encode(WORDS)[:4]
    assert write(constraint, ids) == ids
    answer = []
    while not constraint.is_finished:
        token = (constraint.forced() or sorted(allowed(constraint, cl100k.size)))[0]
        constraint.accept(token)
        answer.append(token)
    text = cl100k.decode(answer, skip_special=False)
    assert text.startswith(form.force_end)
    assert text.removeprefix(form.force_end) in {"yes", "no"}


@pytest.mark.parametrize("name", NAMES)
def test_a_grammar_may_leave_thinking_out(
    cl100k: Tokenizer, compiler: GrammarCompiler, name: str
) -> None:
    form = REASONING[name]
    start = compiler.compile(
        {"choice": ["yes", "no"]},
        after=form.end + form.link,
        begin=form.begin.strip(),
        header=form.header,
    )

    def follows(text: str) -> bool:
        state = start.fork()
        ids = cl100k.encode(text, allow_special=True)
        return state._matcher.validate_tokens(ids) == len(ids)

    assert follows(f"{form.header}yes")
    assert follows(f"{form.begin}\nwell, no\n{form.end}{form.link}{form.header}yes")
    assert not follows(f"well{form.header}yes")
    assert not follows(f"{form.begin}\nwell{form.end}{form.link}{form.header}well")


def test_what_a_request_says_of_its_budget() -> None:
    knows, knows_not = "enable_thinking reasoning_effort", ""
    assert thinking_budget(knows, None) is None
    assert thinking_budget(knows, None, most=7) == 7
    off, low = {"enable_thinking": False}, {"reasoning_effort": "low"}
    assert thinking_budget(knows, off) is None, "the template sees to it"
    assert thinking_budget(knows_not, off) == 0
    assert thinking_budget(knows, low) is None
    assert thinking_budget(knows_not, low) == 1024
    assert thinking_budget(knows_not, low, most=7) == 7
    assert thinking_budget(knows_not, low, most=70_000) == 1024
    assert thinking_budget(knows_not, {"reasoning_effort": "high", "enable_thinking": True}) is None
    assert thinking_budget(knows_not, {"reasoning_effort": 3}) is None
