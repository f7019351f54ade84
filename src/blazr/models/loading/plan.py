"""What a load will do, from the headers of a model's files.

A model is found, its family and config are derived, every parameter is matched with its tensors. Of
these only biases are read, where a quantized checkpoint may have such as a layer does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal

import torch

from blazr.core.errors import CheckpointError, ConfigError, UnknownFamilyError
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo, TensorInfo, join_rows, take_rows
from blazr.models.checkpoint.open import find_model, open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import Derivation, Family
from blazr.models.families.hf.derive import model_type
from blazr.models.families.rules import (
    AS_STORED,
    MTP,
    RuleBook,
    Shape,
    Stack,
    Transform,
    split_layer,
)
from blazr.models.loading.parts import held_of
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows

LISTED_PROBLEMS = 12
# Nearest names are looked for among this many: the search is quadratic.
_SEARCHED_NAMES = 500
# Found in the names of tensors of modules for multi-token prediction, and in no others.
_OF_MTP = re.compile(r"(^|[._])(mtp|nextn|eh_proj)[._]")
_OTHER_MODELS = (
    "'blazr generate', 'chat', 'serve' and 'info' run what transformers knows through that library"
    " (pip install 'blazr[transformers]')"
)
Kind = Literal["missing", "left over", "ambiguous", "wrong shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model before its weights are read.

    Args:
        name: What to call it.
        checkpoint: Its files.
        family: Its kind.
        derivation: Its config and how that was found.
        module: The network without weights, on the meta device.
        plan: Which tensors go where; checked.
    """

    name: str
    checkpoint: Checkpoint
    family: Family
    derivation: Derivation
    module: CausalLM
    plan: LoadPlan


def plan_model(model: str, *, revision: str | None = None, with_mtp: bool = False) -> PlannedModel:
    """Find a model, derive its config and match every tensor, before weights are read.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        revision: Branch, tag or commit of a Hub id.
        with_mtp: Whether its module for multi-token prediction is wanted, which is left out
            otherwise.

    Raises:
        CheckpointError: There is no such model, or its tensors are not those of its kind.
        ShapeError: Its tensors do not fit each other.
        ConfigError: config.json has a wrong value, or there is no module that is wanted.
    """
    files = find_model(model, revision=revision)
    checkpoint = open_checkpoint(files.path)
    family = detect_family(checkpoint)
    derivation = family.derive(checkpoint)
    has_known_mtp = derivation.config.mtp is not None
    if with_mtp and not has_known_mtp:
        raise ConfigError(
            f"{files.name} has no module for multi-token prediction that blazr knows.",
            found=f"a model of the kind {family.name}",
            expected="one of Qwen3-Next, Qwen3.5, DeepSeek-V3, GLM-4.5, Nemotron 3, Hunyuan 3 or "
            "MiMo, with its MTP tensors",
            hint="take another way to speculate: --spec ngram",
        )
    if not with_mtp:
        derivation = replace(derivation, config=replace(derivation.config, mtp=None))
    with torch.device("meta"):
        module = CausalLM(derivation.config)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    zero_biases = _zero_biases(checkpoint, shapes, derivation.rules)
    plan = plan_load(
        checkpoint.tensors,
        shapes,
        derivation.rules,
        ignored=family.ignored,
        ignored_beginnings=(*derivation.unused, *zero_biases),
    )
    plan.check()
    if not has_known_mtp and any(map(_OF_MTP.search, plan.ignored)):
        warning = (
            "a module for multi-token prediction is left out, as blazr knows none of this kind of "
            "model: --spec mtp cannot be used."
        )
        derivation = replace(derivation, warnings=(*derivation.warnings, warning))
    return PlannedModel(
        name=files.name,
        checkpoint=checkpoint,
        family=family,
        derivation=derivation,
        module=module,
        plan=plan,
    )


def _zero_biases(checkpoint: Checkpoint, shapes: Mapping[str, Shape], rules: RuleBook) -> list[str]:
    """Biases of nothing but zeros, which some quantizers write where the layer has none."""
    found = []
    for name in checkpoint.tensors:
        weight = checkpoint.tensors.get(f"{name.removesuffix('.bias')}.weight")
        if not name.endswith(".bias") or not isinstance(weight, QuantizedInfo):
            continue
        match = rules.match(name)
        has_place = match is not None and match.parameter in shapes
        if not has_place and not checkpoint.read(name).count_nonzero():
            found.append(name)
    return found


def detect_family(checkpoint: Checkpoint) -> Family:
    """The family whose tensor names or whose ``model_type`` these are.

    Raises:
        CheckpointError: They are no family's.
        UnknownFamilyError: config.json names a type of model that blazr does not know.
    """
    for family in FAMILIES.values():
        if family.matches(checkpoint):
            return family
    kind = model_type(checkpoint)
    names = ", ".join(name[:40] for name in list(checkpoint.tensors)[:4])
    if kind in FAMILIES:
        raise CheckpointError(
            f"config.json says {kind!r}, and the tensors are not named like those of one.",
            found=f"tensors such as {names}",
            hint="if a program has put something before the names, such as 'module.', save the"
            " model that it wrapped",
        )
    if kind is not None:
        raise UnknownFamilyError(
            "config.json: this model_type is not supported.",
            found=repr(kind)[:100],
            expected=", ".join(FAMILIES),
            hint=_OTHER_MODELS,
        )
    raise CheckpointError(
        f"{checkpoint.path} is not a language model of a kind that blazr knows.",
        found=f"tensors such as {names}",
        expected="embed_tokens.weight and layers.0.* (oxidizr), the same behind model."
        " (Llama), backbone.* (Mamba), or a config.json that says",
    )


@dataclass(frozen=True, slots=True)
class LoadStep:
    """How one parameter is made.

    Args:
        parameter: Its name.
        shape: Its shape.
        sources: The tensors it is made of, one for each of its slots.
        transform: What happens to them.
        held: Of the parameter, what is held by the rank that loads it; None for all.
    """

    parameter: str
    shape: Shape
    sources: tuple[TensorInfo, ...]
    transform: Transform = AS_STORED
    held: Held | None = None

    @property
    def share(self) -> float:
        """How much of the parameter is held."""
        if not isinstance(self.held, Rows | Columns):
            return 1.0
        size = self.shape[self.held.dim if isinstance(self.held, Rows) else -1]
        return sum(map(len, self.held.runs)) / size


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

    def part(self, parts: Parts, rank: Rank) -> LoadPlan:
        """The plan of a rank.

        Args:
            parts: What it holds.
            rank: Which it is.
        """
        steps = []
        for step in self.steps:
            held = held_of(step.parameter, parts, rank)
            if isinstance(held, Rows) and isinstance(step.transform, Stack) and held.dim == 0:
                sources = tuple(step.sources[index] for run in held.runs for index in run)
                shape = (len(sources), *step.shape[1:])
                steps.append(replace(step, shape=shape, sources=sources))
            else:
                steps.append(replace(step, held=held))
        return replace(self, steps=tuple(steps))

    def of_stage(self, config: ModelConfig) -> LoadPlan:
        """The plan of a rank that has some of the layers."""
        named = ((stage_name(step.parameter, config), step) for step in self.steps)
        steps = (replace(step, parameter=name) for name, step in named if name is not None)
        return replace(self, steps=tuple(steps))

    def check(self) -> None:
        """Raise if anything does not fit.

        Raises:
            CheckpointError: Listing all problems, the first of them in its first line.
        """
        if not self.problems:
            return
        first = self.problems[0]
        what = first.detail if first.kind == "wrong shape" else f"is {first.kind}"
        count = len(self.problems)
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
        if count > LISTED_PROBLEMS:
            lines.append(f"... and {count - LISTED_PROBLEMS} more")
        raise CheckpointError(
            f"{first.name[:100]} {what}" + (f", among {count} problems." if count > 1 else "."),
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
    beginnings, endings = tuple(ignored_beginnings), tuple(ignored)
    skipped = []
    for name, info in _with_joined(tensors, rules.joined).items():
        is_unused = name.startswith(beginnings) and not matching.is_of_mtp(name)
        if is_unused or name.endswith(endings):
            skipped.append(name)
        else:
            matching.add(info)
    steps = [step for name in parameters if (step := matching.step(name)) is not None]
    steps.sort(key=lambda step: (step.sources[0].file, step.sources[0].start))
    return LoadPlan(tuple(steps), tuple(matching.report()), tuple(skipped))


def _with_joined(
    tensors: Mapping[str, TensorInfo], joined: Mapping[str, tuple[str, ...]]
) -> Mapping[str, TensorInfo]:
    """Tensors, with one in the place of those whose rows it has."""
    whole: dict[str, TensorInfo] = {}
    replaced: set[str] = set()
    for name, names in joined.items():
        parts = tuple(tensors[each] for each in names if each in tensors)
        info = join_rows(name, parts) if len(parts) == len(names) else None
        if info is not None and name not in tensors:
            whole[name] = info
            replaced.update(names)
    return {name: info for name, info in tensors.items() if name not in replaced} | whole


def stage_name(parameter: str, config: ModelConfig) -> str | None:
    """What a parameter is called by a rank that has some of the layers; None if it is not there.

    Args:
        parameter: Its name in the whole network.
        config: The rank's, which counts its layers from 0.
    """
    index, name = split_layer(parameter)
    if index is None:
        return parameter if config.stage.number == 0 else None
    if index not in config.held_layers:
        return None
    return f"layers.{index - config.held_layers.start}.{name}"


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
        wanted = [
            each.transform.stored_shape(shape)
            for each in placements
            if (shape := self.parameters.get(each.parameter)) is not None
            and each.slot in each.transform.slots(shape)
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

    def is_of_mtp(self, name: str) -> bool:
        """Whether a tensor belongs to the module for multi-token prediction, and that is wanted."""
        found = self.rules.match(name)
        parameter = "" if found is None else found.parameter
        return parameter.startswith(MTP) and parameter in self.parameters

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
        others = [info for slot, info in slots.items() if slot not in wanted]
        if others:  # the same again in another form
            one = next((slots[slot].name for slot in wanted if slot in slots), "others")
            detail = f"and {one[:100]} are the same parameter, {name}"
            self.problems.append(Problem("ambiguous", others[0].name, detail))
            return None
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
