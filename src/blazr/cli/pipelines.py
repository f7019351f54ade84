"""What the commands share whose model another library runs as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from blazr.cli import options
from blazr.core.errors import ConfigError
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


def format_of(path: Path, formats: Mapping[str, str], *, kind: str) -> str:
    """The format that the suffix of a file to write stands for.

    Args:
        path: The file.
        formats: Formats by suffix, in lower case and with its dot.
        kind: What the file holds, for the message.

    Raises:
        ConfigError: The suffix stands for none.
    """
    found = formats.get(path.suffix.lower())
    if found is None:
        raise ConfigError(
            f"the format of the {kind} file is not known.",
            found=f"the suffix {path.suffix[:20]}" if path.suffix else "no suffix",
            expected=", ".join(formats),
        )
    return found


class CallbackOutlet(Generic[T]):
    """Passes the items of a pipeline's work to a function; nothing but Ctrl-C ends the work.

    Args:
        callback: Called with each item.
    """

    def __init__(self, callback: Callable[[T], None]) -> None:
        self._callback = callback

    def emit(self, item: T) -> None:
        """Pass an item on."""
        self._callback(item)

    def check(self) -> None:
        """Let the work go on."""
