"""`PostNormBert`: BERTs with their norms behind their parts that transformers has no network of.

JinaBERT has no positions but what attention subtracts for distance, and gated feed-forward layers
[Günther et al., 2023, jina-embeddings-v2]; nomic-embed-text v2 rotates, and some of its layers
have experts [Nussbaum and Duderstadt, 2025].

Source: GitHub ggml-org/llama.cpp, ``src/models/bert.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.core.errors import CheckpointError

_STEEPEST = 8.0  # ALiBi's slopes go down from 2 to the power of -8 / H
# What is subtracted from scores at once: that of 8,192 tokens and twelve heads has 805 million.
_MAX_BIAS_NUMBERS = 2**23


@dataclass(kw_only=True)
class PostNormConfig:
    """The sizes of such a network.

    Args:
        model_type: What kind it is.
        hidden_size: C.
        num_hidden_layers: Of its layers.
        num_attention_heads: H.
        layer_norm_eps: What norms add to the variance.
        max_position_embeddings: The longest text.
        pad_token_id: What stands behind shorter texts.
        rope_theta: The base of rotation; None where distance is subtracted instead.
        experts_per_token: How many experts see a token, in layers that have some.
        use_cache: Nothing is kept; as the library's configs have it.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float
    max_position_embeddings: int
    pad_token_id: int | None
    rope_theta: float | None = None
    experts_per_token: int = 1
    use_cache: bool = False

    @classmethod
    def of(cls, values: Mapping[str, object]) -> PostNormConfig:
        """The config that some values make; others are left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})  # type: ignore[arg-type]


class _Weights:
    """The tensors of a part of a network, from which its layers are made."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, eps: float) -> None:
        self._tensors = tensors
        self._prefix = prefix
        self._eps = eps

    def has(self, name: str) -> bool:
        return f"{self._prefix}{name}.weight" in self._tensors

    def parameter(self, name: str) -> nn.Parameter:
        found = self._tensors.get(f"{self._prefix}{name}.weight")
        if found is None:
            raise CheckpointError(
                "a tensor of the encoder is missing.",
                found=f"no {self._prefix}{name}.weight",
                hint="fetch the file again: it is incomplete, or of another model",
            )
        return nn.Parameter(found, requires_grad=False)

    def _both(self, name: str) -> tuple[nn.Parameter, nn.Parameter | None]:
        bias = self._tensors.get(f"{self._prefix}{name}.bias")
        found = None if bias is None else nn.Parameter(bias, requires_grad=False)
        return self.parameter(name), found

    def linear(self, name: str) -> nn.Linear:
        weight, bias = self._both(name)
        layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
        layer.out_features, layer.in_features = weight.shape
        layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
        return layer

    def norm(self, name: str) -> nn.LayerNorm:
        weight, bias = self._both(name)
        layer = nn.LayerNorm(len(weight), eps=self._eps, device="meta")
        layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
        return layer

    def embedding(self, name: str) -> nn.Embedding:
        return nn.Embedding.from_pretrained(self.parameter(name))


class PostNormBert(nn.Module):
    """Such a network, made of its tensors.

    Args:
        config: Its sizes.
        tensors: By the names of the library's networks of this form.

    Raises:
        CheckpointError: One is missing.
    """

    def __init__(self, config: PostNormConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        around = _Weights(tensors, "embeddings.", config.layer_norm_eps)
        self.words = around.embedding("word_embeddings")
        self.types = around.embedding("token_type_embeddings")
        self.norm = around.norm("LayerNorm")
        self.layers = nn.ModuleList(
            _Layer(config, _Weights(tensors, f"layers.{index}.", config.layer_norm_eps))
            for index in range(config.num_hidden_layers)
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        return_dict: bool = True,
    ) -> SimpleNamespace:
        """The hidden states of some texts, (B, T, C), as ``last_hidden_state``.

        Args:
            input_ids: Their tokens, (B, T).
            attention_mask: Which of them count, (B, T).
            token_type_ids: Their types, (B, T); None is the first.
            return_dict: As the library has it; nothing else is returned.
        """
        del return_dict
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        states = self.norm(self.words(input_ids) + self.types(kinds))
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        bias = torch.zeros_like(attention_mask, dtype=states.dtype)
        bias = bias.masked_fill(attention_mask == 0, -torch.inf)[:, None, None]  # (B, 1, 1, T)
        for layer in self.layers:
            states = layer(states, places, bias)
        return SimpleNamespace(last_hidden_state=states)


class _Layer(nn.Module):
    def __init__(self, config: PostNormConfig, weights: _Weights) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.theta = config.rope_theta
        self.query, self.key, self.value, self.out = (
            weights.linear(f"self_attn.{each}_proj") for each in "qkvo"
        )
        has_norms = weights.has("self_attn.q_norm")
        self.query_norm = weights.norm("self_attn.q_norm") if has_norms else nn.Identity()
        self.key_norm = weights.norm("self_attn.k_norm") if has_norms else nn.Identity()
        self.norm = weights.norm("post_attention_layernorm")
        # that of jina-embeddings-v2-base-code, which adds the layer's input once more
        has_second = weights.has("second_layernorm")
        self.second_norm = weights.norm("second_layernorm") if has_second else None
        self.mlp = (_Experts if weights.has("mlp.router") else _Mlp)(config, weights)
        self.mlp_norm = weights.norm("post_mlp_layernorm")

    def forward(self, states: Tensor, places: Tensor, bias: Tensor) -> Tensor:
        heads = (
            self.query_norm(self.query(states)),
            self.key_norm(self.key(states)),
            self.value(states),
        )
        query, key, value = (e.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for e in heads)
        if self.theta is not None:
            query, key = (_rotated(each, places, self.theta) for each in (query, key))
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        else:
            seen = _attention_by_distance(query, key, value, bias)
        found = self.norm(states + self.out(seen.transpose(1, 2).flatten(2)))
        if self.second_norm is not None:
            found = self.second_norm(states + found)
        behind: Tensor = self.mlp_norm(found + self.mlp(found))
        return behind


class _Mlp(nn.Module):
    """Two matrices, of which the first may have a gate before it or above its rows."""

    def __init__(self, config: PostNormConfig, weights: _Weights) -> None:
        del config
        super().__init__()
        self.up, self.down = weights.linear("mlp.up_proj"), weights.linear("mlp.down_proj")
        self.gate = weights.linear("mlp.gate_proj") if weights.has("mlp.gate_proj") else None
        self.is_fused = self.up.out_features == 2 * self.down.in_features

    def forward(self, states: Tensor) -> Tensor:
        up: Tensor = self.up(states)
        if self.is_fused:
            gate, up = up.chunk(2, -1)
            inner = F.gelu(gate) * up
        else:
            inner = F.gelu(up) if self.gate is None else F.gelu(self.gate(states)) * up
        found: Tensor = self.down(inner)
        return found


class _Experts(nn.Module):
    """Pairs of matrices, (E, F, C) and (E, C, F), weighted by a softmax over all of them."""

    def __init__(self, config: PostNormConfig, weights: _Weights) -> None:
        super().__init__()
        self.count = config.experts_per_token
        self.router = weights.linear("mlp.router")
        self.up, self.down = weights.parameter("mlp.up_exps"), weights.parameter("mlp.down_exps")

    def forward(self, states: Tensor) -> Tensor:
        tokens = states.flatten(0, -2)
        shares, chosen = self.router(tokens).softmax(-1).topk(self.count, -1)
        found = torch.zeros_like(tokens)
        for expert in chosen.unique().tolist():
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            inner = F.gelu(F.linear(tokens[rows], self.up[expert]))
            out = F.linear(inner, self.down[expert]) * shares[rows, slots, None]
            found.index_add_(0, rows, out)
        return found.view_as(states)


def _attention_by_distance(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention with ALiBi, (B, H, T, D), for some queries after the other.

    Args:
        query: (B, H, T, D).
        key: The same.
        value: The same.
        bias: What is added to the scores besides, (B, 1, 1, T).
    """
    num_texts, num_heads, num_tokens, _ = query.shape
    slopes = _slopes(num_heads).to(query)[:, None, None]
    places = torch.arange(num_tokens, device=query.device)
    step = max(1, _MAX_BIAS_NUMBERS // (num_texts * num_heads * num_tokens))
    parts = []
    for asking, own in zip(query.split(step, 2), places.split(step), strict=True):
        distance = (own[:, None] - places).abs().to(query)  # (Q, T)
        mask = bias - slopes * distance  # (B, H, Q, T)
        parts.append(F.scaled_dot_product_attention(asking, key, value, attn_mask=mask))
    return torch.cat(parts, 2)


def _slopes(num_heads: int) -> Tensor:
    """What each head subtracts for each token between two, (H,) [Press et al., 2022, ALiBi]."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-_STEEPEST * (head + 1) / power) for head in range(power)]
    more = range(num_heads - power)  # between those
    between = [2 ** (-_STEEPEST * (head + 0.5) / power) for head in more]
    return torch.tensor(slopes + between)


def _rotated(states: Tensor, places: Tensor, theta: float) -> Tensor:
    """Rotated by place, (B, H, T, D); the first half of channels is paired with the second."""
    half = states.shape[-1] // 2
    rates = theta ** (-torch.arange(half, device=states.device, dtype=torch.float32) / half)
    angles = places[:, None] * rates  # (T, D / 2)
    cos, sin = angles.cos().to(states), angles.sin().to(states)
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
