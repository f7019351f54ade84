"""Llama in Hugging Face's layout, also where config.json is missing or says little.

With a config that names its type it is read like every other Hugging Face model. Without one, the
tensors tell biases, norms of queries and keys and a tied head, and the usual sizes the rest.
"""

from __future__ import annotations

from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Derivation, Family, TensorGroup
from blazr.models.families.config_reader import ConfigReader
from blazr.models.families.hf.dense import LLAMA as DECLARED
from blazr.models.families.hf.derive import model_type
from blazr.models.families.oxidizr import decoder_rules, derive_decoder
from blazr.models.families.rules import RuleBook

PREFIX = "model."
_SHAPE_RULES = decoder_rules(PREFIX)


def _matches(checkpoint: Checkpoint) -> bool:
    kind = model_type(checkpoint)
    if kind is not None:
        return kind == DECLARED.name
    return any(name.startswith(PREFIX) for name in checkpoint.tensors)


def _derive(checkpoint: Checkpoint) -> Derivation:
    if model_type(checkpoint) is not None:
        return DECLARED.derive(checkpoint)
    return derive_decoder(checkpoint, prefix=PREFIX, check=_check)


def _check(reader: ConfigReader, layers: list[TensorGroup]) -> None:
    """Shapes tell all that a config without a type could."""


def _rules_of(checkpoint: Checkpoint) -> RuleBook:
    return DECLARED.rules if model_type(checkpoint) is not None else _SHAPE_RULES


LLAMA = Family(
    name="llama",
    matches=_matches,
    derive=_derive,
    rules=DECLARED.rules,
    rules_of=_rules_of,
    ignored=DECLARED.ignored,
    keys=DECLARED.keys,
)
