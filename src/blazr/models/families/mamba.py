"""Pure Mamba models as mamba_ssm names them behind ``backbone.``, and Mamba-1 of Hugging Face."""

from __future__ import annotations

import math
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import (
    ConfigReader,
    Context,
    Derivation,
    Family,
    Ledger,
    TensorGroup,
    read_max_seq_len,
    split_layers,
    value_or,
)
from blazr.models.families.hf.derive import SILU, model_type
from blazr.models.families.hf.mamba import BACKBONE_RULES
from blazr.models.families.hf.state_space import TRAINING
from blazr.models.families.oxidizr import DEFAULT_EPS
from blazr.models.families.oxidizr_layers import derive_mamba1, derive_mamba2
from blazr.models.families.unread import check_unread
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config

PREFIX = "backbone."
_READ_FROM_TENSORS = ("state_size", "conv_kernel", "tie_word_embeddings")
_IGNORED_KEYS = (
    "d_model",
    "n_layer",
    "d_inner",
    "ssm_cfg",
    "rms_norm",
    "fused_add_norm",
    "pad_vocab_size_multiple",
)


def _derive(checkpoint: Checkpoint) -> Derivation:
    reader = ConfigReader(checkpoint.config)
    ledger = Ledger()
    reader.expect("hidden_act", *SILU)
    layers = split_layers(checkpoint.tensors, f"{PREFIX}layers.")
    top = TensorGroup("", checkpoint.tensors)
    names = [PREFIX + "embedding.weight", PREFIX + "embeddings.weight", "lm_head.weight"]
    wide = [*((name, 1) for name in names), (PREFIX + "norm_f.weight", 0)]
    hidden = ledger.size(top, reader, "hidden_size", *wide)
    vocab = ledger.size(top, reader, "vocab_size", *((name, 0) for name in names))
    ledger.reconcile("num_layers", len(layers), PREFIX + "layers.*", reader.integer("num_layers"))
    eps = ledger.choose("rms_norm_eps", reader.number("layer_norm_epsilon", above=0), DEFAULT_EPS)
    norm = NormConfig(hidden, eps)
    context = Context(reader, ConfigReader({}), ledger, layers, hidden, eps)
    config = ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        max_seq_len=read_max_seq_len(reader, ledger),
        layers=tuple(
            LayerConfig(mixer=_mixer(layer, context), mixer_norm=norm) for layer in layers
        ),
        final_norm=norm,
        tie_word_embeddings=not top.has("lm_head."),
    )
    if model_type(checkpoint) is not None:
        reader.mark(*TRAINING, *_READ_FROM_TENSORS, *_IGNORED_KEYS)
        check_unread(reader, ledger)
    return ledger.derivation(config, BACKBONE_RULES)


def _mixer(layer: TensorGroup, context: Context) -> Mamba1Config | Mamba2Config:
    if layer.has("mixer.dt_bias"):
        own = context.reader.raw.get("ssm_cfg")
        unusual = {"norm_before_gate", "dt_limit"}.intersection(
            own if isinstance(own, dict) else ()
        )
        if unusual:  # what no tensor tells
            raise ConfigError(
                f"{context.reader.source}: this option of mamba_ssm is not supported.",
                found=f"ssm_cfg.{min(unusual)}",
                expected="the gate before the norm, and step sizes without limits",
            )
        found = derive_mamba2(layer, context, at="mixer.")
        return replace(
            found,
            norm_eps=context.eps,
            norm_groups=found.num_groups,
            in_bias=layer.has("mixer.in_proj.bias"),
            out_bias=layer.has("mixer.out_proj.bias"),
            conv_bias=layer.has("mixer.conv1d.bias"),
            dt_limits=(0.0, math.inf),
        )
    mixer = derive_mamba1(layer, context, at="mixer.")
    reader = context.reader
    return replace(
        mixer,
        bias=value_or(reader.boolean("use_bias"), layer.has("mixer.in_proj.bias")),
        conv_bias=value_or(reader.boolean("use_conv_bias"), default=True),
    )


def _matches(checkpoint: Checkpoint) -> bool:
    """By names; other models with such names have a config that says what they are."""
    is_named = any(name.startswith(PREFIX) for name in checkpoint.tensors)
    return is_named and model_type(checkpoint) in {None, "mamba"}


MAMBA = Family(
    name="mamba",
    matches=_matches,
    derive=_derive,
    rules=BACKBONE_RULES,
)
