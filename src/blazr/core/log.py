"""Logging: one line a fact on stderr; levels from ``BLAZR_LOG`` in the ``target=level`` syntax."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from blazr.core import env
from blazr.core.errors import ConfigError

TRACE = 5
"""Below DEBUG: a line for each step of the engine."""

_LEVELS = {
    "off": logging.CRITICAL + 10,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}
_MOST_HELD = 10_000  # lines
_seen: set[tuple[str, str]] = set()


def parse_levels(text: str) -> dict[str, int]:
    """Parse ``"info"``, ``"blazr=debug"`` or ``"warn,blazr::engine=debug"`` to levels by logger.

    Words that are no level are ignored, as the syntax's other readers do.
    """
    levels: dict[str, int] = {}
    for part in text.split(","):
        target, separator, level = part.strip().rpartition("=")
        name = target.strip().replace("::", ".") if separator else "blazr"
        if level.strip().lower() in _LEVELS:
            levels[name] = _LEVELS[level.strip().lower()]
    return levels


def setup(default: str = "warn", *, levels: str | None = None) -> None:
    """Send blazr's log lines to stderr at the level that is asked for.

    Args:
        default: Level when nothing else is set.
        levels: What a flag says, in the same syntax; else ``BLAZR_LOG``, else ``RUST_LOG``.

    Raises:
        ConfigError: The flag names no level.
    """
    if levels is not None and not parse_levels(levels):
        raise ConfigError(
            "unknown log level.",
            found=repr(levels)[:100],
            expected=f"{', '.join(_LEVELS)}, or blazr.engine=debug",
        )
    logging.addLevelName(TRACE, "TRACE")
    logger = logging.getLogger("blazr")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    text = levels or env.get("BLAZR_LOG") or env.get("RUST_LOG") or default
    logger.setLevel(_LEVELS.get(default, logging.WARNING))
    for name, level in parse_levels(text).items():
        logging.getLogger(name).setLevel(level)


def write_line(text: str) -> None:
    """Write a line to stderr; where that takes nothing, go on without.

    A full disk and a pipe whose reader has ended are no reason to stop a server.
    """
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@contextmanager
def held_back() -> Iterator[None]:
    """Hold log lines back until the end, or an error: they would break into what is printed."""
    from logging.handlers import MemoryHandler  # brings sockets, which few commands need

    logger = logging.getLogger("blazr")
    handlers = logger.handlers.copy()
    buffers = [MemoryHandler(_MOST_HELD, logging.ERROR, each) for each in handlers]
    logger.handlers[:] = buffers
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        for buffer in buffers:
            buffer.close()  # which writes what it holds


def once(logger: logging.Logger, level: int, message: str) -> None:
    """Log a message the first time it is said, never again in this process."""
    key = (logger.name, message)
    if key not in _seen:
        _seen.add(key)
        logger.log(level, message)
