"""What is asked of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from blazr.engine.adapters import Adapter
from blazr.engine.constraint import Constraint
from blazr.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbeddings:
    """Vectors that stand for some of a prompt's tokens, instead of the embeddings of their ids.

    Args:
        start: The first of these tokens, counted from the beginning of the prompt.
        vectors: One for each of the tokens, (N, C), as the first layer takes them.
        added: What is added to these tokens behind each of the first L layers, (L, N, C); None for
            nothing.
        digest: 32 bytes that other vectors do not have: a prefix is shared only where it is equal.
        grid: Rows and columns of an image whose tokens have positions of their own for rotary
            embeddings: see `blazr.engine.positions`.
        times: Where each image of that grid stands in time: one for an image, several for a video.
        is_bidirectional: Whether each of the tokens attends to all of them, later ones too; they
            are then computed in one step.
    """

    start: int
    vectors: Tensor = field(compare=False)
    digest: bytes
    added: Tensor | None = field(default=None, compare=False)
    grid: tuple[int, int] | None = None
    times: tuple[int, ...] = (0,)
    is_bidirectional: bool = False

    @property
    def end(self) -> int:
        """The first token behind them."""
        return self.start + len(self.vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue.

    Args:
        prompt_ids: The prompt, at least one token, every id below the model's vocabulary size.
        embeddings: What stands for some of its tokens, such as those of an image; in ascending
            order, without overlap.
        is_bidirectional: Whether each token of the prompt attends to all of it, whatever the
            window; it is then computed in one step, and only the same prompt shares its prefixes.
        inputs: What a network of another library takes beside the tokens of the prompt.
        params: How to sample.
        stop_ids: Ids that end the reply unless ``params.ignore_eos``: the model's own.
        priority: Lower runs first; equal ones in order of arrival.
        cache_salt: Prefixes are shared only between requests of the same salt.
        client: Who asks: the names of its groups, then its own. Those who wait are served in turn;
            without a name, in order of arrival.
        timeout_s: Seconds after which the request ends with an error, or None.
        constraint: What every reply must follow, at its beginning; replies fork their own.
        anchors: Places in the prompt, in tokens, where a later request is likely to part from it.
            A recurrent state is kept at the last grid edge before each, where there is room.
        dry_breakers: Ids that no repetition goes beyond, for ``params.dry_multiplier``.
        bad_words: Ids that may not come one after the other, for ``params.bad_words``.
        adapter: What changes the network for it, if anything does; its ``cache_salt`` then says so.
        pooling: Ask for one vector instead of tokens: the mean of the hidden states of the prompt,
            or the last one, after the final norm.
    """

    prompt_ids: tuple[int, ...]
    embeddings: tuple[PromptEmbeddings, ...] = ()
    is_bidirectional: bool = False
    inputs: Mapping[str, Tensor] | None = field(default=None, compare=False)
    params: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    client: tuple[str, ...] = ()
    timeout_s: float | None = None
    constraint: Constraint | None = None
    anchors: tuple[int, ...] = ()
    dry_breakers: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    adapter: Adapter | None = None
    pooling: Pooling | None = None
