"""JSON schemas in the words that llguidance knows, with the same meaning or a narrower one.

What is left over is refused by it, so that nothing here has to be complete: what cannot be said in
another way stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor, inf, isfinite, nextafter
from typing import TypeGuard
from urllib.parse import unquote

from blazr.core.errors import GrammarError

Schema = dict[str, object]
_Values = frozenset[tuple[bool, object]]  # whether it is a boolean, which Python takes for 0 or 1

# Keywords whose values are no schemas, and those whose values are schemas by name.
_VALUES = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
})  # fmt: skip
# With these values a keyword allows everything; llguidance refuses most of them all the same.
_SAYS_NOTHING: Mapping[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}
# Beside these, llguidance takes other words than its own for what a recursive schema cannot have.
_APPLICATORS = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_ANNOTATION = re.compile(r"discriminator|example|externalDocs|nullable|xml|x-.*", re.DOTALL)
# The formats that some draft defines. Others are annotations to every validator, such as those of
# OpenAPI ("password") and pydantic ("path").
_FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4",
    "ipv6", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri",
    "uri-reference", "uri-template", "uuid",
})  # fmt: skip
# llguidance reads numbers as doubles, and spells integers of 64 bits.
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_ALL_EXACT = 2**53  # up to here every integer is a double
_MOST = 2**63 - 1024  # the largest double of 63 bits
_NO_END = 10**18  # from here on it cannot spell a range without an end
_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](0[4-7]|2019-09|2020-12)/schema#?")

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    f"{_LEAP_YEAR}-02-29)"
)
_ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FRACTION = r"(?:\.[0-9]+)?"
# Seconds leap at midnight of UTC alone.
_TIME = (
    f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}{_ZONE}|"
    f"23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
)
# Formats [RFC 3339] that llguidance takes more widely: a day in February too many, any leap second.
_EXACT = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}[Tt]{_TIME}"}

# Of JavaScript's regular expressions, what Rust's would read in another way.
_JAVASCRIPT = re.compile(
    r"\\(?:[pPux]\{[^}]{0,50}\}|.)|\[(?P<start>\^?)(?P<body>(?:\\.|[^\]\\])*)(?P<end>\]?)"
    r"|(?P<brace>\{)(?!\d+(?:,\d*)?\})",
    re.DOTALL,
)
_IN_CLASS = re.compile(r"\\.|(?P<first>^-)-|-(?P<next>-)|(?P<plain>\[|&&|~~)", re.DOTALL)
_OBJECT = frozenset({"object"})
_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}
# What a schema of names may say to be rewritten, besides which there are.
_OF_NAMES = frozenset({"type", "title", "description", "$comment"})
_PROPERTIES = frozenset({"properties", "patternProperties"})
_MOST_ALTERNATIVES = 64  # of a `oneOf`, each of which is compared with each
_MOST_REFERENCES = 16  # that lead from one to the next
_MOST_EXAMINED = 100_000  # schemas and properties, to find out what tells alternatives apart


def rewrite(root: Mapping[str, object]) -> Schema:
    """A schema as llguidance takes it. The given one stays as it is.

    Raises:
        GrammarError: It has integers that would become others.
    """
    found = _rewritten(root)
    assert isinstance(found, dict)
    referring = _Referring(found)
    for schema in list(schemas(found)):
        referring.rewrite_names(schema)
        referring.rewrite_alternatives(schema)
    return found


def resolve(root: Mapping[str, object], pointer: str) -> object:
    """What a JSON pointer [RFC 6901] after ``#`` leads to; None where that is nothing."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None  # an anchor, or another document
    value: object = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value


def _rewritten(schema: object) -> object:
    if isinstance(schema, list | tuple):
        return [_rewritten(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _value(key, each) for key, each in schema.items()}
    for key in [key for key in found if found[key] in _SAYS_NOTHING.get(key, ())]:
        del found[key]
    if not found.keys().isdisjoint(_APPLICATORS):
        found = {key: each for key, each in found.items() if not _ANNOTATION.fullmatch(str(key))}
    if isinstance(found.get("$schema"), str):
        draft = _DRAFT.fullmatch(str(found.pop("$schema")))
        if draft is not None:
            found["$schema"] = _uri_of(draft[1])
    pattern = found.get("pattern")
    if isinstance(pattern, str):
        found["pattern"] = as_rust(pattern)
    _rewrite_format(found)
    _rewrite_bounds(found)
    for key in ("const", "enum"):
        _check_numbers(found.get(key), key)
    return found


def _value(key: object, value: object) -> object:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        spell = as_rust if key == "patternProperties" else str
        return {spell(name): _rewritten(each) for name, each in value.items()}
    return _rewritten(value)


def _uri_of(draft: str) -> str:
    """How the draft's own metaschema is named, which some write otherwise."""
    if draft.startswith("0"):
        return f"http://json-schema.org/draft-{draft}/schema#"
    return f"https://json-schema.org/draft/{draft}/schema"


def as_rust(pattern: str) -> str:
    """A regular expression of JavaScript in the syntax of Rust.

    Within brackets, Rust has brackets and operators on sets, and JavaScript has neither. A brace
    that begins no repetition stands for itself.
    """

    def in_class(match: re.Match[str]) -> str:
        if match["first"]:
            return r"\--"
        if match["next"]:
            return r"-\-"
        return "".join(f"\\{c}" for c in match[0]) if match["plain"] else match[0]

    def spelled(match: re.Match[str]) -> str:
        if match["brace"]:
            return r"\{"
        if not match["end"]:
            return match[0]
        if not match["body"]:
            return "(?s:.)" if match["start"] else match[0]
        return f"[{match['start']}{_IN_CLASS.sub(in_class, match['body'])}]"

    return _JAVASCRIPT.sub(spelled, pattern)


def _rewrite_format(schema: Schema) -> None:
    form = schema.get("format")
    if not isinstance(form, str):
        return
    if form not in _FORMATS:
        del schema["format"]
    elif form in _EXACT:
        del schema["format"]
        _add(schema, "pattern", f"^{_EXACT[form]}$")


def _rewrite_bounds(schema: Schema) -> None:
    """Bounds of integers that are no doubles as the next doubles within; both for 19 digits."""
    types = schema.get("type")
    declared = types if isinstance(types, list) else [types]
    bounds = {key: value for key in _BOUNDS if _is_number(value := schema.get(key))}
    is_exact = all(abs(each) <= _ALL_EXACT for each in bounds.values())
    if is_exact or "integer" not in declared or "number" in declared:
        return
    low, high = (
        _lowest(*(value and sign * value for value in map(bounds.get, keys)))
        for sign, keys in ((1, _BOUNDS[:2]), (-1, _BOUNDS[2:]))
    )
    high = None if high is None else -high
    if high is None and low is not None and low >= _NO_END:
        high = _MOST
    if low is None and high is not None and high <= -_NO_END:
        low = -_MOST
    if low is not None and high is not None and low > high:
        raise _inexact(", ".join(bounds), low)
    for key, value in zip(_BOUNDS, (low, None, high, None), strict=True):
        schema.pop(key, None)
        if value is not None:
            schema[key] = value


def _lowest(least: float | None, above: float | None) -> int | None:
    """The lowest integer that is a double, at least one number and above another."""
    found = [] if least is None else [ceil(least)]
    found += [] if above is None else [floor(above) + 1]
    if not found:
        return None
    low = max(*found, -_MOST)
    if low > _MOST:
        raise _inexact("minimum, maximum", low)
    double = float(low)
    return int(double if double >= low else nextafter(double, inf))


def _check_numbers(value: object, key: str) -> None:
    """Refuse integers that would be written as others, such as ids of 64 bits."""
    if isinstance(value, list | tuple):
        for each in value:
            _check_numbers(each, key)
    elif isinstance(value, Mapping):
        _check_numbers([*value.values()], key)
    elif isinstance(value, int) and (abs(value) > _MOST or int(float(value)) != value):
        raise _inexact(key, value)


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _inexact(keywords: str, value: int) -> GrammarError:
    return GrammarError(
        f"the schema cannot be enforced: see {keywords}.",
        found=str(value)[:100],
        expected="integers of at most 53 bits, or others that a double holds, below 2^63",
        hint="describe long ids as strings",
    )


def _add(schema: Schema, key: str, value: object) -> None:
    """Say more, beside what is said already."""
    if key not in schema:
        schema[key] = value
        return
    others = schema.get("allOf")
    schema["allOf"] = [*(others if isinstance(others, list) else []), {key: value}]


def schemas(value: object) -> Iterator[Schema]:
    """A schema and all that are in it."""
    if isinstance(value, list):
        for each in value:
            yield from schemas(each)
    elif isinstance(value, dict):
        yield value
        for key, each in value.items():
            if key in _NAMED and isinstance(each, dict):
                yield from schemas(list(each.values()))
            elif key not in _VALUES:
                yield from schemas(each)


# --- what takes looking up references


@dataclass(frozen=True, slots=True)
class _Facts:
    """What all that is valid under a schema has in common.

    Args:
        types: Its types; None where they are not known.
        values: All there is, where that is listed.
        tags: The same of its properties.
        required: Which properties there always are.
        schema: Where others can be added to these.
    """

    types: frozenset[str] | None
    values: _Values | None
    tags: Mapping[str, _Values]
    required: frozenset[str]
    schema: Schema


class _Referring:
    """Rewrites parts of a schema that may refer to others.

    Args:
        root: The whole, which is changed.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._facts: dict[int, _Facts] = {}
        self._num_examined = 0
        self._tags: dict[tuple[int, int], tuple[str, ...] | None] = {}

    def rewrite_names(self, schema: Schema) -> None:
        """Names that are listed, or follow a pattern, as properties of these names."""
        names = schema.get("propertyNames")
        if not isinstance(names, dict) or not schema.keys().isdisjoint(_PROPERTIES):
            return
        if "$ref" in names and names.keys() - _OF_NAMES != {"$ref"}:
            return
        names = self._target(schema["propertyNames"])
        said = names.keys() - _OF_NAMES
        listed = _listed(names)
        pattern = names.get("pattern")
        value = schema.get("additionalProperties", True)
        if names.get("type", "string") != "string" or len(said) != 1:
            return
        if listed is not None and all(isinstance(each, str) for each in listed):
            schema["properties"] = dict.fromkeys(map(str, listed), value)
        elif isinstance(pattern, str):
            schema["patternProperties"] = {pattern: value}
        else:
            return
        del schema["propertyNames"]
        schema["additionalProperties"] = False

    def rewrite_alternatives(self, schema: Schema) -> None:
        """Alternatives that exclude each other as those that need not.

        Where a property tells them apart, as of a union with a discriminator, it must be there.
        """
        alternatives = schema.get("oneOf")
        if not isinstance(alternatives, list) or not 1 < len(alternatives) <= _MOST_ALTERNATIVES:
            return
        facts = [self._facts_of(self._target(each)) for each in alternatives]
        required: list[tuple[_Facts, str]] = []
        for one, other in combinations(facts, 2):
            tags = self._difference(one, other)
            if tags is None:
                return
            required += [(each, tag) for tag in tags for each in (one, other)]
        for each, tag in required:
            _require(each.schema, tag)
        del schema["oneOf"]
        _add(schema, "anyOf", alternatives)

    def _difference(self, one: _Facts, other: _Facts) -> tuple[str, ...] | None:
        """The property that tells two apart, none if they differ anyway; None if they may not."""
        key = (id(one), id(other))
        if key not in self._tags:
            self._tags[key] = _difference(one, other)
        return self._tags[key]

    def _target(self, schema: object) -> Schema:
        """A schema, or the one that it refers to; what stands beside a reference is not seen."""
        for _ in range(_MOST_REFERENCES):
            pointer = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(pointer, str):
                return schema if isinstance(schema, dict) else {}
            schema = resolve(self._root, pointer)
        return {}

    def _facts_of(self, schema: Schema) -> _Facts:
        if id(schema) not in self._facts:
            self._facts[id(schema)] = self._find_facts(schema)
        return self._facts[id(schema)]

    def _find_facts(self, schema: Schema) -> _Facts:
        types: frozenset[str] | None = None
        values: _Values | None = None
        tags: dict[str, _Values] = {}
        required: set[str] = set()
        for each in self._all_of(schema):
            properties = each.get("properties")
            self._num_examined += len(properties) if isinstance(properties, dict) else 1
            if self._num_examined > _MOST_EXAMINED:
                break
            values = _comparable(_listed(each)) if values is None else values
            types = _types(each) if types is None else types
            for name, inner in properties.items() if isinstance(properties, dict) else ():
                listed = _comparable(_listed(self._target(inner)))
                if listed is not None:
                    tags.setdefault(name, listed)
            names = each.get("required")
            required.update(map(str, names) if isinstance(names, list) else ())
        return _Facts(types, values, tags, frozenset(required), schema)

    def _all_of(self, schema: Schema) -> Iterator[Schema]:
        """A schema, and others that hold whenever it does."""
        waiting = [schema]
        seen = {id(schema)}
        for each in waiting:
            yield each
            whole = each.get("allOf")
            for inner in whole[:_MOST_ALTERNATIVES] if isinstance(whole, list) else ():
                other = self._target(inner)
                if id(other) not in seen and len(waiting) < _MOST_ALTERNATIVES:
                    seen.add(id(other))
                    waiting.append(other)


def _difference(one: _Facts, other: _Facts) -> tuple[str, ...] | None:
    if one.types and other.types and one.types.isdisjoint(other.types):
        return ()
    if one.values and other.values and one.values.isdisjoint(other.values):
        return ()
    if not one.types == other.types == _OBJECT:
        return None
    names = sorted(one.tags.keys() & other.tags.keys())
    names.sort(key=lambda name: name not in one.required & other.required)
    return next(((name,) for name in names if one.tags[name].isdisjoint(other.tags[name])), None)


def _listed(schema: Schema) -> list[object] | None:
    """The values of which one is valid, where they are listed."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list) else None


def _comparable(values: list[object] | None) -> _Values | None:
    """Values of which JSON's equal ones are Python's; None where they are no such."""
    if values is None or not all(isinstance(x, str | int | float | None) for x in values):
        return None
    return frozenset((isinstance(each, bool), each) for each in values)


def _types(schema: Schema) -> frozenset[str] | None:
    """The types that are declared, by names that differ where no value has both."""
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = [declared] if isinstance(declared, str) else declared
        return frozenset("number" if each == "integer" else str(each) for each in names)
    values = _comparable(_listed(schema))
    return None if values is None else frozenset(_TYPES[type(each)] for _, each in values)


def _require(schema: Schema, name: str) -> None:
    names = schema.get("required")
    listed = names if isinstance(names, list) else []
    if name not in listed:
        schema["required"] = [*listed, name]
