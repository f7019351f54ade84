"""From records to figures, and what stands beside them: when, of what, and on which machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, quantiles

import blazr
from blazr.bench.load import Record
from blazr.core.errors import ConfigError

_GOALS: Mapping[str, Callable[[Record], float]] = {
    "ttft": lambda record: record.ttft_s,
    # a reply of one token has no gap, so it misses no goal for gaps
    "itl": lambda record: record.decode_s / max(record.output_tokens - 1, 1),
    "e2e": lambda record: record.ttft_s + record.decode_s,
}


def parse_goals(text: str) -> dict[str, float]:
    """Parse ``"ttft:200,itl:50"`` to milliseconds by name.

    Raises:
        ConfigError: It is not of that form.
    """
    goals = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition(":")
        if name not in _GOALS or not value.replace(".", "", 1).isdecimal():
            raise ConfigError(
                "the goal is not understood.",
                found=repr(part[:50]),
                expected=f"milliseconds for some of {', '.join(_GOALS)}, as in ttft:200,itl:50",
            )
        goals[name] = float(value)
    return goals


def spread_of(values: Iterable[float]) -> dict[str, float] | None:
    """Mean, median, 90th and 99th percentile by name; None where there is no value.

    Percentiles lie on straight lines between the values.
    """
    found = sorted(values)
    if not found:
        return None
    points = quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
    return {"mean": fmean(found), **{f"p{share}": points[share - 1] for share in (50, 90, 99)}}


def summarize(records: Sequence[Record], goals: Mapping[str, float]) -> dict[str, object]:
    """The figures of one level.

    Latencies are of the requests that were answered; goodput, the share that met every goal (in
    milliseconds), is of all.
    """
    ok = [record for record in records if record.is_ok]
    duration_s = max(r.end_s for r in records) - min(r.arrival_s for r in records)
    prompt, output = sum(r.prompt_tokens for r in ok), sum(r.output_tokens for r in ok)
    good = sum(all(_GOALS[n](r) * 1000 <= limit for n, limit in goals.items()) for r in ok)
    long = [record for record in ok if record.decode_s]
    return {
        "num_requests": len(records),
        "num_errors": len(records) - len(ok),
        "first_error": next((r.error for r in records if r.error), None),
        "duration_s": duration_s,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests_per_s": len(ok) / duration_s,
        "output_tokens_per_s": output / duration_s,
        "total_tokens_per_s": (prompt + output) / duration_s,
        "ttft_ms": spread_of(1000 * r.ttft_s for r in ok),
        "itl_ms": spread_of(1000 * gap for r in ok for gap in r.gaps_s),
        "e2e_ms": spread_of(1000 * (r.ttft_s + r.decode_s) for r in ok),
        "prefill_tokens_per_s": spread_of(r.prompt_tokens / r.ttft_s for r in ok),
        "decode_tokens_per_s": spread_of((r.output_tokens - 1) / r.decode_s for r in long),
        "cached_share": sum(r.cached_tokens for r in ok) / prompt if prompt else None,
        "goodput_share": good / len(records) if goals else None,
        "goodput_requests_per_s": good / duration_s if goals else None,
    }


def speculation_figures(
    counters: Mapping[str, float],
    plain: Mapping[str, float] | None,
    speculated: Mapping[str, float] | None,
) -> dict[str, object]:
    """What speculation did in one level; None where there is nothing to tell.

    Args:
        counters: What the engine counted in it.
        plain: The spread of tokens decoded in a second, without speculation.
        speculated: The same with it.

    Returns:
        How many drafts were computed at a time, the share of them that was kept, the tokens that a
        step brought to a reply, and the ratio of the medians of tokens decoded in a second.
    """
    drafts, kept = counters["draft_tokens"], counters["kept_draft_tokens"]
    tokens = counters["generated_tokens"]
    return {
        "draft_depth": drafts / counters["draft_steps"] if drafts else None,
        "draft_acceptance": kept / drafts if drafts else None,
        "tokens_per_step": tokens / (tokens - kept) if tokens else None,
        "speculation_gain": speculated["p50"] / plain["p50"] if plain and speculated else None,
    }


def origin() -> dict[str, object]:
    """When, which blazr, which machine."""
    # git tells it of the checkout this runs from, ``-dirty`` where that was changed
    commit = None
    root = Path(__file__).parents[3]
    if (root / ".git").exists():
        line = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(line, capture_output=True, text=True, check=True)
            commit = done.stdout.strip()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "blazr": blazr.__version__,
        "commit": commit,
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "processors": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        },
    }
