"""BERTs that transformers has not, token by token in float64, as llama.cpp's graph has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import gelu

from tests.support.seeds import run_seed

HEAD_SIZE, INNER_SIZE, NUM_LAYERS, NUM_CHOSEN = 8, 24, 2, 2


def random_tensors(
    architecture: str,
    *,
    heads: int,
    gate: bool = False,
    norms: bool = False,
    experts: int = 0,
) -> dict[str, Tensor]:
    """The tensors of a small model under llama.cpp's names.

    Args:
        architecture: ``jina-bert-v2`` or ``nomic-bert-moe``.
        heads: Of its attention.
        gate: Whether gates are a matrix of their own.
        norms: Whether it has the norms of jina-embeddings-v2-base-code.
        experts: How many of these the second layer has.
    """
    torch.manual_seed(run_seed())
    size = heads * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (300, size),
        "token_types.weight": (2, size),
        "token_embd_norm.weight": (size,),
        "token_embd_norm.bias": (size,),
    }
    is_jina = architecture == "jina-bert-v2"
    for layer in range(NUM_LAYERS):
        at = f"blk.{layer}."
        matrices = {"attn_qkv": (3 * size, size), "attn_output": (size, size)}
        if is_jina:
            matrices = {f"attn_{each}": (size, size) for each in ("q", "k", "v", "output")}
        for name, shape in matrices.items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        more = ["attn_norm_2", "attn_q_norm", "attn_k_norm"] if norms else []
        for name in ["attn_output_norm", "layer_output_norm", *more]:
            shapes |= {f"{at}{name}.weight": (size,), f"{at}{name}.bias": (size,)}
        if experts and layer % 2:
            shapes[f"{at}ffn_gate_inp.weight"] = (experts, size)
            shapes[f"{at}ffn_up_exps.weight"] = (experts, INNER_SIZE, size)
            shapes[f"{at}ffn_down_exps.weight"] = (experts, size, INNER_SIZE)
            continue
        rows = 2 * INNER_SIZE if is_jina and not gate else INNER_SIZE
        shapes |= {f"{at}ffn_up.weight": (rows, size), f"{at}ffn_down.weight": (size, INNER_SIZE)}
        shapes[f"{at}ffn_down.bias"] = (size,)
        if gate:
            shapes[f"{at}ffn_gate.weight"] = (INNER_SIZE, size)
        if not is_jina:
            shapes[f"{at}ffn_up.bias"] = (rows,)
    return {
        name: torch.randn(shape) * 0.3 + float(name.endswith("norm.weight"))
        for name, shape in shapes.items()
    }


class PlainBert:
    """Such a network.

    Args:
        tensors: Under llama.cpp's names.
        heads: Of its attention.
        rotates: Whether heads are rotated by place; else they subtract for distance.
    """

    def __init__(self, tensors: Mapping[str, Tensor], heads: int, *, rotates: bool) -> None:
        self.tensors = {name: each.double() for name, each in tensors.items()}
        self.heads = heads
        self.rotates = rotates

    def states(self, ids: Sequence[int]) -> Tensor:
        """The hidden states of some tokens, (T, C)."""
        found = self.tensors["token_embd.weight"][list(ids)] + self.tensors["token_types.weight"][0]
        found = self._norm("token_embd_norm", found)
        for layer in range(NUM_LAYERS):
            at = f"blk.{layer}."
            seen = self._norm(at + "attn_output_norm", found + self._attend(at, found))
            if f"{at}attn_norm_2.weight" in self.tensors:
                seen = self._norm(at + "attn_norm_2", seen + found)
            found = self._norm(at + "layer_output_norm", seen + self._feed_forward(at, seen))
        return found

    def _linear(self, name: str, states: Tensor) -> Tensor:
        found = states @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return found if bias is None else found + bias

    def _norm(self, name: str, states: Tensor) -> Tensor:
        if f"{name}.weight" not in self.tensors:
            return states
        centred = states - states.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def _attend(self, at: str, states: Tensor) -> Tensor:
        if f"{at}attn_qkv.weight" in self.tensors:
            query, key, value = self._linear(at + "attn_qkv", states).chunk(3, -1)
        else:
            query, key, value = (self._linear(f"{at}attn_{each}", states) for each in "qkv")
        query, key = self._norm(at + "attn_q_norm", query), self._norm(at + "attn_k_norm", key)
        out = torch.zeros_like(states)
        places = range(len(states))
        for head in range(self.heads):
            part = slice(HEAD_SIZE * head, HEAD_SIZE * (head + 1))
            for place in places:
                scores = [
                    self._score(query[place, part], key[other, part], place, other, head)
                    for other in places
                ]
                out[place, part] = torch.stack(scores).softmax(0) @ value[:, part]
        return self._linear(at + "attn_output", out)

    def _score(self, query: Tensor, key: Tensor, place: int, other: int, head: int) -> Tensor:
        if self.rotates:
            return _turned(query, place) @ _turned(key, other) / HEAD_SIZE**0.5
        power = 2 ** (len(f"{self.heads:b}") - 1)
        slope = 2 ** (-8 / power * (head + 1))
        if head >= power:
            slope = 2 ** (-4 / power * (2 * (head - power) + 1))
        return query @ key / HEAD_SIZE**0.5 - slope * abs(place - other)

    def _feed_forward(self, at: str, states: Tensor) -> Tensor:
        if f"{at}ffn_gate_inp.weight" in self.tensors:
            return torch.stack([self._experts(at, each) for each in states])
        up = self._linear(at + "ffn_up", states)
        if f"{at}ffn_gate.weight" in self.tensors:
            inner = gelu(self._linear(at + "ffn_gate", states)) * up
        elif up.shape[-1] > INNER_SIZE:
            inner = gelu(up[:, :INNER_SIZE]) * up[:, INNER_SIZE:]
        else:
            inner = gelu(up)
        return self._linear(at + "ffn_down", inner)

    def _experts(self, at: str, state: Tensor) -> Tensor:
        shares = self._linear(at + "ffn_gate_inp", state).softmax(-1)
        found = torch.zeros_like(state)
        for expert in shares.argsort(descending=True)[:NUM_CHOSEN]:
            up, down = (self.tensors[f"{at}ffn_{each}_exps.weight"] for each in ("up", "down"))
            found += shares[expert] * (down[expert] @ gelu(up[expert] @ state))
        return found


def _turned(states: Tensor, place: int) -> Tensor:
    half = HEAD_SIZE // 2
    found = states.clone()
    for channel in range(half):
        angle = torch.tensor(place * 10_000.0 ** (-channel / half), dtype=torch.float64)
        first, second = states[channel], states[channel + half]
        found[channel] = first * angle.cos() - second * angle.sin()
        found[channel + half] = first * angle.sin() + second * angle.cos()
    return found
