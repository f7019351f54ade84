"""How much of an agent's prompts is read again: a trace of sessions, in token ids.

An agent works for ``TURNS`` turns. In each the user asks, the model thinks and calls a tool, reads
its result, thinks and answers. When the user speaks again, the thoughts before are dropped, as most
templates do. After some turns the user edits what they said three turns ago, and goes on from
there; after others a second conversation with the same instructions and tools does a task of its
own. What the model says is in the trace, so every request draws one token, and its time is that to
the first. `serving.py` runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from blazr.bench.load import Record
from blazr.bench.offline import EngineTarget
from blazr.bench.report import spread_of
from blazr.bench.workload import BenchRequest

# Tokens, but for the counts.
SYSTEM, TOOLS, TOOL = 1_200, 20, 120
QUESTION, THOUGHT, CALL, RESULT, ANSWER = 60, 180, 50, 350, 120
TURNS, TASK_TURNS = 30, 4
EDITS_AFTER, TASKS_AFTER = (9, 18, 25), (4, 11, 20, 27)


@dataclass(slots=True)
class Conversation:
    """Pieces of a chat, each token ids; thoughts are kept apart, because they are dropped.

    Args:
        instructions: What comes before the first message.
        chance: Where tokens come from.
        vocab_size: Ids are below it.
    """

    instructions: tuple[int, ...]
    chance: Random
    vocab_size: int
    messages: list[tuple[int, ...]] = field(default_factory=list)

    def words(self, count: int) -> tuple[int, ...]:
        """Random token ids."""
        return tuple(self.chance.randrange(100, self.vocab_size) for _ in range(count))

    def turn(self) -> Iterator[BenchRequest]:
        """The two requests of a turn, which is in the chat then, without its thoughts."""
        self.messages.append(self.words(QUESTION))
        yield self._request(())
        thought, call, result = self.words(THOUGHT), self.words(CALL), self.words(RESULT)
        yield self._request((thought, call, result))
        self.messages += [call, result, self.words(ANSWER)]

    def _request(self, latest: tuple[tuple[int, ...], ...]) -> BenchRequest:
        """A prompt with what the model has just said and read, and where the server is told that
        later ones part: after the instructions and each message, and where the latest begins."""
        pieces = [self.instructions, *self.messages]
        ends = np.cumsum([len(piece) for piece in [*pieces, *latest]]).tolist()
        prompt_ids = sum([*pieces, *latest], ())
        return BenchRequest(prompt_ids=prompt_ids, output_tokens=1, cache_anchors=tuple(ends))


def sessions(vocab_size: int, seed: int = 0, agents: int = 1) -> list[Iterator[BenchRequest]]:
    """The requests of each of some agents, which have the same tools."""
    tools = Conversation((), Random(seed), vocab_size).words(TOOLS * TOOL)
    return [_session(tools, Random(seed + 1 + number), vocab_size) for number in range(agents)]


def trace(vocab_size: int, seed: int = 0, agents: int = 1) -> Iterator[BenchRequest]:
    """The requests of agents, one after the other, the agents by turns."""
    for requests in zip(*sessions(vocab_size, seed, agents), strict=True):
        yield from requests


def _session(tools: tuple[int, ...], chance: Random, vocab_size: int) -> Iterator[BenchRequest]:
    main = Conversation(tools, chance, vocab_size)
    main.instructions += main.words(SYSTEM)
    for number in range(1, TURNS + 1):
        yield from main.turn()
        if number in TASKS_AFTER:
            other = Conversation(main.instructions, main.chance, vocab_size)
            for _ in range(TASK_TURNS):
                yield from other.turn()
        if number in EDITS_AFTER:
            del main.messages[-3 * 4 :]  # three turns of four messages


def known_tokens(prompt: np.ndarray, earlier: list[np.ndarray]) -> int:
    """Tokens with which an earlier prompt begins too."""
    longest = 0
    for other in earlier:
        size = min(len(prompt), len(other))
        different = np.flatnonzero(prompt[:size] != other[:size])
        longest = max(longest, int(different[0]) if len(different) else size)
    return longest


async def replay(target: EngineTarget, requests: Iterable[BenchRequest]) -> dict[str, object]:
    """Ask one after the other; the times to the first token, and what was read again.

    Those are the tokens that some earlier prompt began with too, and that were computed all the
    same.
    """
    earlier: list[np.ndarray] = []
    num_tokens = num_again = num_computed = 0
    times_ms = []
    for request in requests:
        record = Record(prompt_tokens=len(request.prompt_ids))
        started_s = asyncio.get_running_loop().time()
        await target.run(request, record, salt="")
        times_ms.append(1000 * (asyncio.get_running_loop().time() - started_s))
        prompt = np.array(request.prompt_ids)
        num_tokens += len(prompt)
        num_computed += len(prompt) - record.cached_tokens
        num_again += max(known_tokens(prompt, earlier) - record.cached_tokens, 0)
        earlier.append(prompt)
    return {
        "requests": len(earlier),
        "prompt_tokens": num_tokens,
        "computed_tokens": num_computed,
        "read_again_tokens": num_again,
        "read_again": num_again / num_tokens,
        "ttft_ms": spread_of(times_ms),
    }
