"""What followed the last tokens in other replies is proposed."""

from __future__ import annotations

from random import Random

import pytest

from blazr.engine.sequence import Sequence
from blazr.engine.speculation import suffix
from blazr.engine.speculation.suffix import LEAST_MATCH, SuffixDrafter
from tests.support.drafts import running_sequence

pytestmark = pytest.mark.smoke
STORY = list(range(100, 120))


def end(drafter: SuffixDrafter, reply: list[int], salt: str = "") -> None:
    """Let a sequence have this reply and finish."""
    sequence = running_sequence([0] * len(reply) + reply, cache_salt=salt)
    drafter.propose(sequence, 4)
    drafter.forget(sequence)


def proposed(drafter: SuffixDrafter, sequence: Sequence, most: int = 4) -> tuple[int, ...] | None:
    draft = drafter.propose(sequence, most)
    return None if draft is None else draft.token_ids


def test_what_followed_in_another_reply_is_proposed() -> None:
    drafter = SuffixDrafter()
    end(drafter, STORY)
    assert proposed(drafter, running_sequence([7, *STORY[:6]])) == tuple(STORY[6:10])
    assert proposed(drafter, running_sequence([7, *STORY[:18]])) == tuple(STORY[18:])
    for known in (STORY, STORY[: LEAST_MATCH - 1], []):
        assert proposed(drafter, running_sequence([7, *known])) is None


def test_a_reply_is_followed_and_left_where_it_parts() -> None:
    drafter = SuffixDrafter()
    end(drafter, STORY)
    end(drafter, [*STORY[:10], *range(50, 60)])
    sequence = running_sequence([*STORY[:8]])
    assert proposed(drafter, sequence) == (*STORY[8:10], 50, 51)  # the latest of equals
    sequence.tokens.extend(STORY[8:11])
    assert proposed(drafter, sequence) == tuple(STORY[11:15])
    sequence.tokens.append(3)
    assert proposed(drafter, sequence) is None
    assert proposed(drafter, sequence) is None  # nor where no token has come since


def test_the_text_itself_counts_where_as_much_is_the_same() -> None:
    drafter = SuffixDrafter()
    end(drafter, STORY)
    own = [*STORY[:5], 9, 9]
    assert proposed(drafter, running_sequence([*own, *STORY[:5]]), 1) == (9,)
    assert proposed(drafter, running_sequence([*own[1:], *STORY[:5]]), 1) == (STORY[5],)
    assert proposed(SuffixDrafter(), running_sequence([*own, *STORY[:5]]), 1) == (9,)


def test_replies_of_another_salt_are_not_seen() -> None:
    drafter = SuffixDrafter()
    end(drafter, STORY, "mine")
    assert proposed(drafter, running_sequence(STORY[:6])) is None
    assert proposed(drafter, running_sequence(STORY[:6], cache_salt="mine")) is not None


def test_the_oldest_is_forgotten_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 50)
    drafter = SuffixDrafter()
    stories = [[100 * number + place for place in range(20)] for number in range(1, 5)]
    for story in stories:
        end(drafter, story)
        end(drafter, [5, 6, 7])  # too short to be remembered
    found = [proposed(drafter, running_sequence(story[:6])) for story in stories]
    assert found == [None, None, tuple(stories[2][6:10]), tuple(stories[3][6:10])]
    assert len(drafter._replies._last) == 2 * (20 - LEAST_MATCH)


def test_prompts_are_not_remembered() -> None:
    drafter = SuffixDrafter()
    sequence = running_sequence(STORY)  # the first half of it is the prompt
    drafter.propose(sequence, 4)
    drafter.forget(sequence)
    assert proposed(drafter, running_sequence(STORY[:6])) is None
    assert proposed(drafter, running_sequence(STORY[10:16])) == tuple(STORY[16:])


def test_what_is_followed_is_where_the_last_tokens_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 300)
    rng = Random(3)
    drafter, known, num_found = SuffixDrafter(), [], 0
    for _ in range(60):
        sequence = running_sequence([1, 2])
        for _ in range(20):
            sequence.tokens.extend(rng.randrange(3) for _ in range(rng.randint(0, 3)))
            if rng.random() < 0.1 and len(sequence.tokens) > 6:  # as a context shift does
                del sequence.tokens[2:4]
                sequence.num_dropped += 2
                sequence.num_prompt_left = 1
            draft = drafter.propose(sequence, 3)
            if draft is not None and draft.kind.startswith("suffix"):
                num_found += 1
                wanted = [*sequence.tokens[-LEAST_MATCH:], *draft.token_ids]
                texts = [
                    reply[at : at + len(wanted)] for reply in known for at in range(len(reply))
                ]
                assert wanted in texts
        drafter.forget(sequence)
        known.append(sequence.tokens[sequence.num_prompt_left :].tolist())
    assert num_found > 100


def test_of_a_long_reply_the_end_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "LONGEST_REPLY", 10)
    drafter = SuffixDrafter()
    end(drafter, STORY)
    assert proposed(drafter, running_sequence(STORY[:6])) is None
    assert proposed(drafter, running_sequence(STORY[10:16])) == tuple(STORY[16:])


def test_any_salt_will_do() -> None:
    drafter = SuffixDrafter()
    end(drafter, STORY, "\ud800")
    assert proposed(drafter, running_sequence(STORY[:6], cache_salt="\ud800")) is not None
