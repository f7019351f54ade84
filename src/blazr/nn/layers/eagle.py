"""EAGLE-3: the next token from a token and three layers' hidden states of the one before it.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", arXiv:2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import DecoderLayer, LayerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.ops.mtp import join_previous, keep_last
from blazr.nn.ops.pointwise import dense, embedding, widen
from blazr.nn.ops.replay import recordable

_HIDDEN, _NORMED = "hidden", "normed"  # names in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """A head that was trained for a network, and guesses its next tokens.

    Args:
        layer: Its only layer: the mixer takes 2 * C channels, a token's embedding and a hidden
            state, and puts out C.
        norm: Over C channels: each of the embedded token, the hidden state and what goes to the
            output head has one.
        aux_layers: The network's layers whose inputs it reads, in ascending order.
        aux_size: Channels of each of these inputs.
        vocab_size: Rows of its embedding; 0 where it uses the network's.
        draft_vocab_size: Tokens that it can guess.
        norm_before_residual: Whether the hidden state that is added to the mixer's output is
            normalised, as is the one that goes into the mixer.
    """

    layer: LayerConfig
    norm: NormConfig
    aux_layers: tuple[int, ...]
    aux_size: int
    vocab_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """What the head remembers when activations have this dtype."""
        spec = self.layer.mixer.cache_spec(dtype)
        state = TensorSpec((self.norm.size,), dtype)
        return replace(spec, log={**spec.log, _HIDDEN: state, _NORMED: state})

    def build(self) -> Eagle3:
        """The module, with uninitialised parameters."""
        return Eagle3(self)


class Eagle3(nn.Module):
    """One layer over the embedded token beside a hidden state, with a head of its own.

    The hidden state of a token is a projection of the inputs of three of the network's layers, or,
    where these are not known yet, the output of this layer for it. As in `Mtp`, what is remembered
    at a token's place is made of that token and the hidden state before it.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.aux_layers = config.aux_layers
        self.norm_before_residual = config.norm_before_residual
        size = config.norm.size
        self.embed_tokens = (
            nn.Parameter(torch.empty(config.vocab_size, size)) if config.vocab_size else None
        )
        self.fc = Linear(len(config.aux_layers) * config.aux_size, size)
        self.embedding_norm = config.norm.build()
        self.hidden_norm = config.norm.build()
        self.layer = DecoderLayer(config.layer)
        self.norm = config.norm.build()
        self.lm_head = Linear(size, config.draft_vocab_size)
        self.register_buffer("token_ids", torch.arange(config.draft_vocab_size), persistent=False)

    token_ids: Tensor
    """What each guess stands for, (V',) int64."""

    def fuse(self, aux_hidden: Sequence[Tensor]) -> Tensor:
        """One hidden state of a token, (T, C), from the inputs of the auxiliary layers, (T, C')."""
        wide = aux_hidden[0].new_empty(*aux_hidden[0].shape[:-1], self.fc.weight.shape[1])
        joined = recordable(lambda *each: torch.cat(each, -1), *aux_hidden, like=wide)
        return recordable(self.fc, joined, like=aux_hidden[0])

    def remember(
        self, embedded: Tensor, hidden: Tensor, batch: ForwardBatch, cache: LayerCache
    ) -> Tensor:
        """Write what later tokens attend to.

        Args:
            embedded: The step's tokens as the network embeds them, (T, C).
            hidden: What `fuse` made for them, (T, C).
            batch: The step.
            cache: The head's memory.

        Returns:
            The output of the layer's mixer, (T, C), which nobody needs.
        """
        normed = self.hidden_norm(hidden)
        x = join_previous(
            self._embed(embedded, batch.token_ids), normed, cache.log[_NORMED], batch.table
        )
        keep_last(hidden, cache.log[_HIDDEN], batch.table)
        keep_last(normed, cache.log[_NORMED], batch.table)
        return recordable(self.layer.mixer, x, batch, cache, like=hidden)

    def forward(self, embedded: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One token of each of B sequences, whose hidden states before it are remembered.

        Args:
            embedded: The tokens as the network embeds them, (B, C).
            batch: The step.
            cache: The head's memory.

        Returns:
            Hidden states for `scores`, (B, C).
        """
        embedded = self._embed(embedded, batch.token_ids)
        # with one token a sequence all states before come from the log; the second argument only
        # has their shape
        x = join_previous(embedded, embedded, cache.log[_NORMED], batch.table)
        kept = cache.log[_NORMED if self.norm_before_residual else _HIDDEN]
        residual = dense(join_previous(embedded, embedded, kept, batch.table).chunk(2, -1)[1])
        hidden: Tensor = self.layer.after_mixer(
            residual, recordable(self.layer.mixer, x, batch, cache, like=residual)
        )
        keep_last(hidden, cache.log[_HIDDEN], batch.table)
        keep_last(self.hidden_norm(hidden), cache.log[_NORMED], batch.table)
        return hidden

    def forward_sequences(self, embedded: Tensor, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Whole sequences from nothing, differentiable: for training.

        Args:
            embedded: The tokens as the network embeds them, (B, T, C).
            token_ids: Their ids, (B, T), int64.
            hidden: What `fuse` made for them, (B, T, C).

        Returns:
            Hidden states for `scores`, (B, T, C).
        """
        previous = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        normed = F.pad(self.hidden_norm(hidden), (0, 0, 1, 0))[:, :-1]
        x = torch.cat((self._embed(embedded, token_ids), normed), -1)
        residual = normed if self.norm_before_residual else previous
        return self.layer.after_mixer(residual, self.layer.mixer.forward_sequences(x))

    def scores(self, hidden: Tensor) -> Tensor:
        """Of every token that it can guess, (..., C) to (..., V'), float32."""
        return widen(self.lm_head(recordable(self.norm, hidden, like=hidden)))

    def _embed(self, embedded: Tensor, token_ids: Tensor) -> Tensor:
        own = self.embed_tokens
        normed: Tensor = self.embedding_norm(embedded if own is None else embedding(own, token_ids))
        return normed
