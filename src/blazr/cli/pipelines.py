"""What commands have in common whose model another library runs as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from blazr.cli import options
from blazr.core.garbage import frozen_after
from blazr.llm.options import LoadOptions

if TYPE_CHECKING:
    from blazr.pipelines.pipeline import Pipeline

T = TypeVar("T")


@contextmanager
def open_pipeline(
    model: str, *, revision: str | None = None, device: str, dtype: str, threads: int | None
) -> Iterator[Pipeline | None]:
    """Load a model, and let go of it when the block ends; None where it is a language model.

    Raises:
        BlazrError: It cannot be loaded.
    """
    # torch comes with it, which takes a second
    from blazr.llm.load import load_pipeline

    options.set_threads(threads)
    with frozen_after():
        given = LoadOptions(model, revision=revision, device=device, dtype=dtype)
        pipeline = load_pipeline(given)
    try:
        yield pipeline
    finally:
        if pipeline is not None:
            pipeline.close()


class Taker(Generic[T]):
    """An outlet of work that nobody ends but by Ctrl-C.

    Args:
        take: Gets each item.
    """

    def __init__(self, take: Callable[[T], None]) -> None:
        self._take = take

    def emit(self, item: T) -> None:
        """Take an item."""
        self._take(item)

    def check(self) -> None:
        """Never end."""
