"""The engine in this process, asked in token ids: no text, no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from blazr.bench.load import Record
from blazr.bench.workload import BenchRequest
from blazr.core.metrics import METRICS
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from blazr.engine.async_engine import AsyncEngine


class EngineTarget:
    """An engine to measure. Token times are taken on the engine's thread.

    Args:
        engine: What is asked.
        vocab_size: Ids below it may be asked for.
        speculate: Whether it may compute drafts.
    """

    def __init__(self, engine: AsyncEngine, *, vocab_size: int, speculate: bool = True) -> None:
        self.vocab_size = vocab_size
        self._speculate = speculate
        self._engine = engine

    async def run(self, request: BenchRequest, record: Record, *, salt: str) -> None:
        """Generate greedily, past any end of text.

        Raises:
            BlazrError: The engine refuses the request.
        """
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def take(output: TokenOutput) -> None:
            now_s = perf_counter()
            record.token_s += [now_s] * len(output.token_ids)
            record.output_tokens += len(output.token_ids)
            record.cached_tokens = output.num_cached_tokens
            if output.finish_reason is None:
                return
            if output.finish_reason is FinishReason.ERROR:
                record.error = (output.error or "the engine failed")[:200]
            # the loop is gone when somebody pressed Ctrl+C
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        params = SamplingParams(
            temperature=0,
            max_tokens=request.output_tokens,
            ignore_eos=True,
            speculate=self._speculate,
        )
        engine_request = Request(
            prompt_ids=request.prompt_ids,
            params=params,
            cache_salt=salt,
            anchors=request.cache_anchors,
        )
        request_id = self._engine.submit(engine_request, take)
        try:
            await done.wait()
        finally:
            self._engine.abort(request_id)

    def stats(self) -> Mapping[str, float]:
        """The figures that only grow."""
        counters = {row.figure for row in METRICS.values() if not row.is_gauge}
        return {key: value for key, value in self._engine.stats().items() if key in counters}
