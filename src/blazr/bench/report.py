"""From records to figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from blazr.bench.load import Record
from blazr.bench.sweep import Level
from blazr.core.errors import ConfigError

Spread = dict[str, float]
"""The mean, the median and the 90th and 99th percentile of a figure, by name."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values is at or below, between two by a straight line.

    Args:
        values: Sorted, at least one.
        share: 0 to 1.
    """
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def spread_of(values: Iterable[float]) -> Spread | None:
    """The spread of values; None where there are none."""
    found = sorted(values)
    if not found:
        return None
    points = {f"p{share}": percentile(found, share / 100) for share in (50, 90, 99)}
    return {"mean": sum(found) / len(found), **points}


def _mean_gap_s(record: Record) -> float:
    # a reply of one token has no gap, so it misses no goal for gaps
    return record.decode_s / max(record.output_tokens - 1, 1)


_GOALS: Mapping[str, Callable[[Record], float]] = {
    "ttft": lambda record: record.ttft_s,
    "itl": _mean_gap_s,
    "e2e": lambda record: record.e2e_s,
}


def parse_goals(text: str) -> dict[str, float]:
    """Parse ``"ttft:200,itl:50"`` to milliseconds by name.

    Raises:
        ConfigError: It is not of that form.
    """
    goals: dict[str, float] = {}
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


def meets(record: Record, goals: Mapping[str, float]) -> bool:
    """Whether a request was answered within every goal, in milliseconds."""
    return record.is_ok and all(
        _GOALS[name](record) * 1000 <= limit for name, limit in goals.items()
    )


def summarize(level: Level, goals: Mapping[str, float]) -> dict[str, object]:
    """The figures of one level.

    Latencies are those of the requests that were answered; goodput counts the others as missed.
    """
    records = level.records
    ok = [record for record in records if record.is_ok]
    duration_s = max(r.end_s for r in records) - min(r.arrival_s for r in records)
    prompt, output = sum(r.prompt_tokens for r in ok), sum(r.output_tokens for r in ok)
    good = sum(meets(record, goals) for record in records)
    return {
        "concurrency": level.concurrency,
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
        "e2e_ms": spread_of(1000 * r.e2e_s for r in ok),
        "prefill_tokens_per_s": spread_of(r.prompt_tokens / r.ttft_s for r in ok),
        "decode_tokens_per_s": spread_of((r.output_tokens - 1) / r.decode_s for r in ok if r.decode_s),
        "cached_share": sum(r.cached_tokens for r in ok) / prompt if prompt else None,
        "goodput_share": good / len(records) if goals else None,
        "goodput_requests_per_s": good / duration_s if goals else None,
        "counters": dict(level.counters),
    }


def bandwidth_figures(
    level: Level, step_bytes: Callable[[float, float], float], bandwidth: float
) -> dict[str, float]:
    """What share of the memory's bandwidth decoding used, at the median gap between tokens.

    Args:
        level: What came of it.
        step_bytes: Bytes a step reads, from the sequences in it and their mean length.
        bandwidth: Bytes per second that were measured.
    """
    ok = [record for record in level.records if record.is_ok and record.decode_s]
    gaps = spread_of(gap for record in ok for gap in record.gaps_s)
    if gaps is None or not gaps["p50"]:
        return {}
    # sequences that decoded at once, on average
    span_s = max(r.token_s[-1] for r in ok) - min(r.token_s[0] for r in ok)
    batch = max(sum(record.decode_s for record in ok) / span_s, 1.0)
    context = sum(r.prompt_tokens + r.output_tokens / 2 for r in ok) / len(ok)
    nbytes = step_bytes(batch, context)
    return {
        "step_batch": batch,
        "step_bytes": nbytes,
        "bandwidth_share": nbytes / gaps["p50"] / bandwidth,
    }
