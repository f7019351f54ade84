"""``blazr bench``: how fast a model runs here, or a server answers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, cast

import typer

from blazr.bench import RANDOM_SHAPES
from blazr.bench.workload import MOST_TOKENS
from blazr.cli import options
from blazr.cli.signals import run_async
from blazr.core import env
from blazr.core.errors import ConfigError, EngineError, as_config_error
from blazr.core.json_text import dump_json
from blazr.llm.options import LoadOptions

if TYPE_CHECKING:
    from blazr.bench.load import Record, Target
    from blazr.bench.workload import Workload
    from blazr.engine.async_engine import AsyncEngine
    from blazr.models.causal_lm import CausalLM
    from blazr.nn.device import Device
    from blazr.pipelines.fallback import FallbackModel

_Figures = Mapping[str, object]
_Spread = Mapping[str, float] | None
_MOST_AT_ONCE = 2**16  # requests
_MEDIAN = "{0[p50]:,.1f}"
_SPREAD = "{0[p50]:,.1f} / {0[p90]:,.1f} / {0[p99]:,.1f}"
# What the table says of each level: title, key, form.
_ROWS = (
    ("requests", "num_requests", "{}"),
    ("errors", "num_errors", "{}"),
    ("output tokens/s", "output_tokens_per_s", "{:,.1f}"),
    ("all tokens/s", "total_tokens_per_s", "{:,.1f}"),
    ("first token, ms", "ttft_ms", _SPREAD),
    ("between tokens, ms", "itl_ms", _SPREAD),
    ("whole reply, ms", "e2e_ms", _SPREAD),
    ("prefill tokens/s", "prefill_tokens_per_s", _MEDIAN),
    ("decode tokens/s", "decode_tokens_per_s", _MEDIAN),
    ("prompt from cache", "cached_share", "{:.0%}"),
    ("goodput", "goodput_share", "{:.0%}"),
    ("decode: of the bandwidth", "bandwidth_share", "{:.1%}"),
    ("prefill: of the arithmetic", "arithmetic_share", "{:.1%}"),
    ("drafts at a time", "draft_depth", "{:.1f}"),
    ("drafts kept", "draft_acceptance", "{:.0%}"),
    ("tokens a step", "tokens_per_step", "{:.2f}"),
    ("decode gain", "speculation_gain", "{:.2f}"),
)


def bench(  # noqa: PLR0913  (one argument per flag)
    ctx: typer.Context,
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    random: Annotated[
        str | None, typer.Option(help=f"Random weights of a shape: {', '.join(RANDOM_SHAPES)}.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure a running server; BLAZR_API_KEY is sent as its key.")
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="Read the requests from a file of JSON lines.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of each prompt.")
    ] = 128,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of each reply.")
    ] = 64,
    shared_prefix: Annotated[
        int,
        typer.Option(min=0, max=MOST_TOKENS, help="Tokens that all prompts begin with."),
    ] = 0,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at each level.  [default: 4 x concurrency, at least 8]"),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(help="Requests per second, at random times; inf sends one when another ends."),
    ] = math.inf,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Levels of concurrent requests.  [default: 1,2,4,8; with a rate, no limit]"
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before each level.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts and times.")] = 0,
    goodput: Annotated[
        str, typer.Option(help="Count requests that keep to these milliseconds: ttft:200,itl:50.")
    ] = "",
    spec: Annotated[
        str | None,
        typer.Option(help="Speculate, as serve does, and compare with the same without."),
    ] = None,
    device: options.DeviceName = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    as_json: options.Json = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the levels into this PNG.")] = None,
    history: Annotated[Path | None, typer.Option(help="Append the run as one JSON line.")] = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Measure throughput and latency, in this process or, with --url, of a server."""
    from blazr.bench.report import origin, parse_goals
    from blazr.bench.workload import BenchRequest, Workload, read_workload

    options.refuse_beside_url(ctx, "random")
    named = options.named_model(model, model_argument)
    if named is not None and random is not None:
        raise ConfigError("MODEL and --random cannot be used together.", expected="one of them")
    if plot is not None and find_spec("matplotlib") is None:  # better now than after a long run
        raise ConfigError("--plot needs matplotlib.", hint="pip install 'blazr[train]'")
    default = BenchRequest(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    described = read_workload(workload, default) if workload else [default]
    is_timed = rate < math.inf or any(each.arrival_s is not None for each in described)
    plan = _Plan(
        workload=Workload(requests=described, shared_prefix=shared_prefix, rate=rate, seed=seed),
        levels=_parse_levels(concurrency or ("any" if is_timed else "1,2,4,8")),
        requests=requests or (len(described) if workload else None),
        warmup=warmup,
        goals=parse_goals(goodput),
    )
    if url is not None:
        facts, levels = run_async(_measure_server(plan, url, named))
    else:
        facts, levels = _measure_model(
            plan,
            named or options.BUILT_IN,
            random,
            spec=spec,
            device=device,
            dtype=dtype,
            threads=threads,
        )
    failure = next((str(level["first_error"]) for level in levels if level["num_errors"]), "")
    if failure and not any(level["output_tokens"] for level in levels):
        raise EngineError("every request failed.", found=failure)
    if failure:
        print(f"warning: some requests failed, the first: {failure}", file=sys.stderr)
    scenario = {
        "workload": workload.name if workload else None,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "shared_prefix": shared_prefix,
        "rate": rate if rate < math.inf else None,
        "goodput": goodput,
        "spec": spec,
    }
    report = {**origin(), **facts, "seed": seed, "scenario": scenario, "levels": levels}
    # first, as a file may be refused after all that was measured
    if as_json:
        print(dump_json(report, indent=2))
    else:
        _print_table(facts, levels)
    if history is not None:
        with (
            as_config_error("the history file cannot be written."),
            history.open("a", encoding="utf-8") as file,
        ):
            file.write(dump_json(report) + "\n")
    if plot is not None:
        _plot(levels, plot, title=str(facts["model"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The requests of a benchmark, and how they are sent; not what answers them."""

    workload: Workload
    levels: Sequence[int | None]
    requests: int | None
    warmup: int
    goals: Mapping[str, float]

    async def run(self, target: Target) -> list[tuple[_Figures, list[Record]]]:
        """The figures and the records of every level."""
        from rich.console import Console
        from rich.progress import Progress

        from blazr.bench.load import run_level
        from blazr.bench.report import summarize

        counts = [self.requests or max(8, 4 * (level or 8)) for level in self.levels]
        results: list[tuple[_Figures, list[Record]]] = []
        is_watched = sys.stderr.isatty()
        with Progress(
            console=Console(stderr=True), transient=True, disable=not is_watched
        ) as progress:
            advance = partial(progress.advance, progress.add_task("requests", total=sum(counts)))
            for level, count in zip(self.levels, counts, strict=True):
                records, counters = await run_level(
                    target, self.workload, level, count=count, warmup=self.warmup, on_end=advance
                )
                figures = {"concurrency": level, **summarize(records, self.goals)}
                results.append((figures | {"counters": counters}, records))
        return results


async def _measure_server(
    plan: _Plan, url: str, model: str | None
) -> tuple[_Figures, list[_Figures]]:
    from blazr.bench.online import connect

    api_key = env.api_key()
    async with connect(url, model=model, api_key=api_key) as target:
        results = await plan.run(target)
        return {"url": url, "model": target.model}, [figures for figures, _ in results]


async def _compare_speculation(
    plan: _Plan, engine: AsyncEngine, vocab_size: int
) -> list[tuple[_Figures, list[Record]]]:
    """Each level without drafts, and then with them."""
    from blazr.bench.offline import EngineTarget
    from blazr.bench.report import speculation_figures

    targets = [
        EngineTarget(engine, vocab_size=vocab_size, speculate=speculate)
        for speculate in (False, True)
    ]
    results: list[tuple[_Figures, list[Record]]] = []
    for level in plan.levels:
        (plain, _), (figures, records) = [
            (await replace(plan, levels=[level]).run(target))[0] for target in targets
        ]
        speeds = [cast("_Spread", each["decode_tokens_per_s"]) for each in (plain, figures)]
        counters = cast("Mapping[str, float]", figures["counters"])
        results.append(({**figures, **speculation_figures(counters, *speeds)}, records))
    return results


def _measure_model(
    plan: _Plan,
    model: str,
    shape: str | None,
    *,
    spec: str | None,
    device: str,
    dtype: str,
    threads: int | None,
) -> tuple[_Figures, list[_Figures]]:
    from blazr.bench.offline import EngineTarget
    from blazr.bench.roofline import (
        arithmetic_use,
        bandwidth_use,
        measure_bandwidth,
        measure_rates,
        peak_memory,
    )
    from blazr.engine.build import build_engine
    from blazr.engine.speculation import parse_spec
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device
    from blazr.pipelines.fallback import FallbackModel, build_fallback_engine

    options.set_threads(threads)
    on_device = resolve_device(device)
    running = max(LoadOptions().max_running, *(level or 0 for level in plan.levels))
    # the queue's bound protects a server; here every request that was asked for is to run
    config = LoadOptions(model, dtype=dtype, max_running=running, max_waiting=2**20, spec=spec)
    started_s = perf_counter()
    drafters = parse_spec(spec)
    name, network = _load_network(config, shape, drafters, device=on_device)
    draft_model = None
    if "draft" in drafters:
        draft_model = load(drafters["draft"], device=on_device, dtype=dtype).module
    if isinstance(network, FallbackModel):
        engine = build_fallback_engine(network, config=config)
        vocab_size, computes_in = network.vocab_size, next(network.module.parameters()).dtype
    else:
        engine = build_engine(network, on_device, config=config, draft_model=draft_model)
        vocab_size, computes_in = network.config.vocab_size, network.dtype
    load_s = perf_counter() - started_s
    try:
        if spec is None:
            results = run_async(plan.run(EngineTarget(engine, vocab_size=vocab_size)))
        else:
            results = run_async(_compare_speculation(plan, engine, vocab_size))
    finally:
        engine.close()
    memory = peak_memory(on_device)  # before the next line adds to it
    bandwidth = measure_bandwidth(on_device)
    facts = {
        "model": name,
        "device": str(on_device),
        "dtype": str(computes_in).removeprefix("torch."),
        "load_s": load_s,
        **memory,
        "bandwidth_bytes_per_s": bandwidth,
    }
    if isinstance(network, FallbackModel):  # what its steps read is not known
        return facts, [figures for figures, _ in results]
    rates = measure_rates(on_device)
    return {**facts, "arithmetic_per_s": rates}, [
        {
            **figures,
            # with drafts a step brings several tokens, so that a gap between tokens is not a step
            **({} if drafters else bandwidth_use(network, records, bandwidth)),
            **arithmetic_use(network, records, rates),
        }
        for figures, records in results
    ]


def _load_network(
    load: LoadOptions, shape: str | None, drafters: Mapping[str, str], *, device: Device
) -> tuple[str, CausalLM | FallbackModel]:
    from blazr.bench.shapes import random_network
    from blazr.llm.load import load_weights
    from blazr.pipelines.fallback import FallbackModel

    if shape is not None:
        if not {"mtp", "eagle3"}.isdisjoint(drafters):
            raise ConfigError(
                "random weights have no module that guesses their next tokens.",
                found=f"--random {shape} --spec {','.join(drafters)}",
                expected="--spec ngram, or a model instead of --random",
            )
        config = RANDOM_SHAPES[shape]()
        return f"random {shape}", random_network(config, device=device, dtype=load.dtype)
    found = load_weights(load.model, options=load, device=device, drafters=drafters)
    return found.name, found if isinstance(found, FallbackModel) else found.module


def _parse_levels(text: str) -> Sequence[int | None]:
    if text == "any":
        return [None]
    words = [word.strip() for word in text.split(",")]
    # Python does not read numbers of thousands of digits
    levels = [int(word) if word.isdecimal() and len(word) < 10 else 0 for word in words]
    if not all(0 < level <= _MOST_AT_ONCE for level in levels):
        raise ConfigError(
            "the levels of concurrency are not understood.",
            found=repr(text[:50]),
            expected=f"numbers from 1 to {_MOST_AT_ONCE}, separated by commas",
        )
    return levels


def _print_table(facts: _Figures, levels: Sequence[_Figures]) -> None:
    """The report for people: one column per level."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    if "url" in facts:
        print("{model} at {url}".format_map(facts))
    else:
        print("{model} on {device}, {dtype}, loaded in {load_s:.2f} s".format_map(facts))
        sizes = (facts["peak_memory_bytes"], facts["bandwidth_bytes_per_s"])
        peak, bandwidth = (decimal(round(cast("float", size))) for size in sizes)
        print(f"peak memory {peak}, memory bandwidth {bandwidth}/s")
    table = Table("requests at once", *(str(level["concurrency"] or "any") for level in levels))
    for title, key, form in _ROWS:
        values = [level.get(key) for level in levels]
        cells = ["" if value is None else form.format(value) for value in values]
        if any(cells):
            table.add_row(title, *cells)
    # a pipe has no width, and a table cut to fit one would be of no use
    width = None if sys.stdout.isatty() else 24 + 32 * len(levels)
    Console(width=width).print(table)


def _plot(levels: Sequence[_Figures], path: Path, *, title: str) -> None:
    """Draw throughput and the time between tokens over concurrency."""
    from matplotlib.figure import Figure

    # without a limit there is one level, and its place on the axis is all the same
    places = [level["concurrency"] or level["num_requests"] for level in levels]
    gaps = [cast("Mapping[str, float]", level["itl_ms"] or {}) for level in levels]
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    left.plot(places, [level["output_tokens_per_s"] for level in levels], "o-")
    for name in ("p50", "p99"):
        right.plot(places, [gap.get(name) for gap in gaps], "o-", label=name)
    right.legend()
    for axes, label in ((left, "output tokens per second"), (right, "between tokens, ms")):
        axes.set(xlabel="requests at once", ylabel=label, ylim=(0, None))
        axes.set_xticks(places, [str(place) for place in places])
        axes.grid(alpha=0.3)
    with as_config_error("the plot cannot be written."):
        figure.savefig(path, format="png", dpi=120)
