"""An EAGLE-3 head from its files, put behind the network that it was trained for.

Two formats are read: the one of the paper's authors and SGLang (`midlayer.*`), and that of vLLM's
`speculators` library (`layers.0.*`, the layer's config under ``transformer_layer_config``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from blazr.core.errors import CheckpointError, ConfigError, ShapeError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.checkpoint.open import find_model, open_checkpoint
from blazr.models.families.base import HF_ALIASES, ConfigReader
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import Reading, Traits, read_attention, read_mlp
from blazr.models.loading.load import LoadedModel
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.eagle import Eagle3Config

_PARAMETERS = {
    "embed_tokens": "embed_tokens.weight",
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "midlayer.hidden_norm.weight",
    "embedding_norm.weight": "midlayer.input_layernorm.weight",
    "layer.feed_forward_norm.weight": "midlayer.post_attention_layernorm.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_PREFIXES = {"layer.mixer.": "midlayer.self_attn.", "layer.feed_forward.": "midlayer.mlp."}
_TO_TARGET = "d2t"  # what is added to a draft id for the network's id of the same token
_HAS_DRAFT_ID = "t2d"  # which of the network's ids have a draft id; the other tensor tells it, too
_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
_TRAITS = Traits(attention=LLAMA_BIASES, mlp={"bias": "mlp_bias"})


def with_eagle3(loaded: LoadedModel, model: str) -> LoadedModel:
    """Put a head behind a network, which is changed.

    Args:
        loaded: The network.
        model: The head: a directory, a file or a Hub id.

    Raises:
        CheckpointError: There is no such head, or its tensors are not those of one.
        ShapeError: It does not fit the network.
        ConfigError: Its config.json has a wrong value, or it is of another kind.
    """
    checkpoint = open_checkpoint(find_model(model).path)
    tensors = {_plain_name(name): name for name in checkpoint.tensors}
    config = _derive(checkpoint, tensors, loaded)
    with torch.device("meta"):
        module = config.build()
    wanted = {name: _tensor_name(name) for name, _ in module.named_parameters()}
    _check_names(tensors, wanted.values(), checkpoint)
    like = loaded.module.norm.weight
    read = partial(_read, checkpoint, tensors)
    for name, source in wanted.items():
        owner, _, last = name.rpartition(".")
        found = read(source, module.get_parameter(name).shape).to(like.device, like.dtype)
        setattr(module.get_submodule(owner), last, nn.Parameter(found, requires_grad=False))
    token_ids = torch.arange(config.draft_vocab_size)
    if _TO_TARGET in tensors:
        token_ids = token_ids + read(_TO_TARGET, token_ids.shape).long()
    if token_ids.min() < 0 or token_ids.max() >= loaded.vocab_size:
        raise ShapeError(
            f"{_TO_TARGET} of the EAGLE-3 head points to tokens that {loaded.name} does not have.",
            found=f"ids {int(token_ids.min())} to {int(token_ids.max())}",
            expected=f"0 to {loaded.vocab_size - 1}",
        )
    module.token_ids = token_ids.to(like.device)
    changed = replace(loaded.config, mtp=config)
    loaded.module.config = changed
    loaded.module.mtp = module.eval()
    return replace(loaded, config=changed)


def _read(
    checkpoint: Checkpoint, tensors: Mapping[str, str], name: str, shape: torch.Size
) -> Tensor:
    found = checkpoint.own(checkpoint.tensors[tensors[name]])
    if found.shape != shape:
        raise ShapeError(
            f"the EAGLE-3 head's {name} does not fit.",
            found=f"{list(found.shape)} in {checkpoint.path.name}",
            expected=f"{list(shape)}, by its config.json and by the network",
        )
    return found


def _derive(
    checkpoint: Checkpoint, tensors: Mapping[str, str], loaded: LoadedModel
) -> Eagle3Config:
    raw = checkpoint.config
    layer = raw.get("transformer_layer_config", raw)
    if "fc.weight" not in tensors or not isinstance(layer, Mapping):
        raise ConfigError(
            f"{checkpoint.path.name} is no EAGLE-3 head.",
            found=", ".join(sorted(tensors)[:4]),
            expected="config.json, and tensors fc.weight, midlayer.*, norm.weight, lm_head.weight",
        )
    if raw.get("norm_before_fc"):
        raise ConfigError(
            "this kind of EAGLE-3 head is not known.",
            found="norm_before_fc in its config.json",
            expected="a head without a norm before its projection",
        )
    reader = ConfigReader({"num_hidden_layers": 1, **layer}, "config.json", HF_ALIASES)
    reading = Reading(reader, checkpoint.tensors)
    if reading.num_layers != 1:
        raise ConfigError(
            "only EAGLE-3 heads of one layer are known.", found=f"{reading.num_layers} layers"
        )
    size, target = reading.hidden_size, loaded.config.hidden_size
    norm = NormConfig(size, reading.number("rms_norm_eps", 1e-6))
    attention = read_attention(reading, _TRAITS, norm, 0)
    own = checkpoint.tensors.get(tensors.get("embed_tokens.weight", ""))
    if own is None and size != target:
        raise ShapeError(
            "an EAGLE-3 head without an embedding of its own has to be as wide as its network.",
            found=f"{size} channels",
            expected=f"{target}, as {loaded.name}",
        )
    return Eagle3Config(
        layer=LayerConfig(
            mixer=replace(attention, hidden_size=2 * size, output_size=size),
            mixer_norm=None,
            feed_forward=read_mlp(reading, _TRAITS.mlp),
            feed_forward_norm=norm,
        ),
        norm=norm,
        aux_layers=_aux_layers(raw, len(loaded.config.layers)),
        aux_size=target,
        vocab_size=0 if own is None else loaded.vocab_size,
        draft_vocab_size=checkpoint.tensors[tensors["lm_head.weight"]].shape[0]
        if "lm_head.weight" in tensors
        else loaded.vocab_size,
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
    )


def _aux_layers(raw: Mapping[str, object], num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs the head reads.

    `speculators` names these layers, the other format those whose outputs are the same.
    """
    found, offset = raw.get(_AUX_LAYERS), 0
    nested = raw.get("eagle_config")
    if found is None and isinstance(nested, Mapping):
        found, offset = nested.get(_AUX_LAYERS), 1
    if found is None:
        return tuple(sorted({min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0)}))
    layers = []
    if isinstance(found, list) and all(type(each) is int for each in found):
        layers = [each + offset for each in found]
    if not layers or sorted(set(layers)) != layers or layers[0] < 0 or layers[-1] >= num_layers:
        raise ConfigError(
            f"{_AUX_LAYERS} of the EAGLE-3 head does not fit.",
            found=str(found)[:100],
            expected=f"layers of a network of {num_layers}, in ascending order",
        )
    return tuple(layers)


def _plain_name(name: str) -> str:
    """A tensor's name as the authors' format has it."""
    name = name.removeprefix("model.")
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _tensor_name(parameter: str) -> str:
    """The name of the tensor for a parameter of the module, in the authors' format."""
    for own, theirs in _PREFIXES.items():
        if parameter.startswith(own):
            return theirs + parameter.removeprefix(own)
    return _PARAMETERS[parameter]


def _check_names(tensors: Mapping[str, str], wanted: Iterable[str], checkpoint: Checkpoint) -> None:
    missing = sorted(set(wanted) - tensors.keys())
    extra = sorted(tensors.keys() - set(wanted) - {_TO_TARGET, _HAS_DRAFT_ID})
    if missing or extra:
        raise CheckpointError(
            f"{checkpoint.path.name} is no EAGLE-3 head that is known.",
            found=f"{', '.join(extra[:3]) or 'nothing'} beside the others",
            expected=f"{', '.join(missing[:3]) or 'nothing'} besides",
        )
