"""Rules translate names in both directions."""

import pytest

from blazr.models.families.oxidizr import decoder_rules
from blazr.models.families.rules import Placement, Rule, RuleBook, Squeeze, Stack

pytestmark = pytest.mark.smoke

BOOK = RuleBook(
    [
        Rule("embed.weight", "embed_tokens.weight"),
        Rule("layers.{i}.norm.weight", "layers.{i}.mixer_norm.weight"),
        Rule("layers.{i}.conv.weight", "layers.{i}.mixer.conv1d.weight", Squeeze(1)),
        Rule("h.{i}.e.{e}.{p}_proj", "layers.{i}.experts.{p}", Stack("e"), p=("gate", "up")),
        Rule("layers.{i}.old_norm.weight", "layers.{i}.mixer_norm.weight"),
    ]
)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("embed.weight", Placement("embed_tokens.weight", None, None)),
        ("layers.12.norm.weight", Placement("layers.12.mixer_norm.weight", None, None)),
        ("layers.0.conv.weight", Placement("layers.0.mixer.conv1d.weight", None, Squeeze(1))),
        ("h.3.e.17.up_proj", Placement("layers.3.experts.up", 17, Stack("e"))),
        ("h.3.e.17.down_proj", None),
        ("layers.x.norm.weight", None),
        ("layers.#.norm.weight", None),
        ("layers.01.norm.weight", None),
        ("layers.-1.norm.weight", None),
        ("layers.٣.norm.weight", None),
        ("layers." + "9" * 5000 + ".norm.weight", None),
        ("layers.1.norm.weight.extra", None),
        ("", None),
    ],
)
def test_match(name: str, match: Placement | None) -> None:
    assert BOOK.match(name) == match


def test_sources_are_all_names_a_tensor_may_have() -> None:
    assert BOOK.sources("layers.4.mixer_norm.weight") == [
        "layers.4.norm.weight",
        "layers.4.old_norm.weight",
    ]
    assert BOOK.sources("layers.4.experts.gate", 2) == ["h.4.e.2.gate_proj"]
    assert BOOK.sources("layers.4.experts.gate") == ["h.4.e.*.gate_proj"]
    assert BOOK.sources("nothing") == []


@pytest.mark.parametrize("name", ["layers.3.moe.router.gate.weight", "layers.3.moe.gate.weight"])
def test_both_names_of_the_router_are_known(name: str) -> None:
    match = decoder_rules("").match(name)
    assert match == Placement("layers.3.feed_forward.router.weight", None, None)


def test_the_prefix_stands_before_all_but_the_head() -> None:
    rules = decoder_rules("model.")
    assert rules.match("model.layers.0.mlp.up_proj.weight") is not None
    assert rules.match("layers.0.mlp.up_proj.weight") is None
    assert rules.match("lm_head.weight") is not None
    assert rules.match("model.lm_head.weight") is None
