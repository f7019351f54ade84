"""The one network: an embedding, a tuple of layers, a head; and its config."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.nn.layers.altup import StreamsConfig
from blazr.nn.layers.base import DecoderLayer, LayerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache, whole_sequences
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.eagle import Eagle3, Eagle3Config
from blazr.nn.layers.embedding import (
    Embedding,
    LearnedPositionsConfig,
    PerLayerEmbeddingConfig,
)
from blazr.nn.layers.linear import Linear, multiply
from blazr.nn.layers.lora import StepAdapters
from blazr.nn.layers.mtp import MtpConfig
from blazr.nn.layers.ranks import ALONE, Held, Joined, Parts, Rank, Ranks, Rows, under
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.pointwise import scale, widen
from blazr.nn.ops.replay import recordable

# Matrices that are plain tensors: routers decide in float32, and latent attention reads the others.
READ_AS_TENSORS = ("router", "k_up_proj", "v_up_proj")


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
        head_bias: Whether a bias is added to the scores (Phi).
        embedding_size: Channels of the embedding, and of the head, where projections stand between
            them and the layers (OPT 350M); None for C.
        embedding_multiplier: Applied to embedded tokens.
        positions: A table of what is added to embedded tokens by their places, or None.
        embedding_norm: Of embedded tokens, or None (nanochat).
        logits_scaling: Scores are divided by it.
        logit_softcap: Scores z become ``softcap * tanh(z / softcap)``; None leaves them.
        per_layer: What gives each layer vectors of the tokens, or None.
        streams: How the residual stream becomes several, or None where it is one.
        mtp: What predicts one token further, where there is such a module and it is wanted: the
            network's own, or a head that was trained for it.
        rank: Which part this is of a network that several ranks have; they share out the rows of
            the embedding and of the head, whatever ``vocab_size`` says of all of them.
        stage: Which part of the layers this is, where several ranks have some layers each, one
            behind the other; the first has embedding, last norm and head, too.
    """

    vocab_size: int
    hidden_size: int
    max_seq_len: int
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig
    tie_word_embeddings: bool = False
    head_bias: bool = False
    embedding_size: int | None = None
    embedding_multiplier: float = 1.0
    positions: LearnedPositionsConfig | None = None
    embedding_norm: NormConfig | None = None
    logits_scaling: float = 1.0
    logit_softcap: float | None = None
    per_layer: PerLayerEmbeddingConfig | None = None
    streams: StreamsConfig | None = None
    mtp: MtpConfig | Eagle3Config | None = None
    rank: Rank = ALONE.rank
    stage: Rank = ALONE.rank

    @property
    def held_layers(self) -> range:
        """Which of the layers are here."""
        return self.stage.run(len(self.layers), "layers")

    @property
    def every_layer(self) -> tuple[LayerConfig, ...]:
        """The layers, and behind them that of `mtp`."""
        return self.layers if self.mtp is None else (*self.layers, self.mtp.layer)

    def as_stage(self, stage: Rank) -> ModelConfig:
        """The network of a rank that has some of the layers.

        Raises:
            ConfigError: It cannot be cut in so many.
        """
        specs = self.cache_specs(torch.float32)
        if self.per_layer is not None or any(
            layer.shares_layer is not None or layer.joins_embedding or spec.owner is not None
            for layer, spec in zip(self.layers, specs, strict=False)
        ):
            raise ConfigError(
                "layers that share parameters or keys, or see the tokens, are not cut in stages.",
                expected="a model whose layers see nothing but the layer before",
                hint=f"cut each layer: --tp {stage.count}",
            )
        stage.run(len(self.layers), "layers")
        return replace(self, stage=stage)

    @property
    def held_words(self) -> tuple[range, ...]:
        """Which rows of the embedding and of the head each rank has."""
        count = self.rank.count
        return tuple(Rank(number, count).run(self.vocab_size, "words") for number in range(count))

    def part(self, rank: Rank) -> tuple[ModelConfig, Parts]:
        """The network of a rank, and what of this one's parameters it holds.

        Raises:
            ConfigError: It cannot be cut in so many.
        """
        parts: dict[str, Held] = {}
        layers = []
        for index, layer in enumerate(self.layers):
            part, held = layer.part(rank)
            layers.append(part)
            parts |= under(f"layers.{index}", held)
        config = replace(self, layers=tuple(layers), rank=rank)
        words = Rows((config.held_words[rank.number],))
        parts |= {"embed_tokens": words, "lm_head": words, "head_bias": words}
        if self.per_layer is not None:
            parts["per_layer.embed_tokens"] = Rows((self.per_layer.held_rows(rank),))
        return config, parts

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


class CausalLM(Joined, nn.Module):
    """Any mix of layers as one language model. Parameters are uninitialised until loaded.

    Args:
        config: The model's sizes.

    Attributes:
        stages: Who has the layers before these and behind.
        activation_dtype: Of what a stage behind the first gets from the one before it.
    """

    stages: Ranks = ALONE
    activation_dtype = torch.float32

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        is_first = config.stage.number == 0
        words = config.held_words[config.rank.number]
        size = config.embedding_size or config.hidden_size
        if is_first:
            held = words if config.rank.count > 1 else None
            self.embed_tokens = Embedding(config.vocab_size, size, held)
        is_projected = is_first and config.embedding_size is not None
        self.project_in = Linear(size, config.hidden_size) if is_projected else None
        self.project_out = Linear(config.hidden_size, size) if is_projected else None
        positions = config.positions if is_first else None
        self.positions = None if positions is None else positions.build()
        norm = config.embedding_norm
        self.embedding_norm = norm.build() if is_first and norm else None
        self.per_layer = None
        if config.per_layer is not None:
            self.per_layer = config.per_layer.build(config.rank)
        specs = [config.layers[index] for index in config.held_layers]
        self.streams = None if config.streams is None else config.streams.build()
        layers = [layer.build() for layer in specs]
        for layer, spec in zip(layers, specs, strict=True):
            if spec.shares_layer is not None:
                layer.mixer.share(layers[spec.shares_layer].mixer)
        self.layers = nn.ModuleList(layers)
        if is_first:
            self.norm = config.final_norm.build()
        self.step_adapters = StepAdapters()
        if is_first and not config.tie_word_embeddings:
            self.lm_head = Linear(size, len(words))
        has_bias = is_first and config.head_bias
        self.head_bias = nn.Parameter(torch.empty(len(words))) if has_bias else None
        self.mtp = None if config.mtp is None else config.mtp.build()

    def join(self, ranks: Ranks) -> None:
        """Hear of the other ranks, whose parts of the network this one's belongs to."""
        if self.config.stage.count > 1:  # each layer is whole
            self.stages = ranks
            return
        assert ranks.rank == self.config.rank
        for part in self.modules():
            if isinstance(part, Joined):
                part.ranks = ranks

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and activations, on the first of several stages."""
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are, on the first of several stages."""
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
            given = batch.given if self.config.stage.number == 0 else None
            x = self._enter(batch)
            if given is not None:
                x = x.index_copy(0, given.rows, given.vectors.to(x.dtype))
            embedded = x
            vectors = self._vectors(batch.token_ids, embedded)
            x = self._split(x)
            aux_hidden = []
            num_added = 0 if given is None else len(given.added)
            for index, (layer, cache) in enumerate(
                zip(self.layers, caches, strict=self.mtp is None)
            ):
                if index in self._aux_layers:
                    aux_hidden.append(x)
                own = None if vectors is None else vectors[:, index]
                x = layer(x, batch, cache, embedded, vectors=own)
                if given is not None and index < num_added:
                    x = x.index_add(0, given.rows, given.added[index].to(x.dtype))
        x = self._join(x)
        if self.config.stage.count > 1:
            return self._leave(x)
        if self.mtp is not None:
            hidden = self._seen_by_mtp(x, aux_hidden)
            recordable(self.mtp.remember, embedded, hidden, batch, caches[-1], like=hidden)
        return x

    def draft(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Guess what follows a token of each of B sequences, the network's next but one.

        Args:
            batch: B packed tokens, that `forward` has not seen but all before them.
            caches: As in `forward`.

        Returns:
            Scores of what can be guessed, (B, V), float32; see `guesses`.
        """
        assert self.mtp is not None
        with self.step_adapters.using(batch.adapters):
            embedded = self._embed(batch.token_ids, batch.positions)
        hidden = recordable(self.mtp, embedded, batch, caches[-1], like=embedded)
        if isinstance(self.mtp, Eagle3):
            return self.mtp.scores(hidden)
        return self._scores(hidden, batch.adapters)

    def guesses(self, scores: Tensor) -> list[int]:
        """The likeliest token of each row of what `draft` put out."""
        found = scores.argmax(-1)
        if isinstance(self.mtp, Eagle3):
            found = self.mtp.token_ids[found]
        return found.tolist()

    def draft_sequences(self, token_ids: Tensor) -> Tensor:
        """The guesses of `draft` behind every token of whole sequences, differentiable.

        Args:
            token_ids: (B, T), int64.

        Returns:
            Logits, (B, T, V), float32.
        """
        x, aux_hidden = self._forward_sequences(token_ids)
        hidden = self._seen_by_mtp(x, aux_hidden)
        embedded = self._embed(token_ids)
        if isinstance(self.mtp, Eagle3):
            return self.mtp.scores(self.mtp.forward_sequences(embedded, token_ids, hidden))
        assert self.mtp is not None
        return self._scores(self.mtp.forward_sequences(embedded, hidden))

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
        return self.logits(self._forward_sequences(token_ids)[0])

    def logits(self, hidden: Tensor, adapters: Tensor | None = None) -> Tensor:
        """Scores of every vocabulary entry: (..., C) to (..., V), float32.

        Args:
            hidden: Hidden states before the final norm.
            adapters: The slots of their adapters, (J,), int64; None where there are none.
        """
        return self._scores(recordable(self.norm, hidden, like=hidden), adapters)

    def _enter(self, batch: ForwardBatch) -> Tensor:
        """What the first layer here sees, (T, C)."""
        stage = self.config.stage
        if stage.number == 0:
            return self._embed(batch.token_ids, batch.positions)
        size = (len(batch.token_ids), self.config.hidden_size)
        like = torch.empty(size, dtype=self.activation_dtype, device=batch.token_ids.device)
        return self.stages.receive(like, stage.number - 1)

    def _leave(self, x: Tensor) -> Tensor:
        """Give the next stage what the last layer here puts out; the first gets it from the last.

        Returns:
            On the first stage what the last layer of all puts out, (T, C).
        """
        stage = self.config.stage
        self.stages.send(x, (stage.number + 1) % stage.count)
        return self.stages.receive(x, stage.count - 1) if stage.number == 0 else x

    def _forward_sequences(self, token_ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, T) to hidden states before the final norm and auxiliary layers, (B, T, C) each."""
        x = embedded = self._embed(token_ids)
        run = WholeSequences(self.config, embedded, self._vectors(token_ids, embedded))
        x = self._split(x)
        aux_hidden = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            if index in self._aux_layers:
                aux_hidden.append(x)
            x = run(index, layer, x)
        return self._join(x), aux_hidden

    def ids_of_vectors(self, token_ids: Tensor) -> Tensor:
        """Those that `per_layer` is given: ids of images and sounds may have no row there."""
        assert self.config.per_layer is not None
        rows = self.config.per_layer.vocab_size
        if rows >= self.config.vocab_size:
            return token_ids
        return recordable(lambda ids: ids.where(ids < rows, 0), token_ids, like=token_ids)

    def _vectors(self, token_ids: Tensor, embedded: Tensor) -> Tensor | None:
        """What each layer takes of the tokens, (..., layers, P), if layers take anything."""
        if self.per_layer is None:
            return None
        vectors: Tensor = self.per_layer(self.ids_of_vectors(token_ids), embedded)
        return vectors

    def _split(self, x: Tensor) -> Tensor:
        """What the first layer sees: (..., C) or, of several streams, (..., N, C)."""
        if self.streams is None:
            return x
        wide = x.new_empty(*x.shape[:-1], self.streams.count, x.shape[-1])
        return recordable(self.streams.split, x, like=wide)

    def _join(self, x: Tensor) -> Tensor:
        """The opposite, behind the last layer."""
        if self.streams is None:
            return x
        return recordable(self.streams.join, x, like=x[..., 0, :])

    @property
    def _aux_layers(self) -> tuple[int, ...]:
        """The layers whose inputs `mtp` reads."""
        return self.mtp.aux_layers if isinstance(self.mtp, Eagle3) else ()

    def _seen_by_mtp(self, x: Tensor, aux_hidden: list[Tensor]) -> Tensor:
        """What `mtp` reads of each token.

        Args:
            x: Hidden states before the final norm.
            aux_hidden: Hidden states before each of the auxiliary layers.
        """
        if isinstance(self.mtp, Eagle3):
            return self.mtp.fuse(aux_hidden)
        return recordable(self.norm, x, like=x)

    def _scores(self, normed: Tensor, adapters: Tensor | None = None) -> Tensor:
        is_tied = self.config.tie_word_embeddings
        head = self.embed_tokens if is_tied else self.lm_head
        lora = None if is_tied else self.lm_head.lora  # of an embedding they change the embedding
        with self.step_adapters.using(adapters):
            if self.project_out is not None:
                normed = self.project_out(normed)
            scores = multiply(normed, head.weight, self.head_bias, lora)
        scores = self.ranks.join_columns(scores, self.config.held_words)
        return widen(scores, self.config.logits_scaling, self.config.logit_softcap)

    def _embed(self, token_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Tokens as the first layer takes them, (..., C).

        Args:
            token_ids: (...), int64.
            positions: Their places, (...), int64; None where the last dimension counts these.
        """
        x = self.embed_tokens(token_ids)
        factor = self.config.embedding_multiplier
        x = x if factor == 1 else scale(x, _rounded(factor, x.dtype))
        x = x if self.project_in is None else self.project_in(x)
        if self.positions is not None:
            if positions is None:
                places = torch.arange(token_ids.shape[-1], device=token_ids.device)
                positions = places.expand(token_ids.shape)
            x = self.positions(x, positions)
        norm = self.embedding_norm
        # in a recorded step what a part puts out does not outlive the part behind the next
        return x if norm is None else scale(recordable(norm, x, like=x), 1.0)


class WholeSequences:
    """Runs the layers over whole sequences, one by one: what they need beside the residual stream.

    Args:
        config: The network's.
        embedded: What the first layer sees, (B, T, C).
        vectors: What layers take of the tokens, (B, T, layers, P), if they take anything.
    """

    def __init__(self, config: ModelConfig, embedded: Tensor, vectors: Tensor | None) -> None:
        self._embedded = embedded
        self._vectors = vectors
        self._specs = config.cache_specs(embedded.dtype)
        count, length = embedded.shape[:2]
        # of layers whose memory others read
        self._kept = {
            owner: whole_sequences(count, length, self._specs[owner], embedded.device)[1]
            for owner in {spec.owner for spec in self._specs}
            if owner is not None
        }

    def __call__(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """One layer, which may be a copy of the model's: (B, T, C) to (B, T, C)."""
        vectors = None if self._vectors is None else self._vectors[:, :, index]
        owner = self._specs[index].owner
        cache = self._kept.get(index if owner is None else owner)
        return layer.forward_sequences(x, self._embedded, vectors=vectors, cache=cache)


@functools.cache
def _rounded(factor: float, dtype: torch.dtype) -> float:
    """As the models' own tensors hold it (Gemma)."""
    return torch.tensor(factor, dtype=dtype).item()
