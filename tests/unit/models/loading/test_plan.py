"""Plans are complete or say everything that is wrong at once, and are made in a moment."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blazr.core.errors import CheckpointError
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.oxidizr import OXIDIZR
from blazr.models.families.rules import Rule, RuleBook, Squeeze, Stack
from blazr.models.loading.plan import LoadPlan, plan_load
from tests.support import tiny
from tests.support.tiny import Tiny

RULES = RuleBook(
    [
        Rule("a.{i}.w", "p.{i}.w"),
        Rule("b.{i}.w", "p.{i}.w"),
        Rule("conv.{i}", "conv.{i}", Squeeze(1)),
        Rule("x.{i}.{e}", "stack.{i}", Stack("e")),
    ]
)
PARAMETERS = {"p.0.w": (2, 3), "conv.0": (4, 5), "stack.0": (2, 6)}
SHAPES = {"a.0.w": (2, 3), "conv.0": (4, 1, 5), "x.0.0": (6,), "x.0.1": (6,)}


def plan(shapes: tiny.Shapes, ignored: tuple[str, ...] = ()) -> LoadPlan:
    return plan_load(tiny.from_shapes(shapes).tensors, PARAMETERS, RULES, ignored=ignored)


def complaints(shapes: tiny.Shapes) -> list[tuple[str, str]]:
    return [(problem.kind, problem.name) for problem in plan(shapes).problems]


def test_a_complete_plan_is_in_the_order_of_the_bytes() -> None:
    found = plan({name: SHAPES[name] for name in ("x.0.1", "conv.0", "x.0.0", "a.0.w")})
    found.check()
    assert [step.parameter for step in found.steps] == ["conv.0", "stack.0", "p.0.w"]
    assert [info.name for info in found.steps[1].sources] == ["x.0.0", "x.0.1"]


def test_everything_wrong_is_reported_at_once() -> None:
    found = complaints(
        {"a.0.w": (2, 3), "b.0.w": (2, 3), "conv.0": (4, 5), "x.0.1": (6,), "x.0.2": (6,), "y": ()}
    )
    assert found == [
        ("ambiguous", "b.0.w"),
        ("wrong shape", "conv.0"),
        ("missing", "x.0.0"),
        ("left over", "x.0.2"),
        ("left over", "y"),
    ]


@pytest.mark.parametrize("names", [("x.0.0", "x.0.1", "x.0"), ("x.0", "x.0.1", "x.0.0")])
def test_the_same_whole_and_in_parts_is_ambiguous(names: tuple[str, ...]) -> None:
    both = RuleBook([Rule("x.{i}", "stack.{i}"), Rule("x.{i}.{e}", "stack.{i}", Stack("e"))])
    shapes = {name: (2, 6) if name == "x.0" else (6,) for name in names}
    found = plan_load(tiny.from_shapes(shapes).tensors, {"stack.0": (2, 6)}, both)
    [problem] = found.problems
    assert problem.kind == "ambiguous"
    assert {problem.name.count("."), problem.detail.split()[1].count(".")} == {1, 2}


@pytest.mark.parametrize("name", SHAPES)
def test_each_missing_tensor_is_named_as_the_file_would(name: str) -> None:
    shapes = {n: shape for n, shape in SHAPES.items() if n != name}
    assert complaints(shapes) == [("missing", name)]


@pytest.mark.parametrize("name", SHAPES)
def test_each_wrong_shape_says_both(name: str) -> None:
    shapes = SHAPES | {name: (*SHAPES[name], 1)}
    (problem,) = plan(shapes).problems
    assert (problem.kind, problem.name) == ("wrong shape", name)
    assert str(list(SHAPES[name])) in problem.detail
    assert str(list(shapes[name])) in problem.detail


def test_the_message_says_what_to_look_at() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if name != "a.0.w"} | {"a.0.ww": (2, 3)}
    with pytest.raises(CheckpointError, match=r"a\.0\.w is missing, among 2 problems") as caught:
        plan(shapes).check()
    assert "nearest left over: a.0.ww" in caught.value.found


def test_ignored_tensors_are_listed_and_do_no_harm() -> None:
    found = plan(SHAPES | {"a.0.inv_freq": (3,)}, ignored=(".inv_freq",))
    found.check()
    assert found.ignored == ("a.0.inv_freq",)


def test_a_long_list_is_cut() -> None:
    with pytest.raises(CheckpointError) as caught:
        plan(SHAPES | {f"extra.{n}.{'y' * 500}": (1,) for n in range(500)}).check()
    assert "and 488 more" in caught.value.found
    assert len(str(caught.value)) < 5000


def large(num_layers: int, num_experts: int) -> Checkpoint:
    model = Tiny(layers=("MlaWithMoe",) * num_layers, num_experts=num_experts)
    return tiny.checkpoint(model, tiny.config(model))


def plan_oxidizr(checkpoint: Checkpoint) -> LoadPlan:
    with torch.device("meta"):
        module = CausalLM(OXIDIZR.derive(checkpoint).config)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return plan_load(checkpoint.tensors, shapes, OXIDIZR.rules)


# a plan takes about a second here; one that looked at all tensors for each would take hours


@pytest.mark.timeout(60)
def test_48_000_expert_tensors_are_planned_in_linear_time() -> None:
    checkpoint = large(62, 256)
    assert len(checkpoint.tensors) > 48_000
    plan_oxidizr(checkpoint).check()


@pytest.mark.timeout(60)
def test_48_000_misnamed_tensors_are_refused_in_linear_time() -> None:
    checkpoint = large(62, 256)
    renamed: dict[str, TensorInfo] = {}
    for name, info in checkpoint.tensors.items():
        spelled = name.replace("gate_proj", "gates_proj")
        renamed[spelled] = replace(info, name=spelled)
    found = plan_oxidizr(replace(checkpoint, tensors=renamed))
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight is missing"):
        found.check()


CUT = RuleBook([Rule("ab.{i}", ("a.{i}", "b.{i}")), Rule("a.{i}", "a.{i}")])
BOTH = {"a.0": (2, 3), "b.0": (4, 3)}


def test_one_tensor_becomes_several_parameters() -> None:
    found = plan_load(tiny.from_shapes({"ab.0": (6, 3)}).tensors, BOTH, CUT)
    found.check()
    (first,), (second,) = (step.sources for step in found.steps)
    assert (first.shape, second.shape) == ((2, 3), (4, 3))
    assert (first.start, first.end, second.start, second.end) == (0, 24, 24, 72)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"ab.0": (5, 3)}, [("wrong shape", "ab.0")]),
        ({"ab.0": (6, 3), "a.0": (2, 3)}, [("ambiguous", "a.0")]),
        ({"a.0": (2, 3)}, [("missing", "ab.0")]),
        ({"ab.0": (6, 3), "ab.1": (6, 3)}, [("left over", "ab.1")]),
    ],
)
def test_what_is_wrong_with_rows_is_said_once(
    shapes: tiny.Shapes, expected: list[tuple[str, str]]
) -> None:
    found = plan_load(tiny.from_shapes(shapes).tensors, BOTH, CUT)
    assert [(each.kind, each.name) for each in found.problems] == expected


# --- what a refusal says


def refusal(shapes: tiny.Shapes) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        plan(shapes).check()
    return caught.value


def without(*names: str) -> tiny.Shapes:
    return {name: shape for name, shape in SHAPES.items() if name not in names}


def test_the_hint_is_about_what_is_wrong() -> None:
    missing, spare = refusal(without("a.0.w")), refusal({**SHAPES, "y": ()})
    shape, both = refusal({**SHAPES, "a.0.w": (3, 3)}), refusal({**without("a.0.w"), "y": ()})
    twice = refusal({**SHAPES, "b.0.w": (2, 3), "y": ()})
    assert "download it again" in missing.hint
    assert both.hint == missing.hint
    assert "answer wrongly" in spare.hint
    assert shape.hint == twice.hint
    assert "damaged" in shape.hint


def test_one_problem_is_not_among_others() -> None:
    assert refusal(without("a.0.w")).message == "a.0.w is missing."
    assert refusal({**SHAPES, "a.0.w": (3, 3)}).message == (
        "a.0.w is [3, 3], the model needs [2, 3]."
    )
    two = refusal({**SHAPES, "y": (), "z": ()})
    assert two.message == "y is left over, among 2 problems."
    assert [line.split() for line in two.found.splitlines()] == [
        ["left", "over", name, "[]"] for name in "yz"
    ]


@pytest.mark.parametrize("more", [0, 1])
def test_a_dozen_is_listed(more: int) -> None:
    lines = refusal({**SHAPES, **{f"y{n}": () for n in range(12 + more)}}).found.splitlines()
    assert len(lines) == 12 + more
    assert ("... and 1 more" in lines) == bool(more)


def test_what_is_missing_is_named_as_its_relatives_in_the_file() -> None:
    """Of several names that a tensor may have, the one whose neighbours are there."""
    book = RuleBook(
        [
            Rule(f"{begin}.{{i}}.{part}", f"p.{{i}}.{part}")
            for begin in ("a", "b.c", "d")
            for part in ("u", "v", "w")
        ]
    )
    parameters = {f"p.0.{part}": (2,) for part in "uvw"}
    for begin in ("a", "b.c", "d"):
        held = {f"{begin}.0.u": (2,), f"{begin}.0.w": (2,)}
        found = plan_load(tiny.from_shapes(held).tensors, parameters, book)
        assert [(each.kind, each.name) for each in found.problems] == [("missing", f"{begin}.0.v")]


def test_each_missing_slice_says_its_own_shape() -> None:
    details = [each.detail for each in plan(without("x.0.0", "a.0.w", "conv.0")).problems]
    assert details == ["[2, 3]", "[4, 5]", "[6]"]
    (whole,) = plan(without("x.0.0", "x.0.1")).problems
    assert (whole.name, whole.detail) == ("x.0.*", "[2, 6]")


def test_nearest_names_are_looked_for_a_dozen_times() -> None:
    book = RuleBook([Rule("long.name.{i}", "p.{i}")])
    spare = {f"lone.name.{n}": (1,) for n in range(20)}
    parameters = {f"p.{n}": (1,) for n in range(20)}
    problems = plan_load(tiny.from_shapes(spare).tensors, parameters, book).problems
    missing = [each.detail for each in problems if each.kind == "missing"]
    assert ["nearest" in each for each in missing] == [True] * 12 + [False] * 8
    assert missing[3] == "[1]; nearest left over: lone.name.3"


def test_rows_of_several_parameters_are_misshapen_once() -> None:
    (problem,) = plan_load(tiny.from_shapes({"ab.0": (5, 3)}).tensors, BOTH, CUT).problems
    assert problem.detail == "is [5, 3], the model needs [6, 3]"


def test_what_begins_or_ends_so_is_not_loaded() -> None:
    shapes = {**SHAPES, "unused.x": (1,), "y.inv_freq": (1,)}
    found = plan_load(
        tiny.from_shapes(shapes).tensors, PARAMETERS, RULES,
        ignored=iter((".inv_freq", ".none")), ignored_beginnings=["unused.", "other."],
    )  # fmt: skip
    found.check()
    assert found.ignored == ("unused.x", "y.inv_freq")


@pytest.mark.parametrize("wanted", [False, True])
def test_the_module_for_mtp_is_left_out_unless_it_is_wanted(wanted: bool) -> None:
    """Its layer lies among those that are not used, as far as the family knows."""
    book = RuleBook([Rule("h.{i}.w", "layers.{i}.w")]).with_mtp("h.1.")
    shapes = {"h.0.w": (2,), "h.1.w": (2,), "h.1.enorm.weight": (3,), "h.1.other": (1,)}
    parameters = {"layers.0.w": (2,)}
    if wanted:
        parameters |= {"mtp.layers.0.w": (2,), "mtp.embedding_norm.weight": (3,)}
    found = plan_load(
        tiny.from_shapes(shapes).tensors, parameters, book, ignored_beginnings=["h.1."]
    )
    found.check()
    assert {step.parameter for step in found.steps} == set(parameters)
    assert found.ignored == ("h.1.other",) if wanted else tuple(list(shapes)[1:])


def test_files_are_read_one_after_the_other() -> None:
    infos = tiny.from_shapes(SHAPES).tensors
    order = ("x.0.1", "conv.0", "a.0.w", "x.0.0")
    placed = {
        name: replace(infos[name], file=Path("ab"[n % 2]), start=9 - n)
        for n, name in enumerate(order)
    }
    steps = plan_load({name: placed[name] for name in SHAPES}, PARAMETERS, RULES).steps
    assert [step.parameter for step in steps] == ["p.0.w", "stack.0", "conv.0"]


def test_of_a_name_no_more_than_100_characters_are_repeated() -> None:
    """Names are what somebody wrote into a file."""
    long = "y" * 300
    book = RuleBook([Rule(f"{begin}.{long}", "p.w") for begin in "ab"] + [Rule("c", "c")])
    parameters = {"p.w": (2,), "c": (2,)}
    for shapes in (
        {f"a.{long}": (3,), "c": (2,)},
        {f"a.{long}": (2,), f"b.{long}": (2,), "c": (2,)},
        {f"a.{long}": (2,), f"d.{long}": (2,), "c": (2,)},
        {f"a.{long}z": (2,), "c": (2,)},
    ):
        found = plan_load(tiny.from_shapes(shapes).tensors, parameters, book)
        with pytest.raises(CheckpointError) as caught:
            found.check()
        assert "y" * 98 in caught.value.message
        assert "y" * 99 not in caught.value.message
        for problem in found.problems:
            assert "y" * 99 not in problem.detail
        lines = caught.value.found.splitlines()
        assert all(len(line) <= 300 for line in lines)
