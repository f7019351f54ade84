"""JSON schemas in the words that llguidance knows, with the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

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
_VALUES = frozenset(
    {"const", "enum", "default", "examples"}
)  # keywords whose values are no schemas


def rewrite(root: Mapping[str, object]) -> dict[str, object]:
    """A schema as llguidance takes it. The given one stays as it is."""
    found = _rewritten(root)
    assert isinstance(found, dict)
    return found


def resolve(root: Mapping[str, object], pointer: str) -> object:
    """What a JSON pointer [RFC 6901] leads to; None where that is nothing."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None  # an anchor, or somewhere else
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
    """A schema with patterns for the formats that need them."""
    if isinstance(schema, list | tuple):
        return [_rewritten(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: value if key in _VALUES else _rewritten(value) for key, value in schema.items()}
    form = found.get("format")
    if isinstance(form, str) and form in _EXACT:
        del found["format"]
        pattern = {"pattern": f"^{_EXACT[form]}$"}
        if "pattern" not in found:
            return found | pattern
        return found | {"allOf": [*_list(found.get("allOf")), pattern]}
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
