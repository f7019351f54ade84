"""GRAMMARS: the kinds of grammar a request may ask for, each to the source of an llguidance one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from blazr.core.table import Table

# A row takes what the request gave and the vocabulary's special tokens by name.
GRAMMARS: Table[Callable[[object, Mapping[str, int]], str]] = Table(
    "grammar",
    {},
    lazy={
        "json_object": "blazr.text.grammars.json_schema:json_object",
        "json_schema": "blazr.text.grammars.json_schema:json_schema",
        "regex": "blazr.text.grammars.plain:regex",
        "choice": "blazr.text.grammars.plain:choice",
        "lark": "blazr.text.grammars.plain:lark",
        "gbnf": "blazr.text.grammars.gbnf:gbnf",
        "tool_call": "blazr.text.grammars.tool_call:tool_call",
    },
)
