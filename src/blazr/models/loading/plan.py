"""The plan of a load: every parameter matched with its tensors before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import TensorInfo, take_rows
from blazr.models.families.rules import AS_STORED, RuleBook, Shape, Transform

LISTED_PROBLEMS = 12
# Nearest names are looked for among this many: the search is quadratic.
_SEARCHED_NAMES = 500

Kind = Literal["missing", "left over", "ambiguous", "wrong shape"]


@dataclass(frozen=True, slots=True)
class LoadStep:
    """How one parameter is made.

    Args:
        parameter: Its name.
        shape: Its shape.
        sources: The tensors it is made of, one for each of its slots.
        transform: What happens to them.
    """

    parameter: str
    shape: Shape
    sources: tuple[TensorInfo, ...]
    transform: Transform = AS_STORED


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not fit.

    Args:
        kind: In which way.
        name: The tensor at fault.
        detail: Shapes found and expected, nearest names.
    """

    kind: Kind
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind:<12}{self.name} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Which tensors go where.

    Args:
        steps: In the order of the bytes on disk.
        problems: What does not fit.
        ignored: Names of tensors that hold nothing to load.
    """

    steps: tuple[LoadStep, ...]
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise if anything does not fit.

        Raises:
            CheckpointError: Listing all problems, the first of them in its first line.
        """
        if not self.problems:
            return
        first = self.problems[0]
        more = len(self.problems) - 1
        message = (
            f"{first.name[:100]} is {first.kind}"
            if first.kind != "wrong shape"
            else (f"{first.name[:100]} {first.detail}")
        )
        kinds = {problem.kind for problem in self.problems}
        hint = "the file is damaged, or its parts come from different models"
        if kinds == {"left over"}:
            hint = (
                "the file holds parts that blazr does not know; it would answer wrongly without"
                " them"
            )
        elif "missing" in kinds:
            hint = "the file is incomplete, or its names are of another program: download it again"
        lines = [str(problem)[:300] for problem in self.problems[:LISTED_PROBLEMS]]
        if len(self.problems) > LISTED_PROBLEMS:
            lines.append(f"... and {len(self.problems) - LISTED_PROBLEMS} more")
        raise CheckpointError(
            message + (f", among {more + 1} problems." if more else "."),
            found="\n".join(lines),
            expected="every parameter of the model once, and nothing else",
            hint=hint,
        )


def plan_load(
    tensors: Mapping[str, TensorInfo],
    parameters: Mapping[str, Shape],
    rules: RuleBook,
    *,
    ignored: Iterable[str] = (),
    ignored_beginnings: Iterable[str] = (),
) -> LoadPlan:
    """Match tensors with parameters, from names and shapes alone.

    Args:
        tensors: What the files hold.
        parameters: What the network needs: shapes by name.
        rules: The family's names.
        ignored: Suffixes of tensors that hold nothing to load.
        ignored_beginnings: What the names of others that are not used begin with.
    """
    matching = _Matching(rules, parameters)
    skipped = []
    for name, info in tensors.items():
        if name.endswith(tuple(ignored)) or name.startswith(tuple(ignored_beginnings)):
            skipped.append(name)
        else:
            matching.add(info)
    steps = [step for name in parameters if (step := matching.step(name)) is not None]
    steps.sort(key=lambda step: (step.sources[0].file, step.sources[0].start))
    return LoadPlan(tuple(steps), tuple(matching.report()), tuple(skipped))


@dataclass(slots=True)
class _Matching:
    rules: RuleBook
    parameters: Mapping[str, Shape]
    # parameter to slot (None: the whole) to tensor
    found: dict[str, dict[int | None, TensorInfo]] = field(default_factory=dict)
    transforms: dict[str, Transform] = field(default_factory=dict)
    left_over: list[TensorInfo] = field(default_factory=list)
    missing: list[tuple[str, int | None]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, info: TensorInfo) -> None:
        """Give a tensor to the parameter it belongs to, or its rows to several."""
        placements = self.rules.placements(info.name)
        shapes = [self.parameters.get(each.parameter) for each in placements]
        wanted = [
            each.transform.stored_shape(shape)
            for each, shape in zip(placements, shapes, strict=True)
            if shape is not None and each.slot in each.transform.slots(shape)
        ]
        if not placements or len(wanted) < len(placements):
            self.left_over.append(info)
            return
        cut = placements[0].cut
        if cut is None:
            infos = [info]
        elif info.shape != cut.whole(wanted):
            self._misshapen(info, cut.whole(wanted))
            infos = [info] * len(placements)  # so that nothing else is said of its parameters
            wanted = [info.shape] * len(placements)
        else:
            infos = [
                replace(take_rows(info, rows, cut.dim), shape=shape)
                for rows, shape in zip(cut.rows(wanted), wanted, strict=True)
            ]
        for each, part, shape in zip(placements, infos, wanted, strict=True):
            slots = self.found.setdefault(each.parameter, {})
            if each.slot in slots:
                other = slots[each.slot].name
                detail = f"and {other[:100]} are the same parameter, {each.parameter}"
                self.problems.append(Problem("ambiguous", part.name, detail))
                continue
            slots[each.slot] = part
            self.transforms[each.parameter] = each.transform
            if not each.transform.fits(part.shape, shape):
                self._misshapen(part, shape)

    def _misshapen(self, info: TensorInfo, wanted: Shape) -> None:
        detail = f"is {list(info.shape)}, the model needs {list(wanted)}"
        self.problems.append(Problem("wrong shape", info.name, detail))

    def step(self, name: str) -> LoadStep | None:
        """How a parameter is made; None, and noted, when tensors are missing."""
        slots = self.found.get(name)
        if not slots:
            self.missing.append((name, None))
            return None
        shape = self.parameters[name]
        transform = self.transforms[name]
        wanted = transform.slots(shape)
        absent = [(name, slot) for slot in wanted if slot not in slots]
        self.missing += absent
        if absent:
            return None
        return LoadStep(name, shape, tuple(slots[slot] for slot in wanted), transform)

    def report(self) -> Iterable[Problem]:
        """Every problem, the likeliest causes first."""
        yield from self.problems
        spare = [info.name for info in self.left_over][:_SEARCHED_NAMES]
        matched = (info.name for slots in self.found.values() for info in slots.values())
        present = {ancestor for name in matched for ancestor in _ancestors(name)}
        for position, (parameter, slot) in enumerate(self.missing):
            names = self.rules.sources(parameter, slot) or [parameter]
            # the likeliest has the nearest relatives in the file
            name = max(
                names,
                key=lambda each: max((len(a) for a in _ancestors(each) if a in present), default=0),
            )
            near = get_close_matches(name, spare, n=1) if position < LISTED_PROBLEMS else []
            needed = self.parameters[parameter][0 if slot is None else 1 :]
            detail = str(list(needed)) + (f"; nearest left over: {near[0][:100]}" if near else "")
            yield Problem("missing", name, detail)
        for info in self.left_over:
            yield Problem("left over", info.name, str(list(info.shape)))


def _ancestors(name: str) -> Iterable[str]:
    while name := name.rpartition(".")[0]:
        yield name
