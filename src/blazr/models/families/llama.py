"""Llama in Hugging Face's layout, also where config.json is missing or says little.

With a config that names its type it is read like every other Hugging Face model. Without one, the
tensors tell biases, norms of queries and keys and a tied head, and the usual sizes the rest.
"""

from __future__ import annotations

from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Derivation, Family
from blazr.models.families.hf.dense import LLAMA as DECLARED
from blazr.models.families.hf.derive import model_type
from blazr.models.families.oxidizr import decoder_rules, derive_decoder

PREFIX = "model."
_SHAPE_RULES = decoder_rules(PREFIX)


def _has_type(checkpoint: Checkpoint) -> bool:
    return model_type(checkpoint) is not None


def _matches(checkpoint: Checkpoint) -> bool:
    if _has_type(checkpoint):
        return model_type(checkpoint) == DECLARED.name
    return any(name.startswith(PREFIX) for name in checkpoint.tensors)


def _derive(checkpoint: Checkpoint) -> Derivation:
    if _has_type(checkpoint):
        return DECLARED.derive(checkpoint)
    return derive_decoder(checkpoint, prefix=PREFIX)


LLAMA = Family(
    name="llama",
    matches=_matches,
    derive=_derive,
    rules=DECLARED.rules,
    rules_of=lambda found: DECLARED.rules if _has_type(found) else _SHAPE_RULES,
    ignored=DECLARED.ignored,
    keys=DECLARED.keys,
)
