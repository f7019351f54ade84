"""oxidizr checkpoints: any mix of Mamba, latent attention, MoE, attention and MLP.

The tensors decide whatever their names and shapes determine, since config.json can be older than
they are; config.json decides the rest; then come the format's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest

from blazr.core.errors import ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint, read_json
from blazr.models.families.base import (
    ALL_NAMES,
    ConfigReader,
    Context,
    Derivation,
    Family,
    Ledger,
    TensorGroup,
    read_max_seq_len,
    split_layers,
)
from blazr.models.families.hf.state_space import mixer_rules
from blazr.models.families.oxidizr_layers import (
    LATENT_DOWN,
    derive_attention,
    derive_feed_forward,
    derive_mamba1,
    derive_mamba2,
    derive_mamba3,
    derive_mla,
)
from blazr.models.families.rules import (
    FEED,
    GATE_UP_DOWN,
    MIXER,
    OURS,
    PARTS,
    Rule,
    RuleBook,
    Squeeze,
    Stack,
    renamed,
)
from blazr.models.families.unread import is_neutral, is_off, warn_ignored
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.parallel import ParallelFeedForwardConfig

DEFAULT_EPS = 1e-5
MAMBA_NORM_EPS = 1e-6
# Beside those of ALL_NAMES: keys that are read elsewhere, or of layers that a model may not have.
_KNOWN = {name.partition(".")[0] for names in ALL_NAMES.values() for name in names} | {
    "name",
    "vocab_size",
    "rms_norm_eps",
    "intermediate_size",
    "layer_types",
    "inference",
    "ssm_a",
    "mamba3_enabled",
    "tie_word_embeddings",
    "sliding_window",
    "norm_eps",
}
LAYER_TYPES = ("Mamba1", "Mamba2", "Mamba3", "MlaWithMoe", "MlaWithMlp", "StandardTransformer")

_MAMBA1 = ("in_proj.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias")
_MAMBA3 = ("lambda_proj", "theta_proj", "mimo_x_up", "mimo_x_down")
_LATENT = {
    "w_dkv": "kv_down_proj",
    "w_dq": "q_down_proj",
    "w_uq": "q_up_proj",
    "w_uk": "k_up_proj",
    "w_uv": "v_up_proj",
    "w_qr": "q_rope_proj",
    "w_kr": "k_rope_proj",
}


def decoder_rules(prefix: str) -> RuleBook:
    """Names of the whole model, with ``prefix`` before all but the head's."""
    layer = prefix + "layers.{i}."
    rules = [
        Rule(prefix + "embed_tokens.weight", "embed_tokens.weight"),
        Rule(prefix + "norm.weight", "norm.weight"),
        Rule("lm_head.weight", "lm_head.weight"),
        Rule(layer + "input_layernorm.weight", OURS + "mixer_norm.weight"),
        Rule(layer + "post_attention_layernorm.weight", OURS + "feed_forward_norm.weight"),
        Rule(layer + "norm.weight", OURS + "mixer_norm.weight"),
    ]
    for at in ("mamba2.", "mamba3."):
        rules += [
            Rule(layer + at + "norm.{p}", OURS + "mixer_norm.{p}", p=PARTS),
            *mixer_rules(layer + at + "mixer."),
        ]
    mamba3 = tuple(f"{name}.{part}" for name in _MAMBA3 for part in PARTS)
    own = (*mamba3, "b_bias", "c_bias", "bc_norm.weight")
    rules += [
        Rule(layer + "mamba3.mixer.{p}", MIXER + "{p}", p=own),
        Rule(layer + "mamba.{p}", MIXER + "{p}", p=(*_MAMBA1, "out_proj.weight", "a_log", "d")),
        Rule(layer + "mamba.conv1d.weight", MIXER + "conv1d.weight", Squeeze(1)),
        Rule(layer + "mamba.A_log", MIXER + "a_log"),
        Rule(layer + "mamba.D", MIXER + "d"),
        *renamed(layer + "self_attn.", MIXER, _LATENT),
    ]
    projections = tuple(f"{p}_proj.{part}" for p in "qkv" for part in PARTS)
    attention = (*projections, "o_proj.weight", "q_norm.weight", "k_norm.weight")
    rules.append(Rule(layer + "self_attn.{p}", MIXER + "{p}", p=attention))
    shared = "shared_expert.{p}_proj.weight"
    experts = layer + "moe.experts.{e}.{p}_proj.weight"
    rules += [
        Rule(layer + "mlp.{p}_proj.weight", FEED + "{p}_proj.weight", p=GATE_UP_DOWN),
        Rule(layer + "moe.router.gate.weight", FEED + "router.weight"),
        Rule(layer + "moe.gate.weight", FEED + "router.weight"),
        Rule(layer + "moe." + shared, FEED + shared, p=GATE_UP_DOWN),
        Rule(experts, FEED + "experts.{p}_proj", Stack("e"), p=GATE_UP_DOWN),
    ]
    return RuleBook(rules)


def derive_decoder(
    checkpoint: Checkpoint,
    *,
    prefix: str,
    is_oxidizr: bool = False,
) -> Derivation:
    """Find the config of a model whose tensors are named as oxidizr or Llama does.

    Args:
        checkpoint: The tensors and config.json.
        prefix: What stands before the names of all but the head.
        is_oxidizr: Whether config.json may say of which types the layers are, and have a window.

    Raises:
        CheckpointError: Tensors are missing.
        ShapeError: Tensors do not fit each other.
        ConfigError: config.json has a wrong value, or contradicts itself or the layers.
    """
    layers = split_layers(checkpoint.tensors, f"{prefix}layers.")
    reader = ConfigReader(checkpoint.config)
    ledger = Ledger()
    top = TensorGroup("", checkpoint.tensors)
    embedding = prefix + "embed_tokens.weight"
    witnesses = {
        "hidden_size": ((embedding, 1), ("lm_head.weight", 1), (prefix + "norm.weight", 0)),
        "vocab_size": ((embedding, 0), ("lm_head.weight", 0)),
    }
    sizes = {name: ledger.size(top, reader, name, *each) for name, each in witnesses.items()}
    hidden, vocab = sizes.values()
    declared = reader.integer("num_layers")
    sizes["num_layers"] = ledger.reconcile("num_layers", len(layers), f"{prefix}layers.*", declared)
    tied = ledger.reconcile(
        "tie_word_embeddings",
        not top.has("lm_head."),
        "lm_head.weight" if top.has("lm_head.") else "lm_head.weight (absent)",
        reader.boolean("tie_word_embeddings"),
    )
    eps = ledger.choose("rms_norm_eps", reader.number("rms_norm_eps", above=0), DEFAULT_EPS)
    training = _training_notes(checkpoint, sizes)
    # oxidizr itself has no such key
    declared_window = reader.integer("sliding_window", minimum=1) if is_oxidizr else None
    window = None
    if declared_window is not None:
        window = ledger.record("sliding_window", declared_window.value, declared_window.source)
    context = Context(
        reader=reader,
        training=training,
        ledger=ledger,
        layers=layers,
        hidden_size=hidden,
        eps=eps,
        sliding_window=window,
    )
    config = ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        max_seq_len=read_max_seq_len(reader, ledger),
        layers=tuple(_derive_layer(layer, context) for layer in layers),
        final_norm=NormConfig(hidden, eps),
        tie_word_embeddings=tied,
    )
    if is_oxidizr:
        _check_layer_types(reader, [layer_type_of(layer) for layer in config.layers])
    unread = [key for key, value in reader.unread().items() if not is_off(value)]
    unknown = [key for key in unread if key not in _KNOWN and not is_neutral(key)]
    warn_ignored(reader.source, unknown, ledger)
    return ledger.derivation(config, decoder_rules(prefix))


def _training_notes(checkpoint: Checkpoint, sizes: dict[str, int]) -> ConfigReader:
    """The model part of training_config.json, if it is about a model of these sizes.

    Packing copies the latest run's file, which need not be this model's.
    """
    path = checkpoint.directory / "training_config.json"
    if not path.exists():
        return ConfigReader({})
    outer = ConfigReader(read_json(path), path.name).section("config")
    notes = outer.section("model") if outer else None
    if notes is None:
        return ConfigReader({})
    found = {name: notes.integer(name) for name in sizes}
    agrees = all(f is not None and f.value == sizes[name] for name, f in found.items())
    return notes if agrees else ConfigReader({})


# Mixers by what the names of their tensors begin with, the first that a layer has.
_MIXERS: dict[str, Callable[[TensorGroup, Context], MixerConfig]] = {
    "mamba3.": derive_mamba3,
    "mamba2.": derive_mamba2,
    "mamba.": derive_mamba1,
    LATENT_DOWN: derive_mla,
    "": derive_attention,
}


def _derive_layer(layer: TensorGroup, context: Context) -> LayerConfig:
    at = next(each for each in _MIXERS if layer.has(each))
    norm = NormConfig(context.hidden_size, context.eps)
    mixer = _MIXERS[at](layer, context)
    if at in {"mamba2.", "mamba3."} and layer.has(at + "norm.bias"):
        norm = NormConfig(context.hidden_size, MAMBA_NORM_EPS, "layer")
    if at.startswith("mamba"):
        return LayerConfig(mixer=mixer, mixer_norm=norm)
    return LayerConfig(
        mixer=mixer,
        mixer_norm=norm,
        feed_forward=derive_feed_forward(layer, context),
        feed_forward_norm=norm,
    )


def layer_type_of(layer: LayerConfig) -> str:
    """A layer's type as config files name it, for example ``"MlaWithMoe"``."""
    has_moe = isinstance(layer.feed_forward, MoeConfig | ParallelFeedForwardConfig)
    match layer.mixer:
        case MlaConfig():
            return "MlaWithMoe" if has_moe else "MlaWithMlp"
        case AttentionConfig():
            return "GqaWithMoe" if has_moe else "StandardTransformer"
        case other:
            return type(other).__name__.removesuffix("Config")


def _check_layer_types(reader: ConfigReader, types: list[str]) -> None:
    """What config.json says about layers must be what the tensors are."""
    declared = reader.texts("layer_types")
    if declared is not None:
        names = [_canonical(name, declared.source, i) for i, name in enumerate(declared.value)]
        for index, (says, is_really) in enumerate(zip_longest(names, types)):
            if says != is_really:
                raise ConfigError(
                    f"{declared.source} and the tensors disagree about layer {index}.",
                    found=f"{declared.source} says {says or 'nothing'}",
                    expected=f"{is_really or 'no such layer'}, by its tensors",
                    hint="correct 'layer_types' or take it out: the tensors are enough",
                )
    mamba = [i for i, kind in enumerate(types) if kind.startswith("Mamba")]
    for key, wanted in (
        ("mamba_layers", mamba),
        ("hybrid_layers.attention_layers", sorted(set(range(len(types))) - set(mamba))),
    ):
        listed = reader.integers(key)
        wrong = sorted(set(listed.value) ^ set(wanted)) if listed else []
        if listed and wrong:
            found = types[wrong[0]] if 0 <= wrong[0] < len(types) else "no such layer"
            raise ConfigError(
                f"{listed.source} and the tensors disagree about layer {wrong[0]}.",
                found=f"{str(listed.value)[:60]}; by its tensors layer {wrong[0]} is: {found}",
                expected=str(wanted)[:100],
                hint=f"correct {listed.key!r} or take it out: the tensors are enough",
            )


def _canonical(name: str, source: str, index: int) -> str:
    plain = re.sub(r"[-_\s]", "", name).lower()
    for known in (*LAYER_TYPES, "GqaWithMoe"):
        if plain == known.lower():
            return known
    if plain == "mamba":
        return "Mamba1"
    raise ConfigError(
        f"{source}: layer {index} has an unknown type.",
        found=repr(name)[:100],
        expected=", ".join(LAYER_TYPES),
    )


def _is_oxidizr(checkpoint: Checkpoint) -> bool:
    names = checkpoint.tensors
    return any(name.startswith(("layers.", "embed_tokens.")) for name in names) and not any(
        name.startswith(("model.", "backbone.")) for name in names
    )


OXIDIZR = Family(
    name="oxidizr",
    matches=_is_oxidizr,
    derive=lambda checkpoint: derive_decoder(checkpoint, prefix="", is_oxidizr=True),
    rules=decoder_rules(""),
)
