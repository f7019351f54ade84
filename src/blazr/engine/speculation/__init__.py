"""Speculation: tokens that may come next are computed beside the last one, and kept if they do.

A draft is kept where the draw that would have been made without it gives the same token, so that a
reply is the same with speculation and without. For drafts that are given, rather than drawn, this
is the rejection sampling of Leviathan, Kalman and Matias 2023 (arXiv:2211.17192): one that the
model gives the probability p is kept with probability p.
"""

from __future__ import annotations

from collections.abc import Callable

from blazr.core.errors import ConfigError
from blazr.core.table import Table
from blazr.engine.speculation.drafter import Drafter, Sources
from blazr.engine.speculation.mtp import MtpDrafter
from blazr.engine.speculation.ngram import NgramDrafter
from blazr.engine.speculation.prefix import PrefixDrafter
from blazr.engine.speculation.suffix import SuffixDrafter

DRAFTERS: Table[Callable[[Sources], Drafter]] = Table(
    "drafter",
    {
        "ngram": lambda _: NgramDrafter(),
        "suffix": lambda _: SuffixDrafter(),
        "prefix": lambda sources: PrefixDrafter(sources.grid),
        "mtp": lambda sources: MtpDrafter(sources.compute, sources.grid),
        "eagle3": lambda sources: MtpDrafter(sources.compute, sources.grid, kind="eagle3"),
        "draft": lambda sources: _needed(sources.draft_model),
    },
)
"""What proposes drafts."""

_WITH_A_MODEL = frozenset({"eagle3", "draft"})


def parse_spec(spec: str | None) -> dict[str, str]:
    """What an option names: drafters with commas between them, some with a model behind a colon.

    Returns:
        By name of a drafter, in order, the model that it needs; empty for those that need none.

    Raises:
        UnknownNameError: There is no such drafter.
        ConfigError: One that needs a model has none, or the other way round.
    """
    found: dict[str, str] = {}
    for word in filter(None, map(str.strip, (spec or "").split(","))):
        name, _, model = word.partition(":")
        DRAFTERS[name]  # says which there are, if it is none
        if bool(model) != (name in _WITH_A_MODEL):
            raise ConfigError(
                f"the drafter {name} {'does not take' if model else 'needs'} a model.",
                found=f"--spec {spec!r:.100}",
                expected=f"--spec {name}" + ("" if model else ":path/to/small-model"),
            )
        found[name] = model
    if "mtp" in found and "eagle3" in found:
        raise ConfigError(
            "the model's own module and an EAGLE-3 head do not work together.",
            found=f"--spec {spec!r:.100}",
            expected="one of the two",
        )
    return found


def _needed(drafter: Drafter | None) -> Drafter:
    assert drafter is not None, "who builds the engine loads the model that the option names"
    return drafter
