"""What is asked: prompts, lengths and arrivals, the same ones whenever the seed is."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec.structs import asdict, replace

from blazr.core.errors import ConfigError

MOST_TOKENS = 2**24  # of a prompt or a reply: prompts are made before any server can refuse them
_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
_TokenId = Annotated[int, msgspec.Meta(ge=0)]


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request, and one line of a workload's file, where each field may be left out.

    Args:
        prompt_ids: The prompt; empty draws one.
        prompt_tokens: Length of a drawn prompt.
        output_tokens: How many tokens are generated, whatever they are.
        cache_anchors: Where later prompts will part from it; see `blazr.engine.request.Request`.
        arrival_s: When it is due, in seconds from the start; None leaves that to the rate.
    """

    prompt_ids: tuple[_TokenId, ...] = ()
    prompt_tokens: _Count = 128
    output_tokens: _Count = 64
    cache_anchors: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    arrival_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests as they are described; `draw` completes them.

    Args:
        requests: One description per request, from the first again when there are too few.
        shared_prefix: Tokens that drawn prompts have in common; a shorter prompt is nothing else.
        rate: Requests a second, arriving at random (Poisson); infinity is as soon as there is room.
        seed: Of prompts and arrivals.

    Raises:
        ConfigError: A value is out of range.
    """

    requests: Sequence[BenchRequest]
    shared_prefix: int = 0
    rate: float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.requests:
            raise ConfigError("the workload is empty.", expected="at least one request")
        if not self.rate > 0:
            raise ConfigError("the rate is out of range.", found=str(self.rate), expected="above 0")

    def draw(self, count: int, *, vocab_size: int, salt: str) -> list[BenchRequest]:
        """The first requests, each from the seed, the salt and its number alone.

        Ids are drawn evenly from those below ``vocab_size``.
        """

        def chance(name: str) -> Random:
            return Random(f"{self.seed}/{salt}/{name}")

        def ids(name: str, length: int) -> tuple[int, ...]:
            return tuple(chance(name).choices(range(vocab_size), k=length))

        prefix = ids("prefix", self.shared_prefix)
        due: list[float | None] = [None] * count
        if self.rate < math.inf:
            arrivals = chance("arrivals")
            gaps = (arrivals.expovariate(self.rate) for _ in range(count - 1))
            due[:] = accumulate(gaps, initial=0.0)
        drawn = []
        for number in range(count):
            request = self.requests[number % len(self.requests)]
            suffix = ids(str(number), max(request.prompt_tokens - len(prefix), 0))
            prompt = request.prompt_ids or (prefix + suffix)[: request.prompt_tokens]
            arrival_s = due[number] if request.arrival_s is None else request.arrival_s
            drawn.append(replace(request, prompt_ids=prompt, arrival_s=arrival_s))
        return drawn


def read_workload(path: Path, default: BenchRequest) -> list[BenchRequest]:
    """Read requests from JSON lines; ``default`` stands for what a line leaves out.

    Blank lines are skipped.

    Raises:
        ConfigError: The file cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise ConfigError("the workload cannot be read.", found=str(error)[:200]) from None
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, object])
            requests.append(msgspec.convert(asdict(default) | row, BenchRequest))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"line {number} of the workload is wrong.",
                found=str(error)[:100],
                expected=f"some of {', '.join(BenchRequest.__struct_fields__)}",
            ) from None
    return requests
