"""Which of a token's three positions turns each pair of channels, as configs say it."""

from __future__ import annotations

import pytest

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader
from blazr.models.families.hf.rope import read_rope


def axes(head_dim: int, rope: dict[str, object], **others: object) -> tuple[int, ...]:
    reader = ConfigReader({"rope_parameters": {"rope_theta": 1e6, **rope}, **others}, "config.json")
    return read_rope(reader, head_dim).axes


def test_one_behind_the_other() -> None:
    """Qwen2-VL."""
    assert axes(128, {"type": "mrope", "mrope_section": [16, 24, 24]}) == (
        *(0,) * 16,
        *(1,) * 24,
        *(2,) * 24,
    )


@pytest.mark.parametrize(
    ("said", "others"),
    [({"mrope_interleaved": True}, {}), ({}, {"model_type": "qwen3_vl_text"})],
)
def test_by_turns(said: dict[str, object], others: dict[str, object]) -> None:
    """Qwen3-VL: time takes the pairs that height and width leave."""
    found = axes(128, {"mrope_section": [24, 20, 20], **said}, **others)
    assert found == (*(0, 1, 2) * 20, 0, 0, 0, 0)


def test_part_of_a_head() -> None:
    """Qwen 3.5, whose width has one pair less."""
    said = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}
    found = axes(256, {**said, "partial_rotary_factor": 0.25})
    assert found == (*(0, 1, 2) * 10, 0, 1)


def test_text_alone_has_none() -> None:
    assert axes(128, {}) == ()


@pytest.mark.parametrize("sections", [[16, 24], [16, 24, 25], [-1, 33, 32]])
def test_sections_that_do_not_fit(sections: list[int]) -> None:
    with pytest.raises(ConfigError, match="mrope_section"):
        axes(128, {"mrope_section": sections})
