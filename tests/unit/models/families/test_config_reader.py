"""Typed reads: aliases in order, null is absent, a wrong type names its key."""

import pytest

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader

pytestmark = pytest.mark.smoke


def test_the_first_name_present_wins() -> None:
    reader = ConfigReader({"num_heads": 4, "n_heads": 8, "attention": {"num_heads": 16}})
    found = reader.integer("num_attention_heads")
    assert found is not None
    assert (found.value, found.key, found.source) == (4, "num_heads", "config.json: num_heads")


def test_null_counts_as_absent() -> None:
    reader = ConfigReader({"num_attention_heads": None, "num_heads": None, "n_heads": 8})
    found = reader.integer("num_attention_heads")
    assert found is not None
    assert found.key == "n_heads"
    assert ConfigReader({"rms_norm_eps": None}).number("rms_norm_eps") is None


@pytest.mark.parametrize(
    ("raw", "found"), [({}, True), ({"x": None}, False), ({"x": True}, True), ({"x": False}, False)]
)
def test_null_is_not_true(raw: dict[str, object], found: bool) -> None:
    assert ConfigReader(raw).is_true("x", default=True) == found
    assert not ConfigReader({**raw, "x": None}).is_true("x", default=False)
    with pytest.raises(ConfigError, match="'x'"):
        ConfigReader({"x": 1}).is_true("x", default=True)


def test_nested_blocks_are_read() -> None:
    reader = ConfigReader({"ssm": {"num_heads": 6}, "moe": {"num_experts": 3}, "attention": 7})
    assert reader.integer("mamba2_num_heads").value == 6
    assert reader.integer("num_experts").value == 3
    assert reader.integer("num_attention_heads") is None


@pytest.mark.parametrize("value", ["32", 32.5, True, [32], {}, -1, 2**41, float("nan")])
def test_a_wrong_integer_names_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match="'d_model'"):
        ConfigReader({"d_model": value}).integer("hidden_size")


@pytest.mark.parametrize("value", ["1e4", True, 0, -1.0, float("inf"), float("nan"), 10**400, []])
def test_a_wrong_number_names_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match="'rope_theta'"):
        ConfigReader({"rope_theta": value}).number("rope_theta", above=0)


@pytest.mark.parametrize("value", [1, 0, "true", []])
def test_a_wrong_boolean_names_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match="'mamba3_use_conv'"):
        ConfigReader({"mamba3_use_conv": value}).boolean("mamba3_use_conv")


@pytest.mark.parametrize("value", [3, "0,1", [0, "1"], [True], {"0": 1}])
def test_a_wrong_list_names_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match="'mamba_layers'"):
        ConfigReader({"mamba_layers": value}).integers("mamba_layers")


def test_sections_and_texts() -> None:
    reader = ConfigReader({"rope_scaling": {"type": "linear"}, "model_type": 3, "x": []})
    section = reader.section("rope_scaling")
    assert section is not None
    assert section.source == "config.json: rope_scaling"
    assert section.text("type").value == "linear"
    with pytest.raises(ConfigError, match="'model_type'"):
        reader.text("model_type")
    with pytest.raises(ConfigError, match="'x'"):
        reader.section("x")


def test_whole_floats_and_integer_numbers_are_accepted() -> None:
    assert ConfigReader({"hidden_size": 32.0}).integer("hidden_size").value == 32
    assert ConfigReader({"rope_theta": 10000}).number("rope_theta").value == 10000.0


def test_messages_are_short() -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigReader({"hidden_size": "x" * 5000}).integer("hidden_size")
    assert len(str(caught.value)) < 300
