"""The circumstances under which a network must give the same reply, and what it gives in each.

Each prompt is first answered alone: by a fresh engine, read whole, on one thread, every step
computed. Under each circumstance its tokens, and every logit that they were chosen from, must be
those bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.nn.operands.step import GRID
from tests.support.drafts import GuessingDrafter
from tests.support.networks import CONTEXT, VOCAB, Lab

Prompt = tuple[int, ...]
Answer = tuple[list[int], Tensor]
OTHERS, CHUNKS, THREADS = (1, 7, 31), (1, 17, 64, 300), (2, 4)
_BATCH = 8


@dataclass
class Trial:
    """A network, and prompts that a seed draws.

    Args:
        model: The network.
        seed: What prompts and circumstances are drawn by.
        folder: Empty; for prefixes on disk.
        stored: What keys, values, latents and states are stored in.
    """

    model: CausalLM
    seed: int
    folder: Path
    stored: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        shared = self._tokens(130)
        beginnings = [shared[: self.rng.choice([0, 0, GRID, 100, 128])] for _ in range(32)]
        # The first ones are long enough to be cached.
        lengths = [GRID + self.rng.randint(1, 90) for _ in range(_BATCH // 2)]
        lengths += [self.rng.randint(1, 60) for _ in range(32 - len(lengths))]
        self.prompts = [
            begin + self._tokens(length) for begin, length in zip(beginnings, lengths, strict=True)
        ]
        self.max_tokens = [self.rng.randint(4, 12) for _ in self.prompts]
        self.alone = [self._alone(number) for number in range(len(self.prompts))]

    def lab(self, **options: object) -> Lab:
        """An engine over the network; its prefix cache is off unless it is asked for."""
        return Lab(self.model, **{"prefix_cache": False, **self.stored, **options})  # type: ignore[arg-type]

    def ask(self, lab: Lab, numbers: Sequence[int], **params: object) -> list[tuple[int, int]]:
        """Queue these prompts: their numbers, with the ids of the requests."""
        return [
            (
                number,
                lab.ask(self.prompts[number], max_tokens=self.max_tokens[number], **params),  # type: ignore[arg-type]
            )
            for number in numbers
        ]

    def some(self, count: int = _BATCH) -> list[int]:
        """Numbers of prompts, in any order, long ones among them."""
        return self.rng.sample(range(max(count, _BATCH)), count)

    def following(self, history: Sequence[int]) -> int:
        """What the reply to a prompt goes on with; 0 where the text begins no such reply."""
        for prompt, (tokens, _) in zip(self.prompts, self.alone, strict=True):
            whole = [*prompt, *tokens]
            if len(history) < len(whole) and whole[: len(history)] == list(history):
                return whole[len(history)]
        return 0

    def _tokens(self, count: int) -> Prompt:
        return tuple(self.rng.choices(range(VOCAB), k=count))

    def _alone(self, number: int) -> Answer:
        torch.set_num_threads(1)
        lab = self.lab(max_running=1, budget=CONTEXT, replay=False)
        [(_, request)] = self.ask(lab, [number])
        lab.run()
        return lab.answer(request)


Answers = Iterator[tuple[int, Answer]]  # by the prompt's number


def _collect(lab: Lab, asked: Sequence[tuple[int, int]], replies: int = 1) -> Answers:
    for number, request in asked:
        for index in range(replies):
            yield number, lab.answer(request, index)


def _alone_again(trial: Trial) -> Answers:
    lab = trial.lab(max_running=1)
    asked = trial.ask(lab, trial.some())
    lab.run()
    yield from _collect(lab, asked)


def _with_others(others: int, trial: Trial) -> Answers:
    lab = trial.lab(max_running=others + 1, budget=512)
    asked = trial.ask(lab, trial.some(others + 1))
    lab.run()
    yield from _collect(lab, asked)


def _in_chunks(size: int, trial: Trial) -> Answers:
    lab = trial.lab(budget=size + _BATCH)
    asked = trial.ask(lab, trial.some())
    while lab.engine.has_work():
        lab.step(prefill_budget=size)
    yield from _collect(lab, asked)


def _from_cache(trial: Trial) -> Answers:
    lab = trial.lab(prefix_cache=True)
    for numbers in (trial.some(), trial.some()):
        asked = trial.ask(lab, numbers)
        lab.run()
    assert any(lab.cached[request] for _, request in asked), "no prefix was reused"
    yield from _collect(lab, asked)


def _from_disk(trial: Trial) -> Answers:
    for numbers in (trial.some(), trial.some()):
        lab = trial.lab(prefix_cache=True, cache_dir=trial.folder)
        asked = trial.ask(lab, numbers)
        lab.run()
        lab.engine.close()
    assert any(lab.cached[request] for _, request in asked), "no prefix was read"
    yield from _collect(lab, asked)


def _preempted(trial: Trial) -> Answers:
    lab = trial.lab(prefix_cache=trial.rng.random() < 0.5, budget=70)
    asked = trial.ask(lab, trial.some())
    for step in range(10_000):
        if not lab.engine.has_work():
            break
        lab.step()
        running = lab.scheduler.running
        if running and step < 60 and trial.rng.random() < 0.5:
            lab.scheduler.preempt(trial.rng.choice(running))
    assert lab.scheduler.counts.preempted, "nothing was preempted"
    yield from _collect(lab, asked)


def _in_another_slot(trial: Trial) -> Answers:
    """Strangers run first, and leave at any time, so that slots and pages are used again."""
    lab = trial.lab(max_running=12)
    strangers = [lab.ask(trial.prompts[number], max_tokens=60) for number in range(12, 20)]
    for _ in range(3):
        lab.step()
    asked = trial.ask(lab, trial.some())
    while lab.engine.has_work():
        lab.step()
        if strangers and trial.rng.random() < 0.5:
            lab.take(lab.engine.abort(strangers.pop()))
    yield from _collect(lab, asked)


def _on_threads(count: int, trial: Trial) -> Answers:
    torch.set_num_threads(count)
    lab = trial.lab()
    asked = trial.ask(lab, trial.some())
    lab.run()
    yield from _collect(lab, asked)


def _forked(trial: Trial) -> Answers:
    lab = trial.lab(max_running=12)
    asked = trial.ask(lab, trial.some(), n=3)
    lab.run()
    yield from _collect(lab, asked, replies=3)


def _with_drafts(right: float, trial: Trial) -> Answers:
    drafter = GuessingDrafter(trial.following, VOCAB, right)
    lab = trial.lab(prefix_cache=True, drafter=drafter)
    asked = trial.ask(lab, trial.some())
    lab.run()
    assert lab.scheduler.counts.drafts, "nothing was drafted"
    yield from _collect(lab, asked)


CIRCUMSTANCES: dict[str, Callable[[Trial], Answers]] = {
    "alone, recorded": _alone_again,
    **{f"with {count} others": partial(_with_others, count) for count in OTHERS},
    **{f"in chunks of {size}": partial(_in_chunks, size) for size in CHUNKS},
    "from the cache": _from_cache,
    "from disk": _from_disk,
    "preempted": _preempted,
    "in another slot": _in_another_slot,
    **{f"on {count} threads": partial(_on_threads, count) for count in THREADS},
    "forked": _forked,
    "with drafts": partial(_with_drafts, 0.5),
}


def differences(trial: Trial, circumstance: str) -> tuple[int, int]:
    """Replies that differ from those given alone, and how many were compared.

    A reply differs where a token does, or one bit of the logits that tokens were chosen from.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcomes = [
            tokens == trial.alone[number][0] and torch.equal(logits, trial.alone[number][1])
            for number, (tokens, logits) in CIRCUMSTANCES[circumstance](trial)
        ]
    finally:
        torch.set_num_threads(threads)
    return outcomes.count(False), len(outcomes)
