"""The laws of REASONING: however a reply is cut, its thinking is the same; nothing gets lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import UnknownNameError
from blazr.text.reasoning import REASONING, choose_reasoning
from blazr.text.splitter import Piece, Reasoning, merge
from tests.support.seeds import examples

NAMES = list(REASONING)
LOST = "ẞ"


def parse(name: str, *texts: str, is_inside: bool = False) -> tuple[str, str]:
    """Thinking and text."""
    stream = REASONING[name].splitter(is_inside=is_inside)
    pieces: list[Piece] = [piece for text in texts for piece in stream.push(text)]
    pieces = merge(pieces + stream.flush())
    thinking = "".join(each.text for each in pieces if isinstance(each, Reasoning))
    return thinking, "".join(each for each in pieces if isinstance(each, str))


def reply(name: str, thinking: str, text: str, *, begun: bool = False) -> str:
    row = REASONING[name]
    if name == "harmony":
        begin = "" if begun else row.begin
        return f"{begin}{thinking}<|end|><|start|>assistant<|channel|>final<|message|>{text}"
    return ("" if begun else row.begin + "\n") + thinking + "\n" + row.end + "\n\n" + text


THOUGHTS = [("Let me see:\n\n1 < 2.", "Yes."), ("", "Yes, <b>é</b> 😀\n"), ("only", "")]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_thinking_is_parted_from_the_answer_wherever_it_is_cut(name: str, begun: bool) -> None:
    for thinking, text in THOUGHTS:
        if name == "harmony" and begun:
            continue
        whole = reply(name, thinking, text, begun=begun)
        assert parse(name, whole, is_inside=begun) == (thinking, text)
        assert parse(name, *whole, is_inside=begun) == (thinking, text)
        for cut in range(len(whole)):
            assert parse(name, whole[:cut], whole[cut:], is_inside=begun) == (thinking, text)


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_without_thinking_passes_unchanged(name: str) -> None:
    row = REASONING[name]
    for text in ("", "Hello!\n", " \n x", "a < b, " + row.begin[:-1], row.begin[:2]):
        if text.startswith("a"):
            assert parse(name, *text)[1] == text
        assert parse(name, text) == ("", text)


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_never_ends_is_thinking(name: str) -> None:
    row = REASONING[name]
    assert parse(name, row.begin + "Hm " + row.end[:-1]) == ("Hm " + row.end[:-1], "")
    assert parse(name, row.begin) == ("", "") if name != "granite32" else True


@pytest.mark.parametrize("name", [name for name in NAMES if not REASONING[name].is_anywhere])
def test_what_is_said_of_the_marker_later_is_text(name: str) -> None:
    if name == "harmony":
        return
    text = f"The tag {REASONING[name].begin} begins it."
    assert parse(name, text) == ("", text)


@settings(deadline=None, max_examples=examples(50))
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_nothing_is_lost_and_nothing_fails_whatever_comes(name: str, data: st.DataObject) -> None:
    row = REASONING[name]
    marks = sorted({row.begin, row.end, *row.drops, *row.tokens, *row.markers} - {""})
    parts = st.lists(st.sampled_from([*marks, LOST, " ", "\n", "<", "a", row.end[:2]]), max_size=8)
    text, is_inside = "".join(data.draw(parts)), data.draw(st.booleans()) and name != "harmony"
    whole = parse(name, text, is_inside=is_inside)
    cut = data.draw(st.integers(0, len(text)))
    assert parse(name, text[:cut], text[cut:], is_inside=is_inside) == whole
    assert parse(name, *text, is_inside=is_inside) == whole
    assert "".join(whole).count(LOST) == text.count(LOST)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_may_have_begun_it(name: str) -> None:
    row = REASONING[name]
    assert row.has_begun(f"<|im_start|>assistant\n{row.begin}\n")
    assert not row.has_begun(f"<|im_start|>assistant\n{row.begin}\n{row.end}\n\n")
    assert not row.has_begun("What does " + row.begin + " mean?")


@pytest.mark.parametrize("name", NAMES)
def test_ending_it_by_force_ends_it(name: str) -> None:
    row = REASONING[name]
    assert parse(name, row.begin + "Hm" + row.force_end + "Yes.") == ("Hm", "Yes.")


@pytest.mark.parametrize("name", NAMES)
def test_its_name_or_its_signs_choose_it(name: str) -> None:
    row = REASONING[name]
    assert choose_reasoning("", "llama", name=name) is row
    assert choose_reasoning("{{ '" + "'}} {{'".join(row.signs) + "' }}", "llama") is row


def test_what_nothing_is_known_of_does_not_think() -> None:
    assert choose_reasoning("{{ messages }}", "llama") is None
    assert choose_reasoning("<think>", "llama", name="none") is None
    assert choose_reasoning("", "oxidizr") is REASONING["agent"]
    assert choose_reasoning("", "llama", {"<think>": 1, "</think>": 2}) is REASONING["think"]
    with pytest.raises(UnknownNameError, match="unknown reasoning format"):
        choose_reasoning("", "llama", name="thinks")
