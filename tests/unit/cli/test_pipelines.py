"""What the commands share that write images and sounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from blazr.cli.pipelines import format_of
from blazr.core.errors import ConfigError

FORMATS = {".jpg": "jpeg", ".png": "png"}


@pytest.mark.parametrize(("name", "found"), [("a.png", "png"), ("a.b.JPG", "jpeg")])
def test_a_suffix_names_the_format(name: str, found: str) -> None:
    assert format_of(Path(name), FORMATS, kind="image") == found


@pytest.mark.parametrize(("name", "told"), [("a.gif", "the suffix .gif"), ("png", "no suffix")])
def test_another_suffix_is_refused_with_what_there_is(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match="the format of the image file is not known") as caught:
        format_of(Path(name), FORMATS, kind="image")
    assert (caught.value.found, caught.value.expected) == (told, ".jpg, .png")
