"""Texts that may not come do not come, and repetitions are broken off, on the built-in model."""

from __future__ import annotations

from blazr import LLM, SamplingParams

STORY = "Once upon a time, there was a little girl named Lily. She"
GREEDY = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}


def longest_repetition(text: str) -> int:
    """Characters of the longest part that comes twice."""
    return max(
        size
        for size in range(len(text) // 2)
        if any(text[at : at + size] in text[at + 1 :] for at in range(len(text) - size))
    )


def test_bad_words_do_not_come_and_repetitions_end() -> None:
    with LLM(spec="ngram") as llm:

        def text(**more: object) -> str:
            return llm.generate([STORY], SamplingParams(**GREEDY, **more))[0].text

        plain = text()
        common = max(set(plain.split()), key=lambda word: (plain.split().count(word), word))
        assert plain.split().count(common) > 2
        banned = text(bad_words=[common])
        assert common not in banned.split()
        assert banned != plain
        assert longest_repetition(plain) > 15
        broken = text(dry_multiplier=4.0, dry_sequence_breakers=["|"])
        assert longest_repetition(broken) < longest_repetition(plain)
        params = SamplingParams(**GREEDY, allowed_token_ids=[300, 301])
        assert set(llm.generate([STORY], params)[0].token_ids) <= {300, 301}
