"""Run one model in blazr and in another engine by turns, and print the ratio of their speeds.

    python -m benchmarks.versus llama.cpp MODEL.gguf --levels 1,8
    python -m benchmarks.versus transformers DIRECTORY --history runs.jsonl

`benchmarks/plot_versus.py` makes a table and a chart of the histories.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.arguments import positive, positives
from benchmarks.rival import RIVALS, BlazrSide, Match, rival, rival_version
from benchmarks.rival_process import Job
from blazr.bench.offline import EngineTarget
from blazr.bench.report import origin
from blazr.bench.roofline import measure_bandwidth, step_bytes
from blazr.core.errors import BlazrError
from blazr.core.json_text import dump_json
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.quant.weight import stored_weights

_PROBE_BYTES = 2**28
_WARMUP_TOKENS = 16  # enough for all to decode together
_UNPACED = 1e6


def compare(
    name: str,
    path: Path,
    *,
    levels: Sequence[int],
    prompt_tokens: int,
    output_tokens: int,
    prefill_tokens: int,
    rounds: int,
    seed: int,
) -> tuple[Mapping[str, object], list[Mapping[str, object]]]:
    """Decode at each level, and one prompt, on both sides by turns.

    Args:
        name: The other engine, of RIVALS.
        path: A model that both read.
        levels: Sequences at once.
        prompt_tokens: Of each sequence.
        output_tokens: Decoded in each.
        prefill_tokens: Of the prompt that is timed alone.
        rounds: Of each kind of work.
        seed: Of the prompts.

    Returns:
        Facts about the run, and the figures of each kind of work.

    Raises:
        ConfigError: The other is unknown or not installed, or does not read such models.
        EngineError: One of the two failed.
    """
    threads, cpu = torch.get_num_threads(), resolve_device("cpu")
    context = max(prefill_tokens, prompt_tokens + output_tokens) + 8
    chance, streams = random.Random(seed), max(levels)
    with rival(name, path, threads=threads, context=context, streams=streams) as theirs:
        loaded = load(str(path), device=cpu)
        # the other side, too, reads all prompts before it decodes
        at_once = max(EngineConfig().max_running, streams)
        config = EngineConfig(max_running=at_once, prefill_share=_UNPACED)
        engine = build_engine(loaded.module, cpu, config=config)
        try:
            size = loaded.config.vocab_size
            ours = BlazrSide(EngineTarget(engine, vocab_size=size))

            def job(count: int, length: int, output: int) -> Job:
                return Job([chance.choices(range(size), k=length) for _ in range(count)], output)

            def play(kind: str, count: int, length: int, output: int) -> Match:
                found: tuple[list[float], list[float], list[float]] = ([], [], [])
                for side in (ours, theirs):
                    side.run(job(count, length, min(output, _WARMUP_TOKENS)))
                for _ in range(rounds):
                    work = job(count, length, output)
                    found[0].append(ours.run(work))
                    found[1].append(theirs.run(work))
                    found[2].append(measure_bandwidth(cpu, nbytes=_PROBE_BYTES, rounds=3))
                return Match(count, kind, *found)

            results: list[Mapping[str, object]] = []
            for level in levels:
                match = play("decode", level, prompt_tokens, output_tokens)
                length = prompt_tokens + output_tokens / 2
                nbytes = step_bytes(loaded.module, batch=level, context_len=length)
                results.append({**match.figures(), "bandwidth_share": match.share(nbytes)})
            results.append(play("prefill", 1, prefill_tokens, 1).figures())
        finally:
            engine.close()
    facts = {
        "model": loaded.name,
        "bytes": sum(each.nbytes for each in stored_weights(loaded.module)),
        "rival": rival_version(name),
        "threads": threads,
        "rounds": rounds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prefill_tokens": prefill_tokens,
    }
    return facts, results


def main() -> None:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description="Run a model in two engines by turns.")
    parser.add_argument("rival", choices=RIVALS)
    parser.add_argument("model", type=Path, help="a model that both engines read")
    parser.add_argument(
        "--levels", type=positives, default="1,8", help="sequences at once, by commas"
    )
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--output-tokens", type=positive, default=64)
    parser.add_argument("--prefill-tokens", type=positive, default=512)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--history", type=Path, help="a file to append the run to, as a JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        facts, results = compare(
            options.rival,
            options.model,
            levels=options.levels,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            prefill_tokens=options.prefill_tokens,
            rounds=options.rounds,
            seed=options.seed,
        )
    except BlazrError as error:
        raise SystemExit(f"error: {error}") from None
    print("{model}, {threads} threads, against {rival}".format_map(facts))
    print("| | blazr, tokens/s | the other | ratio | of the bandwidth |\n|---|--:|--:|--:|--:|")
    for row in results:
        share = row.get("bandwidth_share")
        print(
            "| {kind}, {streams} at once | {blazr_tokens_per_s:,.1f} | {rival_tokens_per_s:,.1f} "
            "| {ratio:.2f} ({ratio_min:.2f} to {ratio_max:.2f}) |".format_map(row),
            "" if share is None else f"{share:.0%}",
            "|",
        )
    if options.history:
        with options.history.open("a", encoding="utf-8") as file:
            file.write(dump_json({**origin(), **facts, "results": results}) + "\n")


if __name__ == "__main__":
    main()
