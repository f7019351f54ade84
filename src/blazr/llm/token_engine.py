"""The face of an engine, as the text side sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from blazr.engine.outputs import Running, TokenOutput
from blazr.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.engine.async_engine import Health


class TokenEngine(Protocol):
    """What is needed of an engine; `blazr.engine.async_engine.AsyncEngine` is the one we have."""

    def submit(self, request: Request, sink: Callable[[TokenOutput], None]) -> int:
        """Queue a request; ``sink`` gets its outputs on the engine's thread."""

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End a request, or one of its replies. Unknown and finished ones are ignored."""

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, (T, V) float32."""

    def health(self) -> Health:
        """Whether the engine works, and why not."""

    def stats(self) -> Mapping[str, int | float]:
        """Counters and gauges by name."""

    def running(self) -> Sequence[Running]:
        """How far the replies have come that are computed now."""

    def close(self) -> None:
        """Stop."""
