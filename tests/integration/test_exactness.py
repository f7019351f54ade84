"""The same bits for a request, whatever else runs, however its prompt is cut, on any threads.

Each prompt is first answered alone, read whole, on one thread, every step computed. Then it is
answered among others. Tokens and the logits that they were chosen from must be equal.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product

import pytest
import torch
from torch import Tensor

from blazr.engine.replay import Size
from blazr.nn.kernels.cpu import compiled
from tests.support.kinds import KINDS, STORED
from tests.support.networks import CONTEXT, VOCAB, Lab

BATCHES, CHUNKS, THREADS = (1, 2, 3, 7, 16, 33), (1, 7, 64, 300), (1, 2, 4)
LONGEST = {1: 70, 7: 140, 64: 150, 300: 310}  # tokens of the longest prompt, by chunk

pytestmark = [
    pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled"),
    pytest.mark.usefixtures("kernels_as_before"),
]


def prompts_of(batch: int, chunk: int) -> list[tuple[int, ...]]:
    """One is long; it comes among the others."""
    lengths = [1 + 7 * index % 23 for index in range(batch)]
    lengths[batch // 2] = LONGEST[chunk]
    return [
        tuple((11 * place + 5 * index + place * place % 7) % VOCAB for place in range(length))
        for index, length in enumerate(lengths)
    ]


class Network:
    """A network, and what it answers to each prompt alone."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        self.lab_of = partial(Lab, KINDS[kind](dtype), prefix_cache=False, **STORED.get(kind, {}))
        self.alone = cache(self._alone)

    def _alone(self, prompt: tuple[int, ...], length: int) -> tuple[list[int], Tensor]:
        torch.set_num_threads(1)
        lab = self.lab_of(max_running=1, budget=CONTEXT, replay=False)
        asked = lab.ask(prompt, max_tokens=length)
        lab.run()
        return lab.answer(asked)

    def check(self, batch: int, chunk: int, threads: int, *, replay: bool) -> bool:
        """Ask all together, for the answers given alone; says whether steps were recorded."""
        prompts = prompts_of(batch, chunk)
        lengths = [8 + index % 5 for index in range(batch)]
        expected = list(map(self.alone, prompts, lengths))
        torch.set_num_threads(threads)
        lab = self.lab_of(
            max_running=batch, tokens=512 + 64 * batch, budget=chunk + batch, replay=replay
        )
        asked = [
            lab.ask(prompt, max_tokens=length)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        while lab.engine.has_work():
            lab.step(prefill_budget=chunk)
        for request, (tokens, logits) in zip(asked, expected, strict=True):
            got, scores = lab.answer(request)
            where = batch, chunk, threads, replay, request
            assert got == tokens, where
            assert torch.equal(scores, logits), where
        replays = lab.runner.replays
        return replays is not None and any(
            replays.num_python(Size(n, n)) is not None for n in range(1, 34)
        )


# One of each in turn: the whole product takes six minutes.
_SOME = list(
    zip((2, 7, 3, 16), (64, 1, 300, 7), (2, 1, 4, 1), (True, False, True, True), strict=True)
)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kind", "case"), [(k, _SOME[i % 4]) for i, k in enumerate(KINDS)], ids=str
)
def test_some_of_the_product(kind: str, case: tuple[int, int, int, bool]) -> None:
    *sizes, replay = case
    Network(kind, torch.float32).check(*sizes, replay=replay)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_product(kind: str) -> None:
    network = Network(kind, torch.bfloat16)
    recorded = [
        network.check(batch, chunk, threads, replay=replay)
        for batch, chunk, threads, replay in product(BATCHES, CHUNKS, THREADS, (False, True))
    ]
    assert sum(recorded) > 30
