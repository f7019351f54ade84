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
        embedding_multiplier: Applied to embedded tokens.
        logits_scaling: Scores are divided by it.
        logit_softcap: Scores z become ``softcap * tanh(z / softcap)``; None leaves them.
    """

    vocab_size: int
    hidden_size: int
    max_seq_len: int
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig
    tie_word_embeddings: bool = False
    embedding_multiplier: float = 1.0
    logits_scaling: float = 1.0
    logit_softcap: float | None = None

    def length_class(self, length: int) -> int:
        """Sequences of one class that may become this long remember a prefix alike.

        Args:
            length: Most tokens the sequence may ever have.
        """
        return max((layer.mixer.length_class(length) for layer in self.layers), default=0)
