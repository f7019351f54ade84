"""JSON schemas in the words that llguidance knows, with the same meaning or a narrower one.

What is left over is refused by it, so that nothing here has to be complete: what cannot be said in
another way stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

Schema = dict[str, object]

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

# What a schema of names may say to be rewritten, besides which there are.
_OF_NAMES = frozenset({"type", "title", "description", "$comment"})
_PROPERTIES = frozenset({"properties", "patternProperties"})


def rewrite(root: Mapping[str, object]) -> Schema:
    """A schema as llguidance takes it. The given one stays as it is."""
    found = _rewritten(root)
    assert isinstance(found, dict)
    referring = _Referring(found)
    for schema in list(schemas(found)):
        referring.rewrite_names(schema)
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
    if isinstance(found.get("$schema"), str):
        draft = _DRAFT.fullmatch(str(found.pop("$schema")))
        if draft is not None:
            found["$schema"] = _uri_of(draft[1])
    _rewrite_format(found)
    return found


def _value(key: object, value: object) -> object:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _rewritten(each) for name, each in value.items()}
    return _rewritten(value)


def _uri_of(draft: str) -> str:
    """How the draft's own metaschema is named, which some write otherwise."""
    if draft.startswith("0"):
        return f"http://json-schema.org/draft-{draft}/schema#"
    return f"https://json-schema.org/draft/{draft}/schema"


def _rewrite_format(schema: Schema) -> None:
    form = schema.get("format")
    if not isinstance(form, str):
        return
    if form in _EXACT:
        del schema["format"]
        _add(schema, "pattern", f"^{_EXACT[form]}$")


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


class _Referring:
    """Rewrites parts of a schema that may refer to others.

    Args:
        root: The whole, which is changed.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root

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

    def _target(self, schema: object) -> Schema:
        """A schema, or the one that it refers to; what stands beside a reference is not seen."""
        seen: set[str] = set()
        while isinstance(schema, dict) and isinstance(pointer := schema.get("$ref"), str):
            if pointer in seen:
                return {}
            seen.add(pointer)
            schema = resolve(self._root, pointer)
        return schema if isinstance(schema, dict) else {}


def _listed(schema: Schema) -> list[object] | None:
    """The values of which one is valid, where they are listed."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list) else None
