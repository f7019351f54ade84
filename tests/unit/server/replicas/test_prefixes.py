"""What is known of a prompt, by the bytes of its body."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from blazr.server.config import ServerConfig
from blazr.server.replicas.front import Front
from blazr.server.replicas.pool import Pool
from blazr.server.replicas.prefixes import BLOCK_BYTES, SentPrefixes, block_names
from blazr.server.routes import ROUTES


def chat(*turns: str, **more: object) -> Mapping[str, object]:
    messages = [{"role": "user", "content": turn} for turn in turns]
    return {"model": "m", "messages": messages, **more}


def shared(first: Mapping[str, object], second: Mapping[str, object], *tenants: str) -> int:
    """Blocks that a replica that was sent the first knows of the second."""
    one, other = tenants or ("", "")
    sent = SentPrefixes()
    sent.add(block_names(one, first))
    return sent.match(block_names(other, second))


def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter() -> None:
    before, after = chat("a" * 2000), chat("a" * 2000, "b" * 2000)
    assert shared(before, after) >= 2000 // BLOCK_BYTES
    assert shared(before, after) < len(block_names("", after))


def test_tools_come_before_messages_wherever_they_stand_in_the_body() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 1000}}]
    first = {"tools": tools, **chat("a" * 1000)}
    second = {**chat("b" * 1000), "tools": tools}
    assert shared(first, second) >= 1000 // BLOCK_BYTES


def test_what_is_sampled_differently_is_the_same_prompt() -> None:
    first, second = chat("a" * 1000, temperature=0.1), chat("a" * 1000, max_tokens=3)
    assert shared(first, second) == len(block_names("", second))


@pytest.mark.parametrize(
    "field", ["prompt", "input", "inputs", "text", "content", "input_ids", "input_prefix"]
)
def test_a_prompt_is_looked_at_whatever_its_dialect_calls_it(field: str) -> None:
    given: list[object] = ["a" * 2000, "b" * 2000]
    if field == "input_ids":
        given = [[11] * 1000, [12] * 1000]
    first, second = ({field: each} for each in given)
    assert shared(first, first) >= 2000 // BLOCK_BYTES
    assert shared(first, second) == 0


@pytest.mark.parametrize("change", [{"model": "n"}, {"adapter": "x"}, {"cache_salt": "s"}])
def test_nothing_is_shared_across(change: dict[str, object]) -> None:
    assert shared(chat("a" * 1000), {**chat("a" * 1000), **change}) == 0


def test_keys_share_nothing() -> None:
    assert shared(chat("a" * 1000), chat("a" * 1000), "one", "other") == 0


def test_a_record_forgets_the_oldest_prompt_first_and_its_end_before_its_beginning() -> None:
    sent = SentPrefixes()
    old, new = block_names("", chat("a" * 4000)), block_names("", chat("b" * 4000))
    sent.most_blocks = len(old) + 3
    sent.add(old)
    sent.add(new)
    assert sent.match(new) == len(new)
    assert sent.match(old) == sent.most_blocks - len(new)


def test_a_body_of_any_depth_is_looked_at_or_left_to_the_replica() -> None:
    """What is just shallow enough to be decoded may be too deep to be written down again."""
    pool = Pool((), ServerConfig(replicas=2))
    try:
        front = Front(pool, ROUTES["POST /v1/completions"])
        found = [
            front._look({}, b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}")
            for depth in (*range(1, 1100), 1_000_000)
        ]
    finally:
        pool.close()
    assert all(number is None for _, number in found)
    assert found[1][0]
    assert not found[-1][0]
