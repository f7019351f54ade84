"""JSON schemas of the kinds that people send, drawn at random.

The kinds are those of JSONSchemaBench [arXiv:2501.10868]: function signatures, configuration files,
API bodies, snippets found in the wild, and its feature list. A schema may use keywords that cannot
be enforced: then it must be refused, and the refusal must name one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support.seeds import run_seed

Schema = dict[str, object]
Draw = Callable[[random.Random, int], Schema]

WORDS = (
    "id",
    "name",
    "kind",
    "size",
    "tags",
    "owner",
    "größe",
    "名前",
    "a b",
    'q"x',
    "é",
    "x-y",
    "",
)
PATTERNS = (
    "^[a-z]{2,5}$",
    "^\\d{3}-\\d{4}$",
    "^(\\+1)?[0-9]{3}$",
    "foo|bar",
    "^#[0-9a-fA-F]{6}$",
    "^v\\d+(\\.\\d+){0,2}$",
    "[A-Z]+",
    "^[^/]+/[^/]+$",
    "^\\S+$",
    "^(?=x)x$",
    "^(a)\\1$",
)
FORMATS = (
    "date",
    "time",
    "date-time",
    "email",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "hostname",
    "duration",
    "regex",
    "color",
)
# Keywords and a value for each, of which some cannot be enforced.
EXTRAS: tuple[Schema, ...] = (
    {"uniqueItems": True, "type": "array"},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"contains": {"type": "integer"}, "type": "array"},
    {"propertyNames": {"pattern": "^a"}, "type": "object"},
    {"dependentRequired": {"a": ["b"]}, "type": "object"},
    {"dependencies": {"a": ["b"]}, "type": "object"},
    {"dependentSchemas": {"a": {"required": ["b"]}}, "type": "object"},
    {"minProperties": 2, "type": "object"},
    {"maxProperties": 1, "type": "object"},
    {"unevaluatedProperties": False, "type": "object"},
    {"unevaluatedItems": False, "type": "array"},
    {"minContains": 2, "contains": {"const": 1}},
    {"$dynamicRef": "#x"},
    {"$ref": "https://example.com/schema"},
    {"$ref": "#/nowhere"},
    {"type": "text"},
    {"enum": "x"},
    {"minLength": -1, "type": "string"},
)


def string(rng: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    if rng.random() < 0.4:
        schema["maxLength"] = rng.randint(0, 12)
    if rng.random() < 0.3:
        schema["minLength"] = rng.randint(0, 6)
    return schema


def pattern(rng: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string", "pattern": rng.choice(PATTERNS)}
    if rng.random() < 0.3:
        schema["maxLength"] = rng.randint(4, 20)
    return schema


def formatted(rng: random.Random, depth: int) -> Schema:
    return {"type": "string", "format": rng.choice(FORMATS)}


def number(rng: random.Random, depth: int) -> Schema:
    kind = rng.choice(["integer", "number"])
    schema: Schema = {"type": kind}
    low = rng.randint(-200, 200) if kind == "integer" else round(rng.uniform(-5, 5), 2)
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([0, 1, 7, 300])
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([2, 5, 10, 0.5] if kind == "number" else [2, 3, 10])
    return schema


def enum(rng: random.Random, depth: int) -> Schema:
    values = [
        "red",
        "grün",
        "",
        'a"b',
        "line\nbreak",
        "\u2028",
        1,
        1.5,
        True,
        None,
        [1, "x"],
        {"a": 1},
    ]
    schema: Schema = {"enum": rng.sample(values, rng.randint(1, 6))}
    if rng.random() < 0.2:
        schema["type"] = rng.choice(["string", "integer"])
    return schema


def const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(["fixed", "ünï", 3, -2.25, False, None, {"k": [1, {"z": "y"}]}])}


def simple(rng: random.Random, depth: int) -> Schema:
    types = rng.sample(["boolean", "null", "integer", "string"], rng.randint(1, 2))
    schema: Schema = {"type": types if len(types) > 1 else types[0]}
    if rng.random() < 0.3:
        schema |= {"title": "T", "description": "what", "default": None, "examples": [1]}
    return schema


def array(rng: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = anything(rng, depth - 1)
    if rng.random() < 0.3:
        schema["prefixItems"] = [anything(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.8:
        schema["maxItems"] = rng.randint(1, 4)
    return schema


def object_(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: anything(rng, depth - 1) for name in names},
    }
    schema["required"] = [name for name in names if rng.random() < 0.6]
    if rng.random() < 0.1:
        schema["required"] = [*names, "elsewhere"]
    draw = rng.random()
    if draw < 0.5:
        schema["additionalProperties"] = False
    elif draw < 0.65:
        schema["additionalProperties"] = anything(rng, depth - 1)
    if rng.random() < 0.15:
        schema["patternProperties"] = {"^x_": anything(rng, depth - 1)}
    if rng.random() < 0.1:
        schema[rng.choice(["minProperties", "maxProperties"])] = rng.randint(0, 3)
    return schema


def union(rng: random.Random, depth: int) -> Schema:
    key = rng.choice(["anyOf", "anyOf", "oneOf"])
    return {key: [anything(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def tagged_union(rng: random.Random, depth: int) -> Schema:
    def one(tag: str) -> Schema:
        inner = object_(rng, depth - 1)
        properties = {"type": {"const": tag}, **inner["properties"]}  # type: ignore[dict-item]
        return {"type": "object", "properties": properties, "required": ["type"]}

    return {rng.choice(["oneOf", "anyOf"]): [one("circle"), one("square")]}


def everything(rng: random.Random, depth: int) -> Schema:
    return {"allOf": [anything(rng, depth - 1) for _ in range(rng.randint(1, 2))]}


def merged(rng: random.Random, depth: int) -> Schema:
    first, second = object_(rng, depth - 1), object_(rng, depth - 1)
    first.pop("additionalProperties", None)
    return {**first, "allOf": [second]}


def reference(rng: random.Random, depth: int) -> Schema:
    key = rng.choice(["$defs", "definitions"])
    return {
        key: {"item": anything(rng, depth - 1)},
        "type": "object",
        "properties": {"one": {"$ref": f"#/{key}/item"}, "two": {"$ref": f"#/{key}/item"}},
        "required": ["one"],
        "additionalProperties": False,
    }


def recursive(rng: random.Random, depth: int) -> Schema:
    node: Schema = {
        "type": "object",
        "properties": {
            "value": anything(rng, 0),
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def extra(rng: random.Random, depth: int) -> Schema:
    return dict(rng.choice(EXTRAS))


def annotated(rng: random.Random, depth: int) -> Schema:
    schema = object_(rng, depth)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "X",
        "$comment": "c",
    }
    return {**head, **schema, "x-order": 3, "deprecated": True}


LEAVES: tuple[Draw, ...] = (string, pattern, formatted, number, number, enum, const, simple)
KINDS: tuple[Draw, ...] = (
    *LEAVES,
    array,
    object_,
    union,
    tagged_union,
    everything,
    merged,
    reference,
    recursive,
    extra,
    annotated,
)
# Inside another, what cannot be enforced is rare, or next to nothing would be accepted.
_INNER = (*LEAVES, *LEAVES, array, object_, object_, union, everything)


def anything(rng: random.Random, depth: int) -> Schema:
    if depth > 0 and rng.random() < 0.02:
        return extra(rng, depth)
    return rng.choice(_INNER if depth > 0 else LEAVES)(rng, depth)


def samples(count: int, *, seed: int = 0) -> list[Schema]:
    """``count`` schemas, the kinds in turn."""
    rng = random.Random(run_seed(seed))
    return [KINDS[i % len(KINDS)](rng, 3) for i in range(count)]
