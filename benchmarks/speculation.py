"""What speculation gains: the same replies with and without it, by turns.

Each text is continued by one stream. Three engines take turns in one process, so that all meet the
same machine: one without drafts, one with them, and another without. A gain is the median of its
rounds', against the mean of the two without. Where these lie in memory alone makes them differ by
some percent: the last column is their ratio, and no smaller gain or loss is one. The first rounds,
in which steps are recorded, do not count.

Small models say neither code nor JSON. So these are also dictated: steps compute all that they do
otherwise, but what is drawn is the next token of a text.

Run: python -m benchmarks.speculation [MODEL] [--spec ngram] [--rounds 15]

OMP_NUM_THREADS chooses the number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

from blazr import LLM, SamplingParams
from blazr.engine.sampling.sampler import Draws, Sampled
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.llm.generation import PromptInput
from blazr.llm.results import Completion, Usage

WARM_UP = 2  # rounds


def code(fields: Sequence[str] = ("name", "size", "age")) -> str:
    """A class of getters and setters, as generated code is."""
    return "class Box:\n" + "".join(
        f"    def get_{each}(self):\n        return self.{each}\n\n"
        f"    def set_{each}(self, {each}):\n        self.{each} = {each}\n\n"
        for each in fields
    )


def rows(names: Sequence[str] = ("Tom", "Lily", "Ben", "Mia", "Sam")) -> str:
    """JSON objects of the same keys."""
    likes = ["the park", "a ball", "cats", "books"]
    objects = [
        {"name": name, "age": 3 + index % 5, "likes": likes[index * index % 4]}
        for index, name in enumerate(names)
    ]
    return "[\n" + ",\n".join(map(json.dumps, objects)) + ",\n"


def quotes(names: Sequence[str] = ("Lily",)) -> str:
    """A story about each."""
    return "".join(
        f"Once upon a time, there was a little girl named {name}. She had a red ball. One day, "
        f"{name} went to the park with her mom. She saw a big dog. The dog took the red ball and "
        f"ran away. {name} was sad. Then the dog came back and gave her the ball. {name} was happy "
        "again. "
        for name in names
    )


def noise() -> str:
    """Words in no order."""
    words = "cat house run blue tree seven walk moon sugar under train paper light cold wind"
    return " ".join(random.Random(5).choices(words.split(), k=40))


def another(number: int) -> str:
    """The beginning of a story, another for each number below 1000."""
    names = ["Lily", "Tom", "Mia", "Ben", "Sue", "Tim", "Anna", "Max", "Lucy", "Sam"]
    who = ["girl", "boy", "dog", "cat", "bird", "bear", "frog", "duck", "fish", "mouse"]
    how = ["little", "happy", "sad", "kind", "brave", "funny", "shy", "clever", "hungry", "lazy"]
    kind, rest = how[number % 10], number // 10
    return f"There was a {kind} {who[rest % 10]} named {names[rest // 10]}. One day,"


TEXTS: dict[str, Callable[[int], str]] = {
    "code": lambda _: code() + "    def get_",
    "JSON": lambda _: rows() + '{"name": "',
    "quotes": lambda _: quotes() + "The end. Once upon a time, there was a little",
    "random words": lambda _: noise(),
    "another story each time": another,
}
FIELDS = ["width", "height", "color", "label", "price", "count", "owner", "title"]
NAMES = ["Tom", "Lily", "Ben", "Mia", "Sam", "Sue", "Tim", "Anna", "Max", "Lucy", "Sara", "Jack"]
# What is dictated, behind which beginning.
DICTATED = {
    "code": ("class", code(FIELDS).removeprefix("class")),
    "JSON": ("[", rows(NAMES).removeprefix("[")),
    "quotes": (quotes(NAMES[:2]), quotes(NAMES[:2])),
}


def reply(
    engine: LLM, prompt: PromptInput, params: SamplingParams
) -> tuple[tuple[int, ...], float, Usage]:
    """Tokens, how many came in a second once the first was there, and what they cost."""
    first_s = timed(engine, prompt, replace(params, max_tokens=1))[1]
    completion, seconds = timed(engine, prompt, params)
    speed = (len(completion.token_ids) - 1) / (seconds - first_s)
    return completion.token_ids, speed, completion.usage


def timed(engine: LLM, prompt: PromptInput, params: SamplingParams) -> tuple[Completion, float]:
    """A reply, and how many seconds it took."""
    started = time.perf_counter()
    (completion,) = engine.generate([prompt], params)
    return completion, time.perf_counter() - started


def dictating(ids: Sequence[int]) -> AbstractContextManager[object]:
    """While this is entered, replies are these tokens."""

    def draw(draws: Draws, rows: Sequence[tuple[int, RunningSequence]]) -> list[Sampled]:
        ((place, sequence),) = rows
        draws._tokens = [-1] * place + list(ids[sequence.num_output :])  # drafts are kept by these
        return [Sampled(draws._tokens[place])]

    return patch.object(Draws, "draw", draw)


def always(prompt: PromptInput) -> Callable[[int], PromptInput]:
    """The same prompt in every round."""
    return lambda _: prompt


def compare(
    engines: list[LLM],
    prompt: Callable[[int], PromptInput],
    *,
    temperature: float,
    tokens: int,
    rounds: int,
) -> str:
    """A row of the table: replies with and without drafts, by turns.

    Args:
        engines: Without drafts, with them, and without again.
        prompt: What each round continues, by its number.
        temperature: Of the draws.
        tokens: Of a reply.
        rounds: That count.
    """
    speeds: tuple[list[float], ...] = ([], [], [])
    num_drafts = num_kept = 0
    for number in range(WARM_UP + rounds):
        params = SamplingParams(
            temperature=temperature, seed=number, max_tokens=tokens, ignore_eos=True
        )
        order = [(number + place) % 3 for place in range(3)]
        replies = {place: reply(engines[place], prompt(number), params) for place in order}
        assert len({token_ids for token_ids, *_ in replies.values()}) == 1, "the replies differ"
        if number >= WARM_UP:
            for place, (_, speed, _) in replies.items():
                speeds[place].append(speed)
            num_drafts += replies[1][2].draft_tokens
            num_kept += replies[1][2].kept_draft_tokens
    without = [math.sqrt(one * other) for one, other in zip(speeds[0], speeds[2], strict=True)]
    gain = median_ratio(speeds[1], without)
    share = f"{num_kept / num_drafts:.0%}" if num_drafts else "none"
    steps = rounds * tokens - num_kept
    return (
        f"{statistics.median(without):.0f} | {statistics.median(speeds[1]):.0f} | {gain:.2f} | "
        f"{share} | {rounds * tokens / steps:.2f} | {median_ratio(speeds[2], speeds[0]):.2f}"
    )


def median_ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median of what each is of its counterpart."""
    return statistics.median(one / other for one, other in zip(these, those, strict=True))


def main() -> None:
    """Print a row for each text and temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--spec", default="ngram")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--dictated", type=int, default=400, help="most tokens of what is dictated")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    engines = [LLM(args.model, spec=spec, warm_up=True) for spec in (None, args.spec, None)]
    print(
        "text, temperature | tokens/s without | with | ratio | drafts kept | tokens a step | "
        "one without to the other"
    )
    for name, text in TEXTS.items():
        for temperature in (0.0, 1.0):
            row = compare(
                engines,
                text,
                temperature=temperature,
                tokens=args.tokens,
                rounds=args.rounds,
            )
            print(f"{name}, {temperature} | {row}", flush=True)
    for name, (beginning, dictated) in DICTATED.items():
        ids = engines[0].tokenizer.encode(dictated)[: args.dictated]
        with dictating(ids):
            row = compare(
                engines,
                always(beginning),
                temperature=0.0,
                tokens=len(ids),
                rounds=args.rounds,
            )
        print(f"{name}, dictated | {row}", flush=True)


if __name__ == "__main__":
    main()
