"""How large a model is: parameters, and what it remembers of a sequence, from its config alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from blazr.models.causal_lm import ModelConfig
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.moe import Experts, MoeConfig
from blazr.nn.layers.parallel import feed_forwards_of
from blazr.nn.layers.ranks import ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a model.

    Args:
        parameters: All of them.
        active_parameters: Those one token passes through: experts not chosen are left out.
        embedding_parameters: Of the embedding, and of the head where it is separate.
        state_bytes_per_sequence: Recurrent states of all layers that have any, for one sequence.
        working_bytes_per_sequence: Working copies of these states, while a sequence runs.
        log_bytes_per_sequence: What all layers log of the tokens since the last grid edge, while a
            sequence runs.
        latent_bytes_per_token: What all MLA layers keep of a token.
        kv_bytes_per_token: What all other layers with attention keep of a token.
    """

    parameters: int
    active_parameters: int
    embedding_parameters: int
    state_bytes_per_sequence: int
    working_bytes_per_sequence: int
    log_bytes_per_sequence: int
    latent_bytes_per_token: int
    kv_bytes_per_token: int


def _count(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def size_of(
    config: ModelConfig, dtype: torch.dtype, *, kv_dtype: str = "auto", state_dtype: str = "auto"
) -> ModelSize:
    """Count without allocating anything.

    Args:
        config: The model.
        dtype: Of activations, and so of keys, values and latents.
        kv_dtype: What these are stored in, if otherwise.
        state_dtype: What recurrent states are kept in.

    Raises:
        UnknownNameError: There is no such dtype of keys and values, or of states.
    """
    size = config.embedding_size or config.hidden_size
    embedding = config.vocab_size * size * (1 if config.tie_word_embeddings else 2)
    parameters = _count(config.final_norm.build) + config.vocab_size * config.head_bias
    if (per_layer := config.per_layer) is not None:
        table = per_layer.vocab_size * per_layer.num_layers * per_layer.norm.size
        parameters += _count(partial(per_layer.build, ALONE.rank)) - table
        embedding += table
    if config.embedding_size is not None:  # a projection behind the embedding, one before the head
        parameters += 2 * size * config.hidden_size
    if config.positions is not None:
        parameters += _count(config.positions.build)
    if config.streams is not None:
        parameters += _count(config.streams.build)
    parameters += embedding
    unused = states = working = logs = latents = keys = 0
    for layer in config.layers:
        parameters += _count(layer.build)
        for feed in feed_forwards_of(layer.feed_forward):
            if isinstance(feed, MoeConfig):
                others = feed.num_experts - feed.experts_per_token
                unused += _count(partial(Experts, feed)) // feed.num_experts * others
        spec = layer.mixer.cache_spec(dtype).stored_as(kv_dtype, state_dtype)
        states += spec.bytes_per_checkpoint
        working += spec.bytes_per_working_copy
        logs += spec.bytes_per_log
        if isinstance(layer.mixer, MlaConfig):
            latents += spec.bytes_per_token
        else:  # of any mixer: hybrid ones have attention as a part
            keys += spec.bytes_per_token
    return ModelSize(
        parameters=parameters,
        active_parameters=parameters - unused,
        embedding_parameters=embedding,
        state_bytes_per_sequence=states,
        working_bytes_per_sequence=working,
        log_bytes_per_sequence=logs,
        latent_bytes_per_token=latents,
        kv_bytes_per_token=keys,
    )
