"""Levels from the environment, in the syntax of both variables."""

import logging
from collections.abc import Iterator

import pytest

from blazr.core import log
from blazr.core.errors import ConfigError


@pytest.fixture
def _quiet_after() -> Iterator[None]:
    logger = logging.getLogger("blazr")
    before = (logger.level, list(logger.handlers), logger.propagate)
    # pytest adds handlers of its own where an earlier test has left the logger as `setup` makes it
    logger.handlers[:], logger.propagate = [], True
    yield
    logger.level, logger.handlers[:], logger.propagate = before
    for name in ("blazr.engine", "uvicorn"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("info", {"blazr": logging.INFO}),
        ("blazr=debug", {"blazr": logging.DEBUG}),
        ("warn,blazr::engine=trace", {"blazr": logging.WARNING, "blazr.engine": log.TRACE}),
        ("uvicorn = ERROR", {"uvicorn": logging.ERROR}),
        ("loud, =, blazr=", {}),
        ("", {}),
    ],
)
def test_levels_are_parsed(text: str, levels: dict[str, int]) -> None:
    assert log.parse_levels(text) == levels


@pytest.mark.usefixtures("_quiet_after")
def test_our_variable_goes_before_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_LOG", "error")
    log.setup()
    assert logging.getLogger("blazr").level == logging.ERROR
    monkeypatch.setenv("BLAZR_LOG", "blazr.engine=debug")
    log.setup("info")
    assert logging.getLogger("blazr").level == logging.INFO
    assert logging.getLogger("blazr.engine").level == logging.DEBUG
    assert len(logging.getLogger("blazr").handlers) == 1, "one line a fact"


@pytest.mark.usefixtures("_quiet_after")
def test_a_flag_goes_before_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_LOG", "error")
    log.setup("info", levels="trace")
    assert logging.getLogger("blazr").level == log.TRACE
    assert logging.getLevelName(log.TRACE) == "TRACE"
    with pytest.raises(ConfigError, match="unknown log level"):
        log.setup("info", levels="loud")


def test_once_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test.once")
    for _ in range(3):
        log.once(logger, logging.WARNING, "said in test_once_is_said_once")
    assert len(caplog.records) == 1
