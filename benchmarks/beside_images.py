"""Measure the time between tokens of running text while images are made beside it.

    python -m benchmarks.beside_images [MODEL] [--replies 4] [--threads 1] [--apart]

Text runs in rounds, by turns alone and beside images, in one process as in a server: text on the
engine's thread, images on the pipeline's. What is compared is the median over all gaps between
tokens, and their 90th percentile. `--apart` makes the images in a process of its own instead, which
shows what is due to the one process: with cores and memory both share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.llm import LLM
from blazr.llm.load import load_pipeline
from blazr.llm.options import LoadOptions
from blazr.pipelines.diffusion.generation import ImageEvent, ImageRequest, StepDone
from blazr.pipelines.diffusion.generator import ImageGenerator
from blazr.pipelines.jobs import JobEndedError
from blazr.text.events import TextDelta
from tests.support.diffusion_pipelines import save_stable_diffusion

_PIPELINE_WIDTH = 16  # times the widths of the tests' pipeline
_FIRST_STEPS = 2  # after which it is under way
_IMAGE = ImageRequest(prompt="a red ball", size=(256, 256), steps=200, num_images=10)


class Watch:
    """Counts denoising steps, and ends the work when it is told to."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.is_over = threading.Event()

    def emit(self, item: ImageEvent) -> None:
        """Take an event."""
        self.num_steps += isinstance(item, StepDone)

    def check(self) -> None:
        """End the work between two steps.

        Raises:
            JobEndedError: It is over.
        """
        if self.is_over.is_set():
            raise JobEndedError


def gaps(llm: LLM, num_replies: int, num_tokens: int) -> list[float]:
    """Seconds between the tokens of some replies at once."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    requests = [
        GenerationRequest(prompt=f"Once upon a time {index}", params=params)
        for index in range(num_replies)
    ]
    last: dict[int, float] = {}
    found = []
    for event in llm.events(requests):
        if isinstance(event, TextDelta):
            now = perf_counter()
            if event.index in last:
                found.append(now - last[event.index])
            last[event.index] = now
    return found


@contextmanager
def here(generator: ImageGenerator) -> Iterator[Watch]:
    """Make images on a pipeline's thread until the block ends."""
    watch = Watch()

    def work(_: object) -> None:
        with suppress(JobEndedError):
            while True:
                generator.generate(_IMAGE, watch)

    async def start() -> None:
        generator.jobs.start(work)

    asyncio.run(start())
    try:
        while watch.num_steps < _FIRST_STEPS:
            watch.is_over.wait(0.01)
        yield watch
    finally:
        watch.is_over.set()
        while generator.jobs.figures["running"]:
            threading.Event().wait(0.01)


@contextmanager
def apart(place: str, threads: int) -> Iterator[None]:
    """Make images in a process of its own until the block ends."""
    command = [sys.executable, "-m", "benchmarks.beside_images", "--role", "images"]
    command += ["--pipeline", place, "--threads", str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it is under way
        try:
            yield
        finally:
            process.stdin.close()


def make_until_told(place: str) -> None:
    """Make images until stdin ends; a line on stdout says that they are under way."""
    with here(load_images(place)):
        print("under way", flush=True)
        sys.stdin.read()


def load_images(place: str) -> ImageGenerator:
    """Load a pipeline for a CPU."""
    found = load_pipeline(LoadOptions(place, device="cpu"))
    assert isinstance(found, ImageGenerator)
    return found


def main() -> None:
    """Compare text alone with text beside images."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--replies", type=int, default=4, help="running at once")
    parser.add_argument("--tokens", type=int, default=300, help="of each reply in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="of text, and of images")
    parser.add_argument("--pipeline", help="a folder; without one, a random Stable Diffusion")
    parser.add_argument("--apart", action="store_true", help="images in a process of their own")
    parser.add_argument("--role", choices=("text", "images"), default="text")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as made:
        place = args.pipeline or made
        if args.pipeline is None:
            save_stable_diffusion(Path(made), width=_PIPELINE_WIDTH)
        if args.role == "images":
            make_until_told(place)
        else:
            compare(args, place)


def compare(args: argparse.Namespace, place: str) -> None:
    """Print what images beside text change."""
    generator = None if args.apart else load_images(place)
    alone: list[float] = []
    beside: list[float] = []
    num_steps = 0
    with LLM(args.model, device="cpu") as llm:
        gaps(llm, args.replies, 32)  # warm
        for index in range(args.rounds):
            alone += gaps(llm, args.replies, args.tokens)
            with apart(place, args.threads) if generator is None else here(generator) as watch:
                first = 0 if watch is None else watch.num_steps
                beside += gaps(llm, args.replies, args.tokens)
                num_steps += 0 if watch is None else watch.num_steps - first
            print(f"round {index + 1}: {row(alone)} | {row(beside)}", flush=True)
    if generator is not None:
        generator.close()
    print(f"{args.model}, {args.replies} replies, {args.threads} thread(s) each")
    print(f"alone:         {row(alone)}")
    print(f"beside images: {row(beside)}, meanwhile {num_steps or 'uncounted'} denoising steps")
    print(f"median {median(beside) / median(alone) - 1:+.1%}, ", end="")
    print(f"p90 {quantiles(beside, n=10)[-1] / quantiles(alone, n=10)[-1] - 1:+.1%}")


def row(found: list[float]) -> str:
    """Median and 90th percentile, in milliseconds."""
    return f"p50 {median(found) * 1e3:.2f} ms, p90 {quantiles(found, n=10)[-1] * 1e3:.2f} ms"


if __name__ == "__main__":
    main()
