"""Llama in Hugging Face's layout, also where config.json is missing or says little.

With a config that names its type it is read like every other Hugging Face model. Without one, the
tensors tell biases, norms of queries and keys and a tied head, and the usual sizes the rest.
"""

from __future__ import annotations

from dataclasses import replace

from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Derivation
from blazr.models.families.hf.dense import LLAMA as DECLARED
from blazr.models.families.hf.derive import model_type
from blazr.models.families.oxidizr import derive_decoder

PREFIX = "model."


def _matches(checkpoint: Checkpoint) -> bool:
    kind = model_type(checkpoint)
    if kind is not None:
        return kind == DECLARED.name
    return any(name.startswith(PREFIX) for name in checkpoint.tensors)


def _derive(checkpoint: Checkpoint) -> Derivation:
    if model_type(checkpoint) is not None:
        return DECLARED.derive(checkpoint)
    return derive_decoder(checkpoint, prefix=PREFIX)


LLAMA = replace(DECLARED, matches=_matches, derive=_derive)
