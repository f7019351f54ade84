"""What the docstring of a class says of its fields, for the command line and the reference."""

from __future__ import annotations

import inspect
import re


def argument_docs(cls: type) -> dict[str, str]:
    """Return what ``Args:`` sections say, by name: of a class, and of those it inherits from."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        name = ""
        is_inside = False
        for line in inspect.cleandoc(each.__doc__ or "").splitlines():
            if not line.startswith(" ") and line:
                is_inside = line == "Args:"
            elif is_inside and (match := re.match(r" {4}(\w+): (.*)", line)):
                name = match[1]
                found[name] = match[2]
            elif is_inside and line.strip():
                found[name] += " " + line.strip()
    return found
