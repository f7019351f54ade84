"""Rules translate names in both directions."""

from itertools import chain
from math import prod

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from blazr.models.families.oxidizr import decoder_rules
from blazr.models.families.rules import (
    AS_STORED,
    Cut,
    DecayLog,
    HeadsOfKinds,
    Mxfp4,
    Pairs,
    Placement,
    Reshape,
    Rule,
    RuleBook,
    Selection,
    Shape,
    Squeeze,
    Stack,
    TiledColumns,
    TiledHeads,
    Transform,
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


# --- laws


def places(rows: tuple[tuple[range, ...], ...]) -> list[list[int]]:
    return [list(chain(*own)) for own in rows]


SIZES = st.integers(0, 4)


@given(sizes=st.lists(SIZES, min_size=1, max_size=4), dim=st.integers(0, 1), rest=SIZES)
def test_rows_behind_each_other(sizes: list[int], dim: int, rest: int) -> None:
    shapes = [(rest, size, 5)[1 - dim :] for size in sizes]
    whole = Cut(dim).whole(shapes)
    assert whole == (rest, sum(sizes), 5)[1 - dim :]
    found = places(Cut(dim).rows(shapes))
    assert list(map(len, found)) == sizes
    assert list(chain(*found)) == list(range(whole[dim]))


@given(sizes=st.lists(SIZES, min_size=1, max_size=4), groups=st.integers(1, 4))
def test_every_group_has_rows_of_every_parameter(sizes: list[int], groups: int) -> None:
    shapes = [(groups * size, 5) for size in sizes]
    cut = Cut(groups=groups)
    whole = torch.arange(cut.whole(shapes)[0]).view(groups, sum(sizes))
    expected = [each.flatten().tolist() for each in whole.split(sizes, 1)]
    assert places(cut.rows(shapes)) == expected
    heads = [(groups, size, 5) for size in sizes]
    assert Cut(groups="heads").whole(heads) == (whole.numel(), 5)
    assert places(Cut(groups="heads").rows(heads)) == expected


@given(count=st.integers(1, 4), size=SIZES)
def test_rows_in_turns_and_rows_of_all(count: int, size: int) -> None:
    shapes = [(size, 5)] * count
    found = places(Cut(groups="rows").rows(shapes))
    assert found == torch.arange(size * count).view(size, count).T.tolist()
    assert Cut(groups="all").whole(shapes) == (size, 5)
    assert places(Cut(groups="all").rows(shapes)) == [list(range(size))] * count


@given(heads=st.integers(1, 3), kinds=st.lists(st.lists(SIZES, max_size=3), max_size=3))
def test_rows_of_kinds_are_those_of_every_head(heads: int, kinds: list[list[int]]) -> None:
    cut = HeadsOfKinds(heads, tuple(map(tuple, kinds)))
    size = sum(map(sum, kinds))
    assume(size)
    assert cut.whole([(7, 5, 3)]) == (heads * size, 5, 3)
    whole = torch.arange(heads * size).view(heads, size)
    parts = iter(whole.split(list(chain(*kinds)), 1))
    expected = [[row for _ in own for row in next(parts).flatten().tolist()] for own in kinds]
    assert places(cut.rows([])) == expected


@given(heads=st.integers(0, 3), pairs=st.integers(0, 3), rest=st.integers(0, 3))
def test_halves_of_pairs_lie_apart(heads: int, pairs: int, rest: int) -> None:
    size = 2 * pairs + rest
    assume(size)
    whole = torch.arange(heads * size).view(heads, size)
    turned, same = whole[:, : 2 * pairs], whole[:, 2 * pairs :]
    turned = turned.reshape(heads, pairs, 2).transpose(1, 2).flatten(1)
    cut = Pairs(size, 2 * pairs)
    assert cut.whole([(heads * size,)]) == (heads * size,)
    assert places(cut.rows([(heads * size,)])) == [torch.cat((turned, same), 1).flatten().tolist()]


@given(keys=st.integers(1, 3), each=st.integers(1, 3), size=SIZES, before=SIZES)
def test_heads_of_a_key_lie_side_by_side(keys: int, each: int, size: int, before: int) -> None:
    tiled = TiledHeads(keys, keys * each, before)
    number = keys * each
    assert tiled.order() == torch.arange(number).view(each, keys).T.flatten().tolist()
    assert [tiled.order()[at] for at in tiled.stored_order()] == list(range(number))
    rows = before + number * size
    values = torch.arange(before, rows).view(number, size)[tiled.order()].flatten()
    assert tiled.whole([(rows, 5)]) == (rows, 5)
    assert places(tiled.rows([(rows, 5)])) == [list(range(before)) + values.tolist()]


@pytest.mark.parametrize(
    "transform",
    [
        AS_STORED,
        Squeeze(0),
        Squeeze(1),
        Squeeze(2),
        DecayLog(),
        Reshape(),
        Transpose(),
        TiledColumns(TiledHeads(2, 6)),
    ],
    ids=str,
)
def test_what_is_written_is_read_again(transform: Transform) -> None:
    shape = (4, 12)
    numbers = torch.randn(shape)
    stored = transform.write(numbers)
    assert stored.shape == transform.stored_shape(shape)
    assert transform.fits(tuple(stored.shape), transform.stored_shape(shape))
    assert not transform.fits((*stored.shape, 2), transform.stored_shape(shape))
    found = transform.read(stored)
    assert found.shape == shape
    assert torch.allclose(found, numbers, rtol=1e-5, atol=1e-6)
    assert transform.slots(shape) == (None,)
    assert transform.slot_of({"i": "3"}) is None
    assert transform.numbers_of(5) == {}


def test_only_sizes_of_one_may_come_and_go_beside_decay_rates() -> None:
    assert DecayLog().fits((4, 1), (4,))
    assert DecayLog().fits((1, 4), (4, 1))
    assert not DecayLog().fits((2, 2), (4,))
    assert Reshape().fits((2, 2), (4,))
    assert not AS_STORED.fits((4, 1), (4,))
    rates = torch.tensor([[0.5], [-1.0], [2.0]])
    assert torch.equal(DecayLog().write(rates), -rates.exp())
    assert DecayLog().read(-torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32


def test_columns_of_heads_change_places() -> None:
    tiled = TiledColumns(TiledHeads(2, 4))
    assert tiled.read(torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7]])).tolist() == [
        [0, 1, 4, 5, 2, 3, 6, 7]
    ]


@pytest.mark.parametrize("shape", [(3, 4, 64), (1, 64)])
def test_slots_and_the_numbers_in_names(shape: Shape) -> None:
    stack = Stack("e")
    assert list(stack.slots(shape)) == list(range(shape[0]))
    assert stack.stored_shape(shape) == shape[1:]
    for slot in stack.slots(shape):
        assert stack.slot_of(stack.numbers_of(slot)) == slot
    for part in (0, 1):
        half = Mxfp4(part)
        assert tuple(half.slots(shape)) == (0, 1)
        assert half.slot_of({}) == part
        assert [half.numbers_of(slot) for slot in (0, 1)] == [
            {} if s == part else None for s in (0, 1)
        ]
    assert Mxfp4(0).stored_shape(shape) == (*shape[:-1], 2, 16)
    assert prod(Mxfp4(1).stored_shape(shape)) * 32 == prod(shape)


@pytest.mark.parametrize("book", [BOOK, decoder_rules("model."), decoder_rules("")])
@given(layer=st.integers(0, 999), slot=st.integers(0, 999))
def test_each_name_leads_there_and_back(book: RuleBook, layer: int, slot: int) -> None:
    ours = [
        "embed_tokens.weight",
        f"layers.{layer}.mixer_norm.weight",
        f"layers.{layer}.mixer.conv1d.weight",
        f"layers.{layer}.feed_forward.experts.gate_proj",
        f"layers.{layer}.experts.up",
    ]
    for parameter in ours:
        for name in book.sources(parameter, slot):
            found = {(each.parameter, each.slot) for each in book.placements(name)}
            assert found <= {(parameter, slot), (parameter, None)} != set()


def test_a_rule_about_one_tensor_goes_before_those_about_many() -> None:
    for rules in ([0, 1], [1, 0]):
        both = [Rule("h.{i}.w", "layers.{i}.w"), Rule("h.1.w", "one.w")]
        book = RuleBook([both[n] for n in rules])
        assert book.match("h.1.w") == Placement("one.w", None)
        assert book.match("h.2.w") == Placement("layers.2.w", None)
        assert book.sources("one.w") == ["h.1.w"]


def test_numbers_may_change_places_and_be_left_out() -> None:
    book = RuleBook([Rule("a.{e}.b.{i}.c.{k}", "layers.{i}.{e}")])
    assert book.match("a.7.b.3.c.9") == Placement("layers.3.7", None)
    assert book.sources("layers.3.7") == ["a.7.b.3.c.*"]
    assert RuleBook([Rule("a.{i}.b", "all")]).sources("all") == ["a.*.b"]
    one = Rule("h.{i}.e.{e}", "layers.{i}.x", Stack("e")).of_layer("4")
    assert RuleBook([one]).sources("layers.4.x", 7) == ["h.4.e.7"]


def test_names_begin_otherwise_where_that_is_said() -> None:
    book = RuleBook(BOOK._rules, {"text.": "embed.", "last.": "layers.9."})
    assert book.match("text.weight") == BOOK.match("embed.weight")
    assert book.match("last.norm.weight") == BOOK.match("layers.9.norm.weight")
    assert book.sources("layers.9.mixer_norm.weight")[0] == "last.norm.weight"
    assert book.match("x.last.norm.weight") is None


def test_what_names_of_layers_begin_with() -> None:
    assert BOOK.layer_beginnings == ("layers.", "h.")
    assert RuleBook([Rule("embed", "embed"), Rule("h.{i}", "x.{i}")]).layer_beginnings == ()


def test_a_rule_of_one_layer() -> None:
    rule = Rule("h.{i}.e.{e}", ("layers.{i}.a", "layers.{i}.b"), Stack("e"), cut=Cut(1))
    found = rule.of_layer("4")
    assert (found.source, found.targets) == ("h.4.e.{e}", ("layers.4.a", "layers.4.b"))
    assert (found.transform, found.cut) == (rule.transform, rule.cut)
    assert Rule("h.{i}", "layers.{i}").of_layer("4").targets == ("layers.4",)


# --- the module for multi-token prediction

MTP_BOOK = RuleBook(
    [
        Rule("embed.weight", "embed_tokens.weight"),
        Rule("h.{i}.norm.weight", "layers.{i}.mixer_norm.weight"),
        Rule("h.{i}.e.{e}.{p}", "layers.{i}.experts.{p}", Stack("e"), p=("gate", "up")),
        Rule("h.{i}.outside", "outside.{i}"),
        Rule("h.{i}.ab", ("layers.{i}.a", "layers.{i}.b"), cut=Cut(1)),
        Rule("h.2.norm.weight", "layers.2.other.weight"),
        Rule("h.2.own", "layers.2.own"),
        Rule("h.2.fixed", "fixed"),
    ]
).with_mtp("h.2.")


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("h.2.e.5.up", "mtp.layers.0.experts.up"),
        ("h.2.norm.weight", "mtp.layers.0.other.weight"),
        ("h.2.own", "mtp.layers.0.own"),
        ("h.2.ab", "mtp.layers.0.a"),
        ("h.2.enorm.weight", "mtp.embedding_norm.weight"),
        ("h.2.hnorm.weight", "mtp.hidden_norm.weight"),
        ("h.2.eh_proj.weight", "mtp.projection.weight"),
        ("h.2.shared_head.norm.weight", "mtp.norm.weight"),
        ("h.2.nextn.eh_proj.weight", "mtp.projection.weight"),
        ("h.2.nextn.enorm.weight", "mtp.embedding_norm.weight"),
        ("h.2.nextn.hnorm.weight", "mtp.hidden_norm.weight"),
        ("h.2.nextn.shared_head_norm.weight", "mtp.norm.weight"),
        ("mtp.fc.weight", "mtp.projection.weight"),
        ("mtp.pre_fc_norm_embedding.weight", "mtp.embedding_norm.weight"),
        ("mtp.pre_fc_norm_hidden.weight", "mtp.hidden_norm.weight"),
        ("mtp.norm.weight", "mtp.norm.weight"),
        ("h.1.norm.weight", "layers.1.mixer_norm.weight"),
        ("h.1.e.5.up", "layers.1.experts.up"),
        ("embed.weight", "embed_tokens.weight"),
        ("h.2.outside", None),
        ("h.2.fixed", None),
        ("h.2.embed.weight", None),
        ("mtp.", None),
    ],
)
def test_the_layer_of_the_module_goes_on_as_others(name: str, parameter: str | None) -> None:
    found = MTP_BOOK.match(name)
    assert (found and found.parameter) == parameter
    if parameter is not None and name.startswith("h."):
        assert name in MTP_BOOK.sources(parameter, found.slot if found else None)


def test_rules_of_the_module_keep_what_happens_on_the_way() -> None:
    assert MTP_BOOK.match("h.2.e.5.up") == Placement("mtp.layers.0.experts.up", 5, Stack("e"))
    assert MTP_BOOK.placements("h.2.ab") == (
        Placement("mtp.layers.0.a", None, cut=Cut(1)),
        Placement("mtp.layers.0.b", None, cut=Cut(1)),
    )
