"""Small scans, and how text is cut into pieces around what they find."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.text.splitter import (
    MAX_HEADER,
    CallArguments,
    CallBegin,
    CutOffError,
    MalformedError,
    Piece,
    Reasoning,
    Scan,
    Sink,
    Splitter,
    literal,
    merge,
    one_of,
    optional,
    overlap,
    spaces,
    stream_until,
    until,
    word,
)
from tests.support.seeds import examples

pytestmark = pytest.mark.smoke


def scan(start: Callable[[str], Generator[None, str, object]], text: str) -> tuple[object, str]:
    """What a scan of a text returns, and what it has not looked at."""
    rest = [*text, ""]
    try:
        running = start(rest.pop(0))
        next(running)
        while True:
            running.send(rest.pop(0))
    except StopIteration as end:
        return end.value, "".join(rest)


def fails(start: Callable[[str], Generator[None, str, object]], text: str) -> type[Exception]:
    with pytest.raises(MalformedError) as caught:
        scan(start, text)
    return caught.type


# --- small scans


@given(space=st.text(" \t\r\n"), rest=st.text("ab\u00a0"))
def test_white_space_is_read_and_no_more(space: str, rest: str) -> None:
    assert scan(spaces, space + rest) == (rest[:1], rest[1:])


def test_a_text_is_read_whole_or_refused() -> None:
    assert scan(lambda c: literal(c, "abc"), "abcde") == ("d", "e")
    assert scan(lambda c: literal(c, "abc"), "abc") == ("", "")
    assert scan(lambda c: literal(c, ""), "abc") == ("a", "bc")
    assert fails(lambda c: literal(c, "abc"), "abx") is MalformedError
    assert fails(lambda c: literal(c, "abc"), "ab") is CutOffError
    assert fails(lambda c: literal(c, "abc"), "") is CutOffError


def test_a_text_may_be_missing_altogether() -> None:
    assert scan(lambda c: optional(c, "abc"), "abcd") == ("d", "")
    assert scan(lambda c: optional(c, "abc"), "xbc") == ("x", "bc")
    assert scan(lambda c: optional(c, ""), "x") == ("x", "")
    assert fails(lambda c: optional(c, "abc"), "abx") is MalformedError


def test_one_of_several_texts() -> None:
    def start(c: str) -> Generator[None, str, object]:
        return one_of(c, "to=", "tool", "x")

    assert scan(start, "to=a") == (("to=", "a"), "")
    assert scan(start, "tool") == (("tool", ""), "")
    assert scan(start, "xyz") == (("x", "y"), "z")
    assert fails(start, "tom") is MalformedError
    assert fails(start, "y") is MalformedError
    assert fails(start, "to") is CutOffError
    assert fails(start, "") is CutOffError


@pytest.mark.parametrize("read", [word, until])
def test_a_short_text_up_to_its_end(
    read: Callable[[str, str], Generator[None, str, object]],
) -> None:
    def start(c: str) -> Generator[None, str, object]:
        return read(c, "]]")

    assert scan(start, "ab]]cd") == (("ab", "c"), "d")
    assert scan(start, "ab]]") == (("ab", ""), "")
    assert fails(start, "ab") is CutOffError
    assert fails(start, "ab]") is CutOffError
    assert fails(start, "") is CutOffError
    longest = "x" * (MAX_HEADER - 2)
    assert scan(start, longest + "]]!") == ((longest, "!"), "")
    assert fails(start, "x" * (MAX_HEADER + 1) + "]]") is MalformedError


def test_a_word_holds_nothing_of_its_end_and_a_text_may() -> None:
    assert fails(lambda c: word(c, "]]"), "a]b]]") is MalformedError
    assert scan(lambda c: until(c, "]]"), "a]b]]c") == (("a]b", "c"), "")
    assert scan(lambda c: word(c, "]]"), "]]c") == (("", "c"), "")
    assert scan(lambda c: until(c, "]]"), "]]c") == (("", "c"), "")
    assert scan(lambda c: word(c, "]"), "x" * MAX_HEADER + "]") == (("x" * MAX_HEADER, ""), "")
    assert scan(lambda c: until(c, "]"), "x" * (MAX_HEADER - 1) + "]") == (
        ("x" * (MAX_HEADER - 1), ""),
        "",
    )


@given(text=st.text("ab \n</", max_size=40), most=st.integers(0, 3), ends=st.booleans())
def test_a_long_text_comes_without_its_end_and_the_space_around_it(
    text: str, most: int, ends: bool
) -> None:
    parts: list[str] = []
    ended = []

    def start(c: str) -> Generator[None, str, object]:
        return stream_until(
            c, ("</a>", "</b"), parts.append, trim=" \n", most=most, at_end=lambda: ended.append(1)
        )

    found, rest = scan(start, text + ("</a>x y" if ends else ""))
    assert isinstance(found, tuple)
    end, after = found
    whole = text + ("</a>x y" if ends else "")
    places = [(whole.find(each), each) for each in ("</a>", "</b") if each in whole]
    place, expected = min(places, default=(len(whole), ""))
    assert end == expected
    assert after + rest == whole[place + len(end) :]
    assert ended == [1] * bool(end)
    body = whole[:place]
    for _ in range(most):
        body = body[1:] if body[:1] in {" ", "\n"} else body
    given = "".join(parts)
    assert body.startswith(given)
    left_out = body[len(given) :]
    assert not left_out.strip(" \n")
    # space that comes in masses is text
    assert len(left_out) <= most or not end
    assert given == given.rstrip(" \n") or len(left_out) >= most or not end


def test_a_long_text_comes_as_soon_as_it_can() -> None:
    parts: list[str] = []
    running = stream_until("a", ("</a>",), parts.append, trim=" ")
    next(running)
    so_far = "a"
    for character, held in zip("b c </x", ("", " ", "", " ", " <", " </", ""), strict=True):
        running.send(character)
        so_far += character
        assert "".join(parts) + held == so_far
    running = stream_until("a", ("!",), parts.append)
    parts.clear()
    next(running)
    for character in "b  ":
        running.send(character)
    assert "".join(parts) == "ab  "


@given(text=st.text("ab<", max_size=8), marker=st.text("ab<", min_size=1, max_size=4))
def test_what_a_text_ends_with_of_a_marker(text: str, marker: str) -> None:
    expected = max(n for n in range(len(marker)) if text.endswith(marker[:n]))
    assert overlap(text, marker) == expected


def test_neighbours_of_a_kind_are_joined() -> None:
    pieces: list[Piece] = [
        "a", "b", Reasoning("c"), Reasoning("d"), "e", CallBegin("f"), CallBegin("g", "1"),
        CallArguments("{"), CallArguments("}"), Reasoning("h"),
    ]  # fmt: skip
    assert merge(pieces) == [
        "ab", Reasoning("cd"), "e", CallBegin("f"), CallBegin("g", "1"), CallArguments("{}"),
        Reasoning("h"),
    ]  # fmt: skip


# --- the splitter, with a format of its own: [name:arguments], or at the beginning {thoughts}


def format_scan(marker: str, sink: Sink) -> Scan:
    sink.is_thinking = marker in {"{", ""}
    c = yield
    if sink.is_thinking:
        _, c = yield from stream_until(c, ("}",), sink.reasoning, at_end=sink.stop_thinking)
        return c
    name, c = yield from word(c, ":")
    sink.begin(name, ahead=True)
    _, c = yield from stream_until(c, ("]",), sink.arguments, at_end=sink.consume)
    return c


def split(parts: Iterable[str], *, is_cut: bool = False, is_inside: bool = False) -> list[Piece]:
    marks = {"markers": ("[", "<<"), "starters": ("{", "{{")}
    splitter = Splitter(format_scan, is_inside=is_inside, **marks)
    pieces = [piece for part in parts for piece in splitter.push(part)]
    return merge(pieces + splitter.flush(is_cut=is_cut))


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[left:right] for left, right in pairwise(edges)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ["plain"]),
        (" a [f:1] b", [" a", CallBegin("f"), CallArguments("1"), "b"]),
        ("[f:1][g:2]", [CallBegin("f"), CallArguments("1"), CallBegin("g"), CallArguments("2")]),
        ("[f:] \n [g:]", [CallBegin("f"), CallBegin("g")]),
        (" {hm} a", [Reasoning("hm"), "a"]),
        ("a {hm}", ["a {hm}"]),
        ("{hm", [Reasoning("hm")]),
        ("[f:1", [CallBegin("f"), CallArguments("1")]),
        ("a [f", ["a [f"]),
        ("a [f]", ["a [f]"]),
        ("a < <", ["a < <"]),
        ("a <<f:1]", ["a", CallBegin("f"), CallArguments("1")]),
        ("  ", ["  "]),
        ("a" + " " * 70 + "[f:]", ["a" + " " * 6, CallBegin("f")]),
        ("[" + "x" * 600 + ":1]", ["[" + "x" * 600 + ":1]"]),
        ("[f:1]" + "y" * 2000, [CallBegin("f"), CallArguments("1"), "y" * 2000]),
    ],
)
def test_pieces_of_a_text(text: str, expected: list[Piece]) -> None:
    assert split([text]) == expected
    assert split(text) == expected


@given(
    text=st.text("ab:[]<{} \n", max_size=30),
    places=st.lists(st.integers(0, 100), max_size=8),
    is_cut=st.booleans(),
    is_inside=st.booleans(),
)
def test_any_cut_gives_the_same_pieces(
    text: str, places: list[int], is_cut: bool, is_inside: bool
) -> None:
    found = split(cut(text, places), is_cut=is_cut, is_inside=is_inside)
    assert found == split([text], is_cut=is_cut, is_inside=is_inside)


@given(text=st.text("ab:[]<{} ", max_size=30))
def test_nothing_is_lost_but_marks_and_space(text: str) -> None:
    def bare(written: str) -> str:
        return "".join(c for c in written if c in "ab")

    pieces = split([text])
    kept = [each.name if isinstance(each, CallBegin) else getattr(each, "text", each)
            for each in pieces]  # fmt: skip
    assert bare("".join(kept)) == bare(text)


def test_thoughts_may_begin_after_more_space_than_is_held_back() -> None:
    text = " " * 200 + "{hm} a"
    whole = split([text])
    assert whole[1:] == [Reasoning("hm"), "a"]
    assert split(text)[1:] == whole[1:]


def test_a_text_that_begins_inside() -> None:
    splitter = Splitter(format_scan, markers=("[",), is_inside=True)
    assert splitter.is_thinking
    assert not splitter.is_outside
    assert splitter.push("hm} a") == [Reasoning("hm"), "a"]
    assert not splitter.is_thinking
    assert splitter.is_outside
    assert split(["hm"], is_inside=True) == [Reasoning("hm")]
    assert split([""], is_inside=True) == []
    assert split(["} {x}"], is_inside=True) == ["{x}"]


def test_where_a_text_was_cut_a_mark_is_no_text() -> None:
    assert split(["a <"], is_cut=True) == ["a "]
    assert split(["a <"]) == ["a <"]
    assert split(["a ["], is_cut=True) == ["a"]
    assert split(["a [f"], is_cut=True) == ["a"]
    assert split(["a [f:"], is_cut=True) == ["a", CallBegin("f")]
    assert split([" {"], is_cut=True) == []


def test_text_is_held_back_only_while_it_may_be_a_mark() -> None:
    splitter = Splitter(format_scan, markers=("<<",), starters=("{{",))
    assert splitter.push(" {") == []
    assert splitter.push("a") == [" {a"]
    assert splitter.push(" b <") == [" b"]
    assert splitter.is_outside
    assert splitter.push("x") == [" <x"]
    assert splitter.push("<<f") == []
    assert not splitter.is_outside
    assert splitter.flush() == ["<<f"]


def test_a_sink_keeps_what_was_looked_at_and_not_consumed() -> None:
    sink = Sink()
    for ahead, kept in ((False, []), (True, ["c"])):
        held = [*"abc"]
        sink.text("x", ahead=ahead)
        sink.drop_consumed(held)
        assert held == kept
        held = [*"abc"]
        sink.drop_consumed(held)
        assert held == [*"abc"], "it was consumed once"
    sink.text("x", ahead=True)
    sink.consume()  # now it is read after all
    held = [*"abc"]
    sink.drop_consumed(held)
    assert held == []
    sink.consume()
    sink.consume(ahead=True)  # what was read stays read
    held = [*"abc"]
    sink.drop_consumed(held)
    assert held == []


def test_a_find_may_begin_with_the_character_looked_at() -> None:
    sink = Sink()
    held = [*"ab"]
    sink.reopen()
    sink.drop_consumed(held)
    assert (held, sink.has_begun, sink.has_found) == ([*"ab"], False, False)
    sink.begin("f")
    sink.drop_consumed(held)
    held = [*"cd"]
    sink.reopen()
    sink.drop_consumed(held)
    assert (held, sink.has_begun, sink.has_found) == (["d"], False, True)
    sink.is_thinking = True
    sink.restart()
    assert (sink.has_begun, sink.has_found, sink.is_thinking) == (False, False, False)


def test_time_does_not_grow_with_the_square_of_beginnings() -> None:
    """Each is read once, so many take no longer than others; a reply of this size ends."""
    text = "[f" * examples(40_000)
    assert split([text]) == [text]
