"""Why a grammar was refused, in terms of what was sent."""

from __future__ import annotations

import re

from blazr.core.errors import GrammarError

# The assertions and applicators of JSON Schema, all drafts, that a message may name.
_NAMES = (
    "$anchor $dynamicRef $id $recursiveRef $ref $schema additionalItems additionalProperties allOf "
    "anyOf const contains contentEncoding contentMediaType contentSchema dependencies "
    "dependentRequired dependentSchemas else enum exclusiveMaximum exclusiveMinimum format if "
    "items maxContains maxItems maxLength maxProperties maximum minContains minItems minLength "
    "minProperties minimum multipleOf not oneOf pattern patternProperties prefixItems "
    "propertyNames properties required then type unevaluatedItems unevaluatedProperties "
    "uniqueItems"
)
_KEYWORDS = frozenset(_NAMES.split())
# Of these, those that are English too, and so count only in quotes.
_WORDS = frozenset(["const", "contains", "else", "if", "items", "not", "then", "type"])
# What a message that names no keyword, or names one only in passing, is about.
_TOPICS = (
    ("Pointer", "$ref"),
    ("Resource", "$ref"),
    ("patternProperty", "patternProperties"),
    ("incompatible types", "type enum const"),
    ("Invalid type", "type"),
    ("nknown format", "format"),
    ("multiple of", "multipleOf"),
    ("integer range", "minimum exclusiveMinimum maximum exclusiveMaximum"),
    ("float range", "minimum exclusiveMinimum maximum exclusiveMaximum"),
    ("interval", "minimum exclusiveMinimum maximum exclusiveMaximum enum const"),
    ("oneOf constraints", "oneOf"),
    ("Regex is empty", "pattern format enum const minLength maxLength"),
    ("egex", "pattern"),
    ("lookaround", "pattern"),
)


def refusal(message: str, source: str) -> GrammarError:
    """The error for what llguidance says of a grammar.

    Args:
        message: What it says.
        source: Of which grammar.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^|")]
    first = re.sub(
        r"^at \d+\(\d+\): failed to compile JSON schema: ", "", lines[0] if lines else ""
    )
    reason = first
    # what is wrong with a regular expression comes behind it, and in Lark's notation the line
    # that it is in follows
    fault = next((line for line in lines[1:] if line.startswith("error: ")), None)
    if fault is not None:
        place = first.partition(" (in regex)")[0].removesuffix(":")
        reason = f"{place[:40]}: {fault.removeprefix('error: ')}"
    if re.search("fuel|too large|[Tt]oo many|too big", first):
        return GrammarError("the grammar is too complex.", found=reason[:100])
    if '"json_schema"' not in source and "%json" not in source:
        return GrammarError("the grammar is not valid.", found=reason[:100])
    # the keywords that the message names, or those of its topic that were used
    about = next((keywords.split() for topic, keywords in _TOPICS if topic in first), [])
    about = [each for each in about if f'"{each}"' in source] or about
    words = re.findall(r"""["']?[$A-Za-z]+["']?""", first)
    named = [each.strip("\"'") for each in words if each not in _WORDS]
    named = [each for each in dict.fromkeys(named) if each in _KEYWORDS]
    name = ", ".join(about or named)
    see = f": see {name}." if name else "."
    if "Unsatisfiable" in first:
        return GrammarError(f"nothing is valid under the schema{see}", found=reason[:100])
    if name == "oneOf":
        reason = "its alternatives are not told apart by a type or a constant"
    return GrammarError(
        f"the schema cannot be enforced{see}",
        found=reason[:100],
        hint="leave the keyword out, or say it in another way",
    )
