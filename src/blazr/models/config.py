"""What a model is: a tuple of layers between an embedding and a head."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.norm import NormConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that determines the network.

    Args:
        vocab_size: V, rows of the embedding.
        hidden_size: C.
        max_seq_len: Context in tokens.
        layers: The layers, in order.
        final_norm: Before the head.
        tie_word_embeddings: Whether the head is the embedding.
    """

    vocab_size: int
    hidden_size: int
    max_seq_len: int
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig
    tie_word_embeddings: bool = False
