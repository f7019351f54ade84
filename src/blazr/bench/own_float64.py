"""The same network in float64, with the reference operations, a layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from blazr.models.causal_lm import CausalLM, Embedding
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.layers.linear import Linear, multiply
from blazr.nn.layers.shared_block import SharedBlockMixer
from blazr.nn.quant.packed import PackedWeight
from blazr.nn.quant.weight import Weight

# Rows of the head that are plain numbers at a time.
_TILE = 2**14


def own_layers(model: CausalLM, token_ids: Tensor) -> Iterator[Tensor]:
    """What every layer puts out for one sequence, computed whole.

    Weights are those of the model, packed ones as the numbers they stand for, unless the rounding
    of their inputs is part of their products' definition. One layer is in memory twice. Kernels
    compute no gradients, so where gradients count none of them runs.

    Args:
        model: The network.
        token_ids: (T,), int64.

    Yields:
        (T, C), float64; the first is the embedding.
    """
    with torch.enable_grad():
        x = embedded = own_embedding(model, token_ids)[None]
        yield x[0]
        for layer in model.layers:
            whole = in_float64(layer)
            assert isinstance(whole, DecoderLayer)
            x = whole.forward_sequences(x, embedded).detach()
            yield x[0]


def own_embedding(model: CausalLM, token_ids: Tensor) -> Tensor:
    """The embedded tokens: (T) to (T, C), float64."""
    rows = model.embed_tokens(token_ids)
    scale = rows.new_tensor(model.config.embedding_multiplier).double()
    return rows.detach().double() * scale


def own_logits(model: CausalLM, hidden: Tensor, *, plain: bool = False) -> Tensor:
    """Scores from what the last layer put out: (T, C) to (T, V), float64; see `in_float64`."""
    config = model.config
    with torch.enable_grad():
        normed = in_float64(model.norm)(hidden).detach()
    part = model.embed_tokens if config.tie_word_embeddings else model.lm_head
    if isinstance(part.weight, Weight):
        with torch.enable_grad():
            whole = in_float64(part, plain=plain)
            assert isinstance(whole, Embedding | Linear)
            scores = multiply(normed, whole.weight).detach()
    else:
        tiles = part.weight.detach().split(_TILE)
        scores = torch.cat([normed @ tile.double().T for tile in tiles], -1)
    scores = scores / config.logits_scaling
    cap = config.logit_softcap
    return scores if cap is None else torch.tanh(scores / cap) * cap


def in_float64(module: nn.Module, *, plain: bool = False) -> nn.Module:
    """A copy with plain weights of float64.

    Args:
        module: The network, or a part of it.
        plain: Whether weights whose products round their inputs become plain as well.
    """
    copy = deepcopy(module)
    for path, part in list(copy.named_modules()):
        if not isinstance(part, Weight):
            continue
        owner, _, name = path.rpartition(".")
        try:
            parent = copy.get_submodule(owner)
        except AttributeError:
            continue  # it was a part of a weight that is plain now
        part.dtype = torch.float64
        if plain or not _rounds_inputs(copy, path):
            delattr(parent, name)  # a module's place takes modules only
            numbers = part.dequantize(torch.float32).double()
            setattr(parent, name, nn.Parameter(numbers, requires_grad=False))
    for part in list(copy.modules()):
        if isinstance(part, SharedBlockMixer):
            for shared in part.parts():  # no parts of the copy where another layer owns them
                shared.double()
    return copy.double()


def _rounds_inputs(module: nn.Module, path: str) -> bool:
    """Whether a weight, what it is made of, or what it is a part of rounds the inputs."""
    owner = module
    outermost = module.get_submodule(path)
    for name in path.split("."):
        owner = owner.get_submodule(name)
        if isinstance(owner, Weight):
            outermost = owner
            break
    return any(isinstance(each, PackedWeight) for each in outermost.modules())
