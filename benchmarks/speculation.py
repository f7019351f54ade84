"""What speculation gains: the same replies with and without it, by turns.

Each text is continued by one stream. Rounds of both engines alternate in one process, so that both
meet the same machine; the first rounds, in which steps are recorded, do not count.

Run: python -m benchmarks.speculation [MODEL] [--spec ngram] [--rounds 15]

OMP_NUM_THREADS chooses the number of threads.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

from blazr import LLM, SamplingParams
from blazr.llm.results import Usage

WARM_UP = 2  # rounds


def code() -> str:
    """A class of getters and setters, as generated code is."""
    fields = ("name", "size", "age")
    body = "".join(
        f"    def get_{each}(self):\n        return self.{each}\n\n"
        f"    def set_{each}(self, {each}):\n        self.{each} = {each}\n\n"
        for each in fields
    )
    return f"class Box:\n{body}    def get_"


def rows() -> str:
    """JSON objects of the same keys."""
    names = ("Tom", "Lily", "Ben", "Mia", "Sam")
    objects = [
        {"name": name, "age": 3 + index % 5, "likes": "the park"}
        for index, name in enumerate(names)
    ]
    return "[\n" + ",\n".join(map(json.dumps, objects)) + ',\n{"name": "'


def quotes() -> str:
    """A story that is told again."""
    story = (
        "Once upon a time, there was a little girl named Lily. She had a red ball. One day, Lily "
        "went to the park with her mom. She saw a big dog. The dog took the red ball and ran away. "
        "Lily was sad. Then the dog came back and gave her the ball. Lily was happy again. "
    )
    return f"{story}The end. Once upon a time, there was a little"


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
    "code": lambda _: code(),
    "JSON": lambda _: rows(),
    "quotes": lambda _: quotes(),
    "random words": lambda _: noise(),
    "another story each time": another,
}


def reply(engine: LLM, text: str, params: SamplingParams) -> tuple[tuple[int, ...], float, Usage]:
    """Tokens, how many came in a second, and what they cost."""
    started = time.perf_counter()
    (completion,) = engine.generate([text], params)
    seconds = time.perf_counter() - started
    return completion.token_ids, len(completion.token_ids) / seconds, completion.usage


def compare(
    engines: list[LLM],
    text: Callable[[int], str],
    *,
    temperature: float,
    tokens: int,
    rounds: int,
) -> str:
    """A row of the table: replies with and without drafts, by turns.

    Args:
        engines: Without drafts, and with them.
        text: What each round continues, by its number.
        temperature: Of the draws.
        tokens: Of a reply.
        rounds: That count.
    """
    speeds: tuple[list[float], list[float]] = ([], [])
    num_drafts = num_kept = 0
    for number in range(WARM_UP + rounds):
        params = SamplingParams(
            temperature=temperature, seed=number, max_tokens=tokens, ignore_eos=True
        )
        replies = [reply(engine, text(number), params) for engine in engines]
        assert replies[0][0] == replies[1][0], "the replies differ"
        if number >= WARM_UP:
            for each, (_, speed, _) in zip(speeds, replies, strict=True):
                each.append(speed)
            num_drafts += replies[1][2].draft_tokens
            num_kept += replies[1][2].kept_draft_tokens
    without, speculated = map(statistics.median, speeds)
    share = f"{num_kept / num_drafts:.0%}" if num_drafts else "none"
    steps = rounds * tokens - num_kept
    return (
        f"{without:.0f} | {speculated:.0f} | {speculated / without:.2f} | {share}"
        f" | {rounds * tokens / steps:.2f}"
    )


def main() -> None:
    """Print a row for each text and temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--spec", default="ngram")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    engines = [LLM(args.model, warm_up=True), LLM(args.model, spec=args.spec, warm_up=True)]
    print("text, temperature | tokens/s without | with | ratio | drafts kept | tokens a step")
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


if __name__ == "__main__":
    main()
