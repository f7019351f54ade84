"""Llama and its near relatives in Hugging Face's layout: Mistral, Qwen2, Qwen3.

They differ in what the tensors already show (biases, norms of queries and keys, a tied head) and in
which layers look at a window only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Derivation, Family
from blazr.models.families.config_reader import ConfigReader
from blazr.models.families.oxidizr import decoder_rules, derive_decoder
from blazr.models.families.oxidizr_shapes import TensorGroup

PREFIX = "model."
Window = Callable[[ConfigReader, int], int | None]


def _mistral_window(reader: ConfigReader, index: int) -> int | None:
    del index
    found = reader.integer("sliding_window", minimum=1)
    return found.value if found else None


def _qwen_window(reader: ConfigReader, index: int) -> int | None:
    enabled = reader.boolean("use_sliding_window")
    if enabled is None or not enabled.value:
        return None
    types = reader.texts("layer_types")
    first = reader.integer("max_window_layers")
    if types is not None and index < len(types.value):
        slides = types.value[index] == "sliding_attention"
    else:
        slides = index >= (first.value if first else 0)
    return _mistral_window(reader, index) if slides else None


# What config.json calls the model, and where its windows are.
MODEL_TYPES: Mapping[str, Window | None] = MappingProxyType(
    {
        "llama": None,
        "mistral": _mistral_window,
        "qwen2": _qwen_window,
        "qwen3": _qwen_window,
    }
)


def _derive(checkpoint: Checkpoint) -> Derivation:
    kind = ConfigReader(checkpoint.config).text("model_type")
    if kind is not None and kind.value not in MODEL_TYPES:
        raise ConfigError(
            f"{kind.source}: this model is not supported, although its tensors look like Llama's.",
            found=repr(kind.value)[:100],
            expected=", ".join(MODEL_TYPES),
        )
    window = MODEL_TYPES[kind.value] if kind else None
    return derive_decoder(checkpoint, prefix=PREFIX, window=window, check=_check)


def _check(reader: ConfigReader, layers: list[TensorGroup]) -> None:
    """Refuse what would load and then compute something else."""
    activation = reader.text("hidden_act")
    if activation is not None and activation.value not in {"silu", "swish"}:
        raise ConfigError(
            f"{activation.source} is not supported.",
            found=repr(activation.value)[:100],
            expected="silu",
        )
    partial = reader.number("partial_rotary_factor")
    if partial is not None and partial.value != 1:
        raise ConfigError(
            f"{partial.source} is not supported.", found=f"{partial.value:g}", expected="1"
        )
    declared = reader.integer("num_layers")
    if declared is not None and declared.value != len(layers):
        raise CheckpointError(
            "the file does not hold all layers.",
            found=f"{len(layers)} layers",
            expected=f"{declared.value}, by {declared.source}",
            hint="copy or download it again",
        )


LLAMA = Family(
    name="llama",
    matches=lambda checkpoint: any(name.startswith(PREFIX) for name in checkpoint.tensors),
    derive=_derive,
    rules=decoder_rules(PREFIX),
    ignored=(".rotary_emb.inv_freq",),
)
