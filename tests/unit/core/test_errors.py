"""Errors show their parts, each on a line of its own."""

import pickle

import pytest

from blazr.core.errors import BlazrError, CheckpointError, RequestError, said_by

pytestmark = pytest.mark.smoke


def test_parts_are_shown_in_order() -> None:
    error = CheckpointError("it does not fit.", found="a\nb", expected="c", hint="d")
    assert str(error).splitlines() == [
        "it does not fit.",
        "  found     a",
        "            b",
        "  expected  c",
        "  try       d",
    ]


def test_parts_that_are_missing_are_not_shown() -> None:
    assert str(BlazrError("only this.")) == "only this."


def test_a_request_error_names_the_field() -> None:
    with pytest.raises(BlazrError) as raised:
        raise RequestError("no.", param="top_p", found="2")
    assert isinstance(raised.value, RequestError)
    assert raised.value.param == "top_p"


def test_an_error_survives_being_sent_elsewhere() -> None:
    copy = pickle.loads(pickle.dumps(CheckpointError("no.")))
    assert (type(copy), copy.message) == (CheckpointError, "no.")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cannot identify image file <_io.BytesIO object at 0x7f>", "cannot identify the file"),
        (
            "Error opening <_io.BytesIO object at 0x7f>: no format",
            "Error opening the file: no format",
        ),
        ("image file is truncated", "image file is truncated"),
    ],
)
def test_what_libraries_say_of_objects_names_the_file(said: str, shown: str) -> None:
    assert said_by(OSError(said)) == shown
