"""Families: each translates one kind of checkpoint's config and tensor names into ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.models.families.base import Family

# Each recognises its own prefix, so their order does not matter.
FAMILIES: Table[Family] = Table(
    "model family",
    {},
    lazy={
        "oxidizr": "blazr.models.families.oxidizr:OXIDIZR",
        "llama": "blazr.models.families.llama:LLAMA",
        "mamba": "blazr.models.families.mamba:MAMBA",
    },
)
