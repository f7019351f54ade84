"""The one network: an embedding, a tuple of layers, a head; and its config."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import DecoderLayer, LayerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.linear import Linear, Matrix, multiply
from blazr.nn.layers.lora import Lora, StepAdapters
from blazr.nn.layers.mtp import MtpConfig
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.pointwise import embedding, scale, widen
from blazr.nn.ops.replay import recordable
from blazr.nn.quant.weight import Weight


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
        mtp: What predicts one token further, where there is such a module and it is wanted.
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
    mtp: MtpConfig | None = None

    def cache_specs(self, dtype: torch.dtype) -> list[CacheSpec]:
        """What each layer remembers when activations have this dtype, and behind them `mtp`."""
        specs = [layer.mixer.cache_spec(dtype) for layer in self.layers]
        return specs if self.mtp is None else [*specs, self.mtp.cache_spec(dtype)]

    def length_class(self, length: int) -> int:
        """Sequences of one class that may become this long remember a prefix alike.

        Args:
            length: Most tokens the sequence may ever have.
        """
        return max((layer.mixer.length_class(length) for layer in self.layers), default=0)


class Embedding(nn.Module):
    """Token embedding, (V, C). ``lora`` is what adapters change in it, where there are any."""

    weight: Matrix
    lora: Lora | None = None

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, token_ids: Tensor) -> Tensor:
        """(...) int64 to (..., C)."""
        if isinstance(self.weight, Weight):
            rows = self.weight.rows(token_ids)
        else:
            rows = embedding(self.weight, token_ids)
        return rows if self.lora is None else self.lora.change_rows(rows, token_ids)


class CausalLM(nn.Module):
    """Any mix of layers as one language model. Parameters are uninitialised until loaded.

    Args:
        config: The model's sizes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        layers = [DecoderLayer(layer) for layer in config.layers]
        for layer, spec in zip(layers, config.layers, strict=True):
            if spec.shares_layer is not None:
                layer.mixer.share(layers[spec.shares_layer].mixer)
        self.layers = nn.ModuleList(layers)
        self.norm = config.final_norm.build()
        self.step_adapters = StepAdapters()
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.mtp = None if config.mtp is None else config.mtp.build()

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and activations."""
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def head_parameter(self) -> str:
        """Name of the matrix that makes scores of hidden states."""
        return "embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """One serving step.

        Args:
            batch: T packed tokens.
            caches: One per layer, and behind them that of `mtp`, if there is one.

        Returns:
            Hidden states before the final norm, (T, C).
        """
        with self.step_adapters.using(batch.adapters):
            x = self._embed(batch.token_ids)
            given = batch.given
            if given is not None:
                x = x.index_copy(0, given.rows, given.vectors.to(x.dtype))
            embedded = x
            num_added = 0 if given is None else len(given.added)
            for index, (layer, cache) in enumerate(
                zip(self.layers, caches, strict=self.mtp is None)
            ):
                x = layer(x, batch, cache, embedded)
                if given is not None and index < num_added:
                    x = x.index_add(0, given.rows, given.added[index].to(x.dtype))
        if self.mtp is not None:
            hidden = recordable(self.norm, x, like=x)
            recordable(self.mtp.remember, embedded, hidden, batch, caches[-1], like=x)
        return x

    def draft(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Guess what follows a token of each of B sequences, the network's next but one.

        Args:
            batch: B packed tokens, that `forward` has not seen but all before them.
            caches: As in `forward`.

        Returns:
            Scores of every vocabulary entry, (B, V), float32.
        """
        assert self.mtp is not None
        with self.step_adapters.using(batch.adapters):
            embedded = self._embed(batch.token_ids)
        hidden = recordable(self.mtp, embedded, batch, caches[-1], like=embedded)
        return self._scores(hidden, batch.adapters)

    def draft_sequences(self, token_ids: Tensor) -> Tensor:
        """The guesses of `draft` behind every token of whole sequences, differentiable.

        Args:
            token_ids: (B, T), int64.

        Returns:
            Logits, (B, T, V), float32.
        """
        assert self.mtp is not None
        hidden = self.norm(self._forward_sequences(token_ids))
        return self._scores(self.mtp.forward_sequences(self._embed(token_ids), hidden))

    def rewind(self, table: StepTable, caches: Sequence[LayerCache]) -> None:
        """Go back to an earlier token since the checkpoints; see `Mixer.rewind`.

        Args:
            table: B sequences that begin at their checkpoints, and how many of the tokens since
                they go back to.
            caches: One per layer.
        """
        for layer, cache in zip(self.layers, caches, strict=self.mtp is None):
            assert isinstance(layer, DecoderLayer)
            layer.mixer.rewind(table, cache)

    def forward_sequences(self, token_ids: Tensor) -> Tensor:
        """Whole sequences from nothing, differentiable: for training.

        Args:
            token_ids: (B, T), int64.

        Returns:
            Logits, (B, T, V), float32.
        """
        return self.logits(self._forward_sequences(token_ids))

    def logits(self, hidden: Tensor, adapters: Tensor | None = None) -> Tensor:
        """Scores of every vocabulary entry: (..., C) to (..., V), float32.

        Args:
            hidden: Hidden states before the final norm.
            adapters: The slots of their adapters, (J,), int64; None where there are none.
        """
        return self._scores(recordable(self.norm, hidden, like=hidden), adapters)

    def _forward_sequences(self, token_ids: Tensor) -> Tensor:
        """(B, T) to hidden states before the final norm, (B, T, C)."""
        x = embedded = self._embed(token_ids)
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            x = layer.forward_sequences(x, embedded)
        return x

    def _scores(self, normed: Tensor, adapters: Tensor | None = None) -> Tensor:
        is_tied = self.config.tie_word_embeddings
        head = self.embed_tokens if is_tied else self.lm_head
        lora = None if is_tied else self.lm_head.lora  # of an embedding they change the embedding
        with self.step_adapters.using(adapters):
            scores = multiply(normed, head.weight, lora=lora)
        return widen(scores, self.config.logits_scaling, self.config.logit_softcap)

    def _embed(self, token_ids: Tensor) -> Tensor:
        x = self.embed_tokens(token_ids)
        factor = self.config.embedding_multiplier
        return x if factor == 1 else scale(x, _rounded(factor, x.dtype))


@functools.cache
def _rounded(factor: float, dtype: torch.dtype) -> float:
    """As the models' own tensors hold it (Gemma)."""
    return torch.tensor(factor, dtype=dtype).item()
