"""Pure Mamba-1 models, as mamba_ssm and Hugging Face name them behind ``backbone.``."""

from __future__ import annotations

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.config import ModelConfig
from blazr.models.families.base import Context, Derivation, Family, Ledger
from blazr.models.families.config_reader import ConfigReader
from blazr.models.families.oxidizr import DEFAULT_EPS, mamba1_rules, read_max_seq_len
from blazr.models.families.oxidizr_mixers import derive_mamba1
from blazr.models.families.oxidizr_shapes import TensorGroup, split_layers
from blazr.models.families.rules import Rule, RuleBook
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.norm import NormConfig

PREFIX = "backbone."


def _derive(checkpoint: Checkpoint) -> Derivation:
    reader, ledger = ConfigReader(checkpoint.config), Ledger()
    kind = reader.text("model_type")
    if kind is not None and kind.value != "mamba":
        raise ConfigError(
            f"{kind.source}: this model is not supported.",
            found=repr(kind.value)[:100],
            expected="mamba",
        )
    layers = split_layers(checkpoint.tensors, PREFIX)
    top = TensorGroup("", checkpoint.tensors)
    names = [PREFIX + "embedding.weight", PREFIX + "embeddings.weight", "lm_head.weight"]
    hidden = top.size(*((name, 1) for name in names), (PREFIX + "norm_f.weight", 0))
    vocab = top.size(*((name, 0) for name in names))
    ledger.settle("hidden_size", hidden.value, hidden.source, reader.integer("hidden_size"))
    ledger.settle("vocab_size", vocab.value, vocab.source, reader.integer("vocab_size"))
    ledger.settle("num_layers", len(layers), PREFIX + "layers.*", reader.integer("num_layers"))
    eps = ledger.choose("rms_norm_eps", reader.number("layer_norm_epsilon", above=0), DEFAULT_EPS)
    norm = NormConfig(hidden.value, eps)
    context = Context(reader, ConfigReader(None), ledger, layers, hidden.value, eps)
    config = ModelConfig(
        vocab_size=vocab.value,
        hidden_size=hidden.value,
        max_seq_len=read_max_seq_len(reader, ledger),
        layers=tuple(
            LayerConfig(mixer=derive_mamba1(layer, context, at="mixer."), mixer_norm=norm)
            for layer in layers
        ),
        final_norm=norm,
        tie_word_embeddings=not top.has("lm_head."),
    )
    return Derivation(config, tuple(ledger.values.values()), tuple(ledger.warnings))


def _rules() -> RuleBook:
    layer = PREFIX + "layers.{i}."
    return RuleBook(
        [
            Rule(PREFIX + "embedding.weight", "embed_tokens.weight"),
            Rule(PREFIX + "embeddings.weight", "embed_tokens.weight"),
            Rule(PREFIX + "norm_f.weight", "norm.weight"),
            Rule("lm_head.weight", "lm_head.weight"),
            Rule(layer + "norm.weight", "layers.{i}.mixer_norm.weight"),
            *mamba1_rules(layer + "mixer."),
        ]
    )


MAMBA = Family(
    name="mamba",
    matches=lambda checkpoint: any(name.startswith(PREFIX) for name in checkpoint.tensors),
    derive=_derive,
    rules=_rules(),
)
