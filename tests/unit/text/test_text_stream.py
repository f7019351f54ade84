"""From token ids to events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.text.events import Event, Finished, TextDelta, TokenText
from blazr.text.stream import ReplyFormat, TextStream
from blazr.text.tokenizer import Tokenizer


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def ids_of(events: list[Event]) -> list[int]:
    return [each for event in events if isinstance(event, TextDelta) for each in event.token_ids]


def test_a_reply_is_the_fold_of_its_events(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("Grüße, 世界 😀!")
    stream = TextStream(cl100k, index=2)
    events = [event for token_id in ids for event in stream.push([token_id])]
    events += stream.finish("length")
    assert text_of(events) == "Grüße, 世界 😀!"
    assert ids_of(events) == ids
    assert events[-1] == Finished(2, "length", len(ids))
    assert all(event.index == 2 for event in events)


def test_tokens_without_text_are_still_told(cl100k: Tokenizer) -> None:
    first, second = cl100k.encode("😀")
    logprobs = (TokenText("\ufffd", first, b"", -0.5),)
    stream = TextStream(cl100k, index=0)
    assert stream.push([first], logprobs=logprobs) == [TextDelta(0, "", (first,), logprobs)]
    assert stream.push([second]) == [TextDelta(0, "😀", (second,))]
    assert stream.push([]) == []


def test_an_unfinished_character_comes_at_the_end(cl100k: Tokenizer) -> None:
    stream = TextStream(cl100k, index=0)
    assert text_of(stream.push(cl100k.encode("😀")[:1])) == ""
    assert stream.finish("length") == [TextDelta(0, "\ufffd"), Finished(0, "length", 1)]


def test_a_stop_string_ends_the_reply_and_drops_the_rest(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("one two three four")
    logprobs = tuple(TokenText("", token_id, b"", -1.0) for token_id in ids)
    stream = TextStream(cl100k, index=0, stop=("hree",))
    (event,) = stream.push(ids, logprobs=logprobs)
    assert event == TextDelta(0, "one two t", tuple(ids[:3]), logprobs[:3])
    assert stream.stopped == "hree"
    assert stream.push(ids) == []
    assert stream.finish("length") == [Finished(0, "stop", 3, stop="hree")]


def test_a_stop_string_may_be_kept(cl100k: Tokenizer) -> None:
    stream = TextStream(cl100k, index=0, stop=("two",), include_stop=True)
    events = stream.push(cl100k.encode("one two three")) + stream.finish("stop")
    assert text_of(events) == "one two"


@pytest.mark.parametrize("stop", [(), ("\nuse no other",)])
def test_the_mark_of_the_next_turn_ends_the_reply_unseen(
    cl100k: Tokenizer, stop: tuple[str, ...]
) -> None:
    reply_format = ReplyFormat(turn_marks=("\nuser:",))
    stream = TextStream(cl100k, index=0, stop=stop, include_stop=True, reply_format=reply_format)
    ids = cl100k.encode("Well.\nuser: Tell me more.")
    events = [event for token_id in ids for event in stream.push([token_id])]
    assert stream.has_ended
    assert stream.ended_by == "\nuser:"
    events += stream.finish("length")
    assert text_of(events) == "Well."
    assert events[-1] == Finished(0, "stop", len(ids_of(events)))


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("min_tokens", "text"),
    [(0, "one"), (1, "one"), (2, "one two one"), (3, "one two one"), (4, "one two one two")],
)
def test_no_stop_string_ends_before_min_tokens(
    cl100k: Tokenizer, size: int, min_tokens: int, text: str
) -> None:
    """However many tokens come at once, as they do with drafts."""
    ids = cl100k.encode("one two one two")
    stream = TextStream(cl100k, index=0, stop=(" two",), min_tokens=min_tokens)
    events = [x for at in range(0, 4, size) for x in stream.push(ids[at : at + size])]
    events += stream.finish("length")
    assert text_of(events) == text
    num_tokens = 2 if min_tokens < 2 else 4
    stop = " two" if min_tokens < 4 else None
    assert events[-1] == Finished(0, "stop" if stop else "length", num_tokens, stop=stop)


@pytest.mark.parametrize("size", [1, 9])
def test_no_mark_of_the_next_turn_ends_a_reply_before_min_tokens(
    cl100k: Tokenizer, size: int
) -> None:
    ids = cl100k.encode("a\nuser: b\nuser: c")
    reply_format = ReplyFormat(turn_marks=("\nuser:",))
    for min_tokens, text in ((3, "a"), (4, "a\nuser: b"), (len(ids), "a\nuser: b\nuser: c")):
        stream = TextStream(cl100k, index=0, min_tokens=min_tokens, reply_format=reply_format)
        parts = (ids[at : at + size] for at in range(0, len(ids), size))
        events = [each for part in parts for each in stream.push(part)]
        assert text_of([*events, *stream.finish("length")]) == text
        assert stream.num_tokens > min_tokens or stream.num_tokens == len(ids)


def test_a_stop_string_that_may_begin_the_next_turn_ends_where_it_is(cl100k: Tokenizer) -> None:
    """Its text is held back until the next token, which counts for no ``min_tokens``."""
    ids = cl100k.encode("a\nb\nc")
    reply_format = ReplyFormat(turn_marks=("\nuser:",))
    stream = TextStream(cl100k, index=0, stop=("\n",), min_tokens=2, reply_format=reply_format)
    events = [each for token_id in ids for each in stream.push([token_id])]
    assert text_of([*events, *stream.finish("length")]) == "a\nb"


def test_no_stop_string_ends_with_half_a_character_before_min_tokens(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("😀")[:1]
    for min_tokens, text in ((0, ""), (1, "\ufffd")):
        stream = TextStream(cl100k, index=0, stop=("\ufffd",), min_tokens=min_tokens)
        assert text_of([*stream.push(ids), *stream.finish("length")]) == text


def test_text_held_for_a_stop_string_comes_at_the_end(cl100k: Tokenizer) -> None:
    stream = TextStream(cl100k, index=0, stop=("two and more",))
    assert text_of(stream.push(cl100k.encode("one two"))) == "one "
    assert not stream.stopped
    assert stream.finish("length")[0] == TextDelta(0, "two")


def test_special_tokens_are_left_out_unless_wanted(cl100k: Tokenizer) -> None:
    ids = [*cl100k.encode("hi"), cl100k.special_ids["<|user|>"]]
    assert text_of(TextStream(cl100k, index=0).push(ids)) == "hi"
    assert text_of(TextStream(cl100k, index=0, skip_special=False).push(ids)) == "hi<|user|>"


def test_the_leading_space_is_part_of_a_reply_to_text(stories: Tokenizer) -> None:
    begin, rest = stories.encode("Once upon")[:2], stories.encode("Once upon a time")[2:]
    assert stories.bos_id is not None
    after_text = TextStream(stories, index=0, prompt_ids=[stories.bos_id, *begin])
    after_nothing = TextStream(stories, index=0, prompt_ids=[stories.bos_id])
    whole = stories.decode([*begin, *rest])
    assert stories.decode(begin) + text_of(after_text.push(rest)) == whole
    assert text_of(after_nothing.push(stories.encode("Once"))) == "Once"


@settings(deadline=None)
@given(
    text=st.text("aé😀 b\n", max_size=30),
    stop=st.lists(st.text("aé😀 b\n", min_size=1, max_size=3), max_size=3),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=40),
)
def test_steps_of_any_size_give_the_same_text(
    cl100k: Tokenizer, text: str, stop: list[str], sizes: list[int]
) -> None:
    tokenizer = cl100k
    ids = tokenizer.encode(text)
    at_once = TextStream(tokenizer, index=0, stop=stop)
    whole = at_once.push(ids) + at_once.finish("length")
    stream = TextStream(tokenizer, index=0, stop=stop)
    events: list[Event] = []
    rest = list(ids)
    while rest:
        for size in sizes:
            events += stream.push(rest[:size])
            rest = rest[size:]
    events += stream.finish("length")
    assert text_of(events) == text_of(whole)
    assert events[-1] == whole[-1]
    assert ids_of(events) == ids_of(whole)
    earliest = min((text.find(each) for each in stop if each in text), default=len(text))
    assert text_of(whole) == text[:earliest]
