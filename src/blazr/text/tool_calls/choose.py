"""Which format of tool calls a model uses: what its chat template, family or vocabulary says."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

from blazr.text.tool_calls.format import ToolFormat
from blazr.text.tool_calls.rows import TOOL_FORMATS

# What a model is asked for that has no format of its own.
DEFAULT = "hermes"


def choose_tool_format(
    template_source: str, family: str, vocab: Container[str] = (), *, name: str | None = None
) -> ToolFormat | None:
    """Find the format of a model's tool calls.

    Args:
        template_source: Its chat template.
        family: What kind of checkpoint it is.
        vocab: The names of its special tokens.
        name: The format to use, or ``"none"``, whatever the model says.

    Returns:
        The format; None where none is wanted.

    Raises:
        UnknownNameError: ``name`` is no format.
    """
    if name is not None:
        return None if name == "none" else TOOL_FORMATS[name]
    rows = list(TOOL_FORMATS.values())
    by_template = (
        row for row in rows if row.signs and all(s in template_source for s in row.signs)
    )
    by_family = (row for row in rows if family in row.families)
    # every model that uses one of the named vocabularies has their agent tokens
    others = (row for row in rows if "oxidizr" not in row.families)
    by_vocab = (row for row in others if row.markers and row.markers[0] in vocab)
    return next(chain(by_template, by_family, by_vocab), TOOL_FORMATS[DEFAULT])
