"""Regular expressions, choices, and grammars in Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from blazr.core.errors import GrammarError

MAX_CHOICES = 4096
# The last line of a grammar whose rules somebody else wrote. They may allow only a text that never
# ends, as "a"+ "a" does where the repetition takes every "a"; llguidance, which looks for text that
# must follow, would never come to its end.
UNFORCED = '\n%llguidance {"no_forcing": true}'


def regex(value: object, special_ids: Mapping[str, int]) -> str:  # noqa: ARG001
    """The whole reply matches a regular expression, in the syntax of Rust's ``regex``.

    Raises:
        GrammarError: The value is no string.
    """
    pattern = checked_text(value, "regex")
    # in Lark a slash ends the expression, and it ends with its line
    escaped = re.sub(r"(\\.)|/", lambda each: each[1] or r"\/", pattern, flags=re.DOTALL)
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r")
    return f"start: /{escaped}/" if pattern else 'start: ""'


def choice(value: object, special_ids: Mapping[str, int]) -> str:  # noqa: ARG001
    """One of several texts.

    Raises:
        GrammarError: The value is no list of texts, or one is empty.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise GrammarError("choice needs texts to choose from.", expected='["yes", "no"]')
    if len(value) > MAX_CHOICES:
        expected = f"at most {MAX_CHOICES}"
        raise GrammarError("choice has too many texts.", found=f"{len(value)}", expected=expected)
    texts = dict.fromkeys(checked_text(each, "choice") for each in value)
    if "" in texts:
        raise GrammarError("choice has an empty text.", expected="texts of one character or more")
    return "start: " + " | ".join(literal(each) for each in texts)


def lark(value: object, special_ids: Mapping[str, int]) -> str:
    """A context-free grammar in llguidance's Lark.

    Raises:
        GrammarError: The value is no string.
    """
    return lark_rules(value, special_ids) + UNFORCED


def lark_rules(value: object, special_ids: Mapping[str, int]) -> str:  # noqa: ARG001
    """The same as a part of another grammar.

    Raises:
        GrammarError: The value is no string.
    """
    source = checked_text(value, "lark")
    if source.lstrip().startswith("{"):  # llguidance would take it for its own JSON form
        raise GrammarError("this is no Lark grammar.", expected='rules, such as start: "a" | "b"')
    return source


def literal(text: str) -> str:
    """A text as Lark spells it."""
    return json.dumps(text, ensure_ascii=False)


def inside_string(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def checked_text(value: object, name: str) -> str:
    """A value that is to be a text.

    Raises:
        GrammarError: It is none.
    """
    if not isinstance(value, str):
        raise GrammarError(f"{name} needs a text.", found=type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{name} is not valid Unicode.") from None
    return value
