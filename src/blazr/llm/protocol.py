"""What the text side needs of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from blazr.engine.adapters import Adapter
from blazr.engine.cache.known import Listener
from blazr.engine.outputs import Running, SlotAction, TokenOutput
from blazr.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor, nn

    from blazr.engine.async_engine import Health
    from blazr.engine.cache.disk import DiskCache
    from blazr.nn.operands.lora import LoraFactors

R = TypeVar("R")


class EngineProtocol(Protocol):
    """What is needed of an engine; `blazr.engine.async_engine.AsyncEngine` is the one we have."""

    is_paused: bool

    def submit(self, request: Request, sink: Callable[[TokenOutput], None]) -> int:
        """Queue a request; ``sink`` gets its outputs on the engine's thread."""

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End a request, or one of its replies. Unknown and finished ones are ignored."""

    def logits(self, token_ids: Sequence[int], *, model: nn.Module | None = None) -> Tensor:
        """Logits after each token, (T, V) float32, of the network or of another one like it."""

    def health(self) -> Health:
        """Whether the engine works, and why not."""

    def lasting_failure(self) -> str:
        """Why nothing can be computed any more, whatever is tried; empty while it can."""

    def stats(self) -> Mapping[str, int | float]:
        """Counters and gauges by name."""

    def running(self) -> Sequence[Running]:
        """How far the replies have come that are computed now."""

    def pause(self, *, finishes: bool) -> Future[None]:
        """Stop until `resume`, once what runs has ended or at once; done when it has stopped."""

    def resume(self) -> None:
        """Go on after `pause`."""

    def forget_prefixes(self, *, restarts: bool = False) -> int:
        """Forget what prompts have left for others; how many blocks that were."""

    def watch_prefixes(self, listener: Listener) -> None:
        """Tell a listener which blocks a prompt could go on from, and what changes from now on."""

    def unwatch_prefixes(self, listener: Listener) -> None:
        """Tell a listener nothing any more."""

    def use_slot(self, action: SlotAction, slot: int, name: str) -> int:
        """Save, restore or forget what was last computed in a slot; how many tokens."""

    @property
    def files(self) -> DiskCache | None:
        """Where prefixes are kept on disk, if anywhere."""

    def block_names(self, request: Request) -> list[bytes]:
        """The names on disk of a prompt's blocks."""

    def keep_prompts(self, requests: Sequence[Request]) -> None:
        """Have all that is known of some prompts on disk when this returns."""

    def load_adapter(self, factors: Mapping[str, LoraFactors]) -> Adapter:
        """Hold an adapter beside the network, for requests that name it."""

    def unload_adapter(self, adapter: Adapter) -> None:
        """Let new requests use an adapter no longer."""

    def replace_model(self, model: nn.Module) -> None:
        """Go on with other weights of the same shape."""

    def call(self, work: Callable[[], R]) -> R:
        """Run something between two steps, on the thread that computes them."""

    def close(self) -> None:
        """Stop."""
