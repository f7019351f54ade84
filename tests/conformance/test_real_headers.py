"""Released models of every kind, by their headers alone: each tensor finds its place."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tiny
from blazr.models.causal_lm import CausalLM
from blazr.models.families import FAMILIES
from blazr.models.families.detect import detect_family
from blazr.models.loading.plan import plan_load

HEADERS = Path(__file__).parent.parent / "golden" / "headers"
MODELS = sorted(path.stem for path in HEADERS.glob("*.json"))
RECORDED = json.loads((HEADERS / "recorded" / "names.json").read_text())
# Names at the edges, which the recorded extracts may leave out.
EDGES = re.compile(r"lm_head|.*(embed_tokens|(?<!linear_attn\.)norm)\.weight")
# What the network has no place for: images, and heads that predict further tokens.
UNUSED = re.compile(r"(model\.)?(visual|vision_tower|multi_modal_projector|mtp)\.")


def names(pattern: str, *places: str) -> Iterator[str]:
    """``("layers.#.w", "0-1,3")`` to layers.0.w, layers.1.w, layers.3.w."""
    choices = []
    for place in places:
        ends = [part.split("-") for part in place.split(",")]
        choices.append([n for part in ends for n in range(int(part[0]), int(part[-1]) + 1)])
    for numbers in itertools.product(*choices):
        name = pattern
        for number in numbers:
            name = name.replace("#", str(number), 1)
        yield name


def test_there_is_one_of_every_family() -> None:
    configs = [json.loads((HEADERS / f"{model}.json").read_text())["config"] for model in MODELS]
    parts = [config.get("text_config", config) for config in configs]
    kinds = {config["model_type"] for config in (*configs, *parts)}
    assert kinds == set(FAMILIES) - {"oxidizr", "gguf"}


@pytest.mark.parametrize("model", MODELS)
def test_a_released_model_is_planned_completely(model: str) -> None:
    recorded = json.loads((HEADERS / f"{model}.json").read_text())
    shapes = {
        name: tuple(shape)
        for pattern, shape, *places in recorded["tensors"]
        for name in names(pattern, *places)
    }
    checkpoint = tiny.from_shapes(shapes, recorded["config"])
    family = detect_family(checkpoint)
    assert family.name == recorded["config"]["model_type"]
    derived = family.derive(checkpoint)
    with torch.device("meta"):
        module = CausalLM(derived.config)
    parameters = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    plan = plan_load(
        checkpoint.tensors,
        parameters,
        family.rules_of(checkpoint) if family.rules_of else family.rules,
        ignored=family.ignored,
        ignored_beginnings=family.unused(checkpoint) if family.unused else (),
    )
    plan.check()
    assert len(plan.steps) == len(parameters)
    assert all(UNUSED.match(name) for name in plan.ignored)


@pytest.mark.parametrize("model", RECORDED)
def test_made_names_are_those_of_a_published_file(model: str) -> None:
    made = json.loads((HEADERS / f"{model}.json").read_text())["tensors"]
    names_ = {row[0] for row in made if not UNUSED.match(row[0])}
    recorded = set(RECORDED[model]["names"])
    assert recorded <= names_
    assert all(EDGES.match(name) for name in names_ - recorded)
