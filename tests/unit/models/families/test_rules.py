"""Rules translate names in both directions."""

import pytest

from blazr.models.families.oxidizr import decoder_rules
from blazr.models.families.rules import (
    AS_STORED,
    Cut,
    HeadsOfKinds,
    Mxfp4,
    Pairs,
    Placement,
    Rule,
    RuleBook,
    Selection,
    Shape,
    Squeeze,
    Stack,
    TiledHeads,
    Transpose,
)

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
        ("embed.weight", Placement("embed_tokens.weight", None)),
        ("layers.12.norm.weight", Placement("layers.12.mixer_norm.weight", None)),
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
    assert match == Placement("layers.3.feed_forward.router.weight", None)


def test_the_prefix_stands_before_all_but_the_head() -> None:
    rules = decoder_rules("model.")
    assert rules.match("model.layers.0.mlp.up_proj.weight") is not None
    assert rules.match("layers.0.mlp.up_proj.weight") is None
    assert rules.match("lm_head.weight") is not None
    assert rules.match("model.lm_head.weight") is None


@pytest.mark.parametrize("part", [0, 1])
def test_each_half_of_four_bit_numbers_has_its_own_tensor(part: int) -> None:
    ends = ("blocks", "scales")
    rules = [Rule(f"h.{{i}}.{end}", "layers.{i}.w", Mxfp4(n)) for n, end in enumerate(ends)]
    assert RuleBook(rules).sources("layers.3.w", part) == [f"h.3.{ends[part]}"]


def test_a_tensor_of_several_parameters_names_them_in_the_order_of_its_rows() -> None:
    cut = Cut(dim=1, groups="rows")
    book = RuleBook(
        [
            Rule("h.{i}.kv", ("layers.{i}.k", "layers.{i}.v"), (Transpose(), AS_STORED)),
            Rule("h.{i}.{p}_both", ("layers.{i}.{p}.a", "layers.{i}.{p}.b"), cut=cut, p=("x",)),
            Rule("h.{i}.v", "layers.{i}.v"),
        ]
    )
    assert book.placements("h.3.kv") == (
        Placement("layers.3.k", None, Transpose(), Cut()),
        Placement("layers.3.v", None, cut=Cut()),
    )
    names = [each.parameter for each in book.placements("h.3.x_both")]
    assert names == ["layers.3.x.a", "layers.3.x.b"]
    assert book.sources("layers.3.v") == ["h.3.kv", "h.3.v"]
    assert book.placements("h.3.y_both") == ()


@pytest.mark.parametrize(
    ("cut", "shapes", "whole", "rows"),
    [
        (Cut(), [(2, 5), (3, 5)], (5, 5), ([0, 1], [2, 3, 4])),
        (Cut(1, "rows"), [(7, 2, 5), (7, 2, 5)], (7, 4, 5), ([0, 2], [1, 3])),
        (Cut(groups=2), [(2,), (4,)], (6,), ([0, 3], [1, 2, 4, 5])),
        (Cut(groups="all"), [(2, 5), (2, 5)], (2, 5), ([0, 1], [0, 1])),
        (Cut(groups="heads"), [(2, 1, 5), (2, 2, 5)], (6, 5), ([0, 3], [1, 2, 4, 5])),
        (
            HeadsOfKinds(2, ((1, 2), (1,))),
            [(6, 5), (2, 5)],
            (8, 5),
            ([0, 4, 1, 2, 5, 6], [3, 7]),
        ),
        (Pairs(6, 4), [(12,)], (12,), ([0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11],)),
        (TiledHeads(2, 4), [(4,)], (4,), ([0, 2, 1, 3],)),
        (TiledHeads(2, 4, 3), [(11, 9)], (11, 9), ([0, 1, 2, 3, 4, 7, 8, 5, 6, 9, 10],)),
    ],
    ids=str,
)
def test_which_rows_a_parameter_has(
    cut: Selection, shapes: list[Shape], whole: Shape, rows: tuple[list[int], ...]
) -> None:
    assert cut.whole(shapes) == whole
    assert tuple([place for each in own for place in each] for own in cut.rows(shapes)) == rows
