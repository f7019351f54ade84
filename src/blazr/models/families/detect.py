"""Which family a checkpoint belongs to."""

from __future__ import annotations

from blazr.core.errors import CheckpointError, UnknownFamilyError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import Family
from blazr.models.families.hf.derive import model_type

_HINT = (
    "'blazr generate', 'chat', 'serve' and 'info' run what transformers knows through that library"
    " (pip install 'blazr[transformers]')"
)


def detect_family(checkpoint: Checkpoint) -> Family:
    """The family whose tensor names or whose ``model_type`` these are.

    Raises:
        CheckpointError: They are no family's.
        UnknownFamilyError: config.json names a type of model that blazr does not know.
    """
    for family in FAMILIES.values():
        if family.matches(checkpoint):
            return family
    kind = model_type(checkpoint)
    if kind is not None:
        raise UnknownFamilyError(
            "config.json: this model_type is not supported.",
            found=repr(kind)[:100],
            expected=", ".join(FAMILIES),
            hint=_HINT,
        )
    names = ", ".join(name[:40] for name in list(checkpoint.tensors)[:4])
    raise CheckpointError(
        f"{checkpoint.path} is not a language model of a kind that blazr knows.",
        found=f"tensors such as {names}",
        expected="embed_tokens.weight and layers.0.* (oxidizr), the same behind model."
        " (Llama), backbone.* (Mamba), or a config.json that says",
    )
