"""Llama-Nemotron: Llamas whose layers were searched, each with sizes of its own [arXiv:2505.00949].

A layer may lack its attention, its MLP, or both.
"""

from __future__ import annotations

from collections.abc import Mapping

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import Reading, Traits, read_attention
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.parallel import ParallelMixerConfig

_BLOCKS = "block_configs"
_MULTIPLE = 256  # of which the size of an MLP is one


def _nas_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """With the list of layers as an object, whose keys are their numbers."""
    listed = own.get(_BLOCKS)
    if not isinstance(listed, list):
        return own
    return {**own, _BLOCKS: {str(index): block for index, block in enumerate(listed)}}


def _half(reading: Reading, index: int, name: str) -> ConfigReader | None:
    """What is said of a half of a layer; None where there is no such half.

    Where layers are not listed, all are like Llama's.

    Raises:
        ConfigError: This layer is not listed, or the half is a single matrix.
    """
    blocks = reading.reader.section(_BLOCKS)
    if blocks is None:
        return ConfigReader({}, reading.reader.source)
    block = blocks.section(str(index))
    half = block.section(name) if block else None
    if half is None:
        raise ConfigError(
            f"{reading.reader.source}: {_BLOCKS!r} says nothing of the {name} of layer {index}.",
            expected=f"an object {name!r} for each of {reading.num_layers} layers",
            hint="copy config.json from the original model beside the weights",
        )
    half.expect("replace_with_linear", False)  # noqa: FBT003  (a value)
    return None if half.is_true("no_op", default=False) else half


def _nas_attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig | None:
    half = _half(reading, index, "attention")
    if half is None:
        return None
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        half.expect(key)
    half.expect("unshifted_sink", False)  # noqa: FBT003  (a value)
    count = reading.size("num_attention_heads")
    kv_heads = half.integer("num_key_value_heads", minimum=1)
    group = half.integer("n_heads_in_group", minimum=1)
    if kv_heads is not None:
        own = kv_heads.value
    elif group is not None and count % group.value == 0:
        own = count // group.value
    elif group is None:
        own = reading.size("num_kv_heads", count)
    else:
        raise ConfigError(
            f"{group.source}: groups of {group.value} do not fit {count} heads."[:200],
            expected='an "n_heads_in_group" that divides "num_attention_heads"',
        )
    dim = reading.size("head_dim", reading.hidden_size // count or 1)
    return read_attention(reading, _NAS, norm, index, heads=(own, dim))


def _nas_mlp(reading: Reading, index: int) -> MlpConfig | None:
    half = _half(reading, index, "ffn")
    if half is None:
        return None
    half.expect("sparsify")
    size = half.integer("intermediate_size", minimum=1)
    factor = half.number("ffn_mult", above=0)
    if size is not None:
        inner = size.value
    elif factor is not None:
        whole = reading.derived("intermediate_size", 2 * factor.value * reading.hidden_size / 3)
        inner = -(-whole // _MULTIPLE) * _MULTIPLE
    else:
        inner = reading.size("intermediate_size")
    return MlpConfig(
        hidden_size=reading.hidden_size,
        intermediate_size=inner,
        activation=reading.activation("hidden_act"),
        bias=reading.flag("mlp_bias"),
    )


def _nas_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    attention, mlp = _nas_attention(reading, norm, index), _nas_mlp(reading, index)
    return LayerConfig(
        mixer=attention or ParallelMixerConfig(),
        mixer_norm=norm if attention else None,
        feed_forward=mlp,
        feed_forward_norm=norm if mlp else None,
    )


def _empty_layers(reading: Reading) -> list[int]:
    if reading.reader.section(_BLOCKS) is None:
        return []
    return [
        index
        for index in range(reading.num_layers)
        if _half(reading, index, "attention") is None and _half(reading, index, "ffn") is None
    ]


_NAS = Traits(
    defaults={"rms_norm_eps": 1e-5},
    attention=LLAMA_BIASES,
    layer=_nas_layer,
    empty_layers=_empty_layers,
    prepare=_nas_config,
    # what is said of each layer, or of halves that none may have
    ignored_keys=("attention_bias", "mlp_bias", "num_key_value_heads", "intermediate_size"),
)
NEMOTRON_NAS = _NAS.family("nemotron-nas")
