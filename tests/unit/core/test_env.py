"""Only declared variables are read."""

import pytest

from blazr.core import env
from blazr.core.errors import UnknownNameError

pytestmark = pytest.mark.smoke


def test_a_default_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLAZR_DEBUG", raising=False)
    assert env.get("BLAZR_DEBUG") == "0"
    monkeypatch.setenv("BLAZR_DEBUG", "yes")
    assert env.get("BLAZR_DEBUG") == "yes"


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_flags_that_are_set(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_DEBUG", value)
    assert env.flag("BLAZR_DEBUG")


@pytest.mark.parametrize("value", ["", "0", "False", "no", " off "])
def test_flags_that_are_not(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_DEBUG", value)
    assert not env.flag("BLAZR_DEBUG")


def test_an_undeclared_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_DEBUGG", "1")
    with pytest.raises(UnknownNameError, match="did you mean 'BLAZR_DEBUG'"):
        env.get("BLAZR_DEBUGG")
