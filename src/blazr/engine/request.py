"""What is asked of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from blazr.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue.

    Args:
        prompt_ids: The prompt, at least one token, every id below the model's vocabulary size.
        params: How to sample.
        stop_ids: Ids that end the reply unless ``params.ignore_eos``: the model's own.
        priority: Lower runs first; equal ones in order of arrival.
        cache_salt: Prefixes are shared only between requests of the same salt.
        timeout_s: Seconds after which the request ends with an error, or None.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
