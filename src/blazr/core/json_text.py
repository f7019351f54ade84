"""JSON as its standard has it, which knows neither infinity nor NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def dump_json(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """Write a value as JSON; a float that is infinite or NaN becomes null.

    Args:
        value: Mappings, lists and tuples of plain values.
        indent: Spaces by which each level is indented; None writes one line.
        ensure_ascii: Whether other characters than those of ASCII are escaped.

    Raises:
        TypeError: It holds something else.
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
