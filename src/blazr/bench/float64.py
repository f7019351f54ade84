"""The network itself computed in float64, by the reference operations, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, WholeSequences
from blazr.nn.layers.altup import Streams
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.layers.embedding import Embedding
from blazr.nn.layers.linear import Linear, multiply
from blazr.nn.layers.shared_block import SharedBlockMixer
from blazr.nn.quant.packed import PackedWeight
from blazr.nn.quant.weight import Weight

# Rows of the head that are converted to float64 at once.
_TILE = 2**14


def float64_layers(model: CausalLM, token_ids: Tensor) -> Iterator[Tensor]:
    """Yield the output of every layer for one whole sequence.

    Packed weights are dequantized, except where products are defined to round their inputs. One
    layer at a time is in memory twice. Gradients are enabled because kernels do not support them,
    so that the reference operations run.

    Args:
        model: The network.
        token_ids: (T,), int64.

    Yields:
        (T, C), float64; the first is the embedding.
    """
    with torch.enable_grad():
        x = float64_embedding(model, token_ids)[None]
        run = float64_run(model, token_ids, x)
        yield x[0]
        streams = float64_streams(model)
        if streams is not None:
            x = streams.split(x).detach()
        for index, layer in enumerate(model.layers):
            whole = in_float64(layer)
            assert isinstance(whole, DecoderLayer)
            x = run(index, whole, x).detach()
            yield x[0]


def float64_embedding(model: CausalLM, token_ids: Tensor, *, plain: bool = False) -> Tensor:
    """Return what the first layer sees of a whole sequence: (T) to (T, C), float64.

    Args:
        model: The network.
        token_ids: (T,), int64.
        plain: See `in_float64`.
    """
    rows = model.embed_tokens(token_ids)
    scale = rows.new_tensor(model.config.embedding_multiplier).double()
    x = rows.detach().double() * scale
    with torch.enable_grad():
        if model.project_in is not None:
            x = in_float64(model.project_in, plain=plain)(x)
        if model.positions is not None:
            places = torch.arange(len(token_ids), device=token_ids.device)
            x = in_float64(model.positions)(x, places)
    return x.detach()


def float64_streams(model: CausalLM) -> Streams | None:
    """What makes several residual streams of one and one of several, if there are several."""
    if model.streams is None:
        return None
    copy = in_float64(model.streams)
    assert isinstance(copy, Streams)
    return copy


def float64_run(
    model: CausalLM, token_ids: Tensor, embedded: Tensor, *, plain: bool = False
) -> WholeSequences:
    """What runs the layers, converted, over one whole sequence.

    Args:
        model: The network.
        token_ids: (T,), int64.
        embedded: (1, T, C), float64.
        plain: See `in_float64`.
    """
    vectors = None
    if model.per_layer is not None:
        with torch.enable_grad():
            ids = model.ids_of_vectors(token_ids[None])
            vectors = in_float64(model.per_layer, plain=plain)(ids, embedded).detach()
    return WholeSequences(model.config, embedded, vectors)


def float64_logits(model: CausalLM, hidden: Tensor, *, plain: bool = False) -> Tensor:
    """Return the logits for outputs of the last layer: (T, C) to (T, V), float64.

    Args:
        model: The network.
        hidden: What its last layer puts out, (T, C), float64.
        plain: See `in_float64`.
    """
    config = model.config
    with torch.enable_grad():
        streams = float64_streams(model)
        if streams is not None:
            hidden = streams.join(hidden)
        normed = in_float64(model.norm)(hidden).detach()
        if model.project_out is not None:
            normed = in_float64(model.project_out, plain=plain)(normed).detach()
    part = model.embed_tokens if config.tie_word_embeddings else model.lm_head
    if isinstance(part.weight, Weight):
        with torch.enable_grad():
            whole = in_float64(part, plain=plain)
            assert isinstance(whole, Embedding | Linear)
            scores = multiply(normed, whole.weight).detach()
    else:
        tiles = part.weight.detach().split(_TILE)
        scores = torch.cat([normed @ tile.double().T for tile in tiles], -1)
    if model.head_bias is not None:
        scores = scores + model.head_bias.detach().double()
    scores = scores / config.logits_scaling
    cap = config.logit_softcap
    return scores if cap is None else torch.tanh(scores / cap) * cap


def in_float64(module: nn.Module, *, plain: bool = False) -> nn.Module:
    """Return a copy in float64, with packed weights dequantized.

    Args:
        module: The network, or a part of it.
        plain: Whether to dequantize also weights whose products are defined to round their inputs.
    """
    copy = deepcopy(module)
    for path, part in list(copy.named_modules()):
        if not isinstance(part, Weight):
            continue
        owner, _, name = path.rpartition(".")
        try:
            parent = copy.get_submodule(owner)
        except AttributeError:
            continue  # it was a part of a weight that has been dequantized
        part.dtype = torch.float64
        if plain or not _rounds_inputs(copy, path):
            delattr(parent, name)  # setattr refuses a parameter in the place of a module
            numbers = part.dequantize(torch.float32).double()
            setattr(parent, name, nn.Parameter(numbers, requires_grad=False))
    for part in list(copy.modules()):
        if isinstance(part, SharedBlockMixer):
            for shared in part.parts():  # not submodules of the copy, if another layer owns them
                shared.double()
    return copy.double()


def _rounds_inputs(module: nn.Module, path: str) -> bool:
    """Whether products with a weight, or with the weight that contains it, round their inputs."""
    owner = module
    outermost = module.get_submodule(path)
    for name in path.split("."):
        owner = owner.get_submodule(name)
        if isinstance(owner, Weight):
            outermost = owner
            break
    return any(isinstance(each, PackedWeight) for each in outermost.modules())
