"""Speculation: tokens that may come next are computed beside the last one, and kept if they do.

A draft is kept where the draw that would have been made without it gives the same token, so that a
reply is the same with speculation and without. For drafts that are given, rather than drawn, this
is the rejection sampling of Leviathan, Kalman and Matias 2023 (arXiv:2211.17192): one that the
model gives the probability p is kept with probability p.
"""

from __future__ import annotations

from collections.abc import Callable

from blazr.core.table import Table
from blazr.engine.speculation.drafter import Drafter
from blazr.engine.speculation.mtp import Compute, MtpDrafter
from blazr.engine.speculation.ngram import NgramDrafter
from blazr.engine.speculation.prefix import PrefixDrafter

DRAFTERS: Table[Callable[[Compute, int], Drafter]] = Table(
    "drafter",
    {
        "ngram": lambda *_: NgramDrafter(),
        "prefix": lambda _, grid: PrefixDrafter(grid),
        "mtp": MtpDrafter,
    },
)
"""What proposes drafts, made of what runs the model's own module for them, and of how many tokens a
page and a block of a prefix has."""


def drafter_names(spec: str | None) -> list[str]:
    """The names of drafters that an option holds, with commas between them."""
    return [name.strip() for name in (spec or "").split(",") if name.strip()]
