"""A picture of a sweep: what more concurrency gives, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from blazr.core.errors import ConfigError


def check_plot() -> None:
    """Say before a long run that its picture cannot be drawn.

    Raises:
        ConfigError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib.", hint="pip install 'blazr[train]'")


def plot(levels: Sequence[Mapping[str, object]], path: Path, *, title: str) -> None:
    """Draw throughput and the time between tokens over concurrency, as a PNG.

    Args:
        levels: Figures of each level.
        path: Where to.
        title: Above the picture.
    """
    from matplotlib.figure import Figure

    # without a limit there is one level, and its place on the axis is all the same
    places = [level["concurrency"] or level["num_requests"] for level in levels]
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    left.plot(places, [level["output_tokens_per_s"] for level in levels], "o-")
    left.set(xlabel="concurrency", ylabel="output tokens per second", ylim=(0, None))
    for name in ("p50", "p99"):
        gaps = [cast("Mapping[str, float] | None", level["itl_ms"]) for level in levels]
        right.plot(places, [gap[name] if gap else None for gap in gaps], "o-", label=name)
    right.set(xlabel="concurrency", ylabel="between tokens, ms", ylim=(0, None))
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.set_xticks(places, [str(place) for place in places])
    figure.savefig(path, format="png", dpi=120)
