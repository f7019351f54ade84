"""Sample stories from stories260K: ``python tools/nano/sample.py --model DIR --out FILE``.

Bulk for nano to read: at temperature 1 and without a cut of the distribution, each story is one
honest draw, so that what nano learns from them is what the teacher knows, no more certain than it.
A thousand stories go side by side through a plain Llama forward with a full-length cache, which
on so small a model is several times as fast as serving them as requests.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from data import END
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 5, 8, 4, 8
LENGTH, BOS = 512, 1  # a text begins where the one before it ended
COMPACT_EVERY = 32


class Teacher:
    """The forward pass of stories260K, one token for each of many rows.

    Args:
        folder: Its Hugging Face checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        self.embedding = weights["model.embed_tokens.weight"]
        self.final_norm = weights["model.norm.weight"]
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(LAYERS)]
        rates = 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = torch.arange(LENGTH)[:, None] * rates
        self.cos, self.sin = angles.cos(), angles.sin()

    def logits(self, tokens: Tensor, position: int, cache: Tensor) -> Tensor:
        """Scores of the next tokens, (B, 512).

        Args:
            tokens: (B,) the tokens at ``position``.
            position: The same for all rows.
            cache: (layers, 2, B, KV_HEADS, LENGTH, HEAD_DIM); written at ``position``.
        """
        hidden = self.embedding[tokens]
        rows = len(tokens)
        for layer, memory in zip(self.layers, cache, strict=True):
            x = _norm(hidden, layer["input_layernorm"])
            q = self._rotate((x @ layer["q_proj"].T).view(rows, HEADS, HEAD_DIM), position)
            k = self._rotate((x @ layer["k_proj"].T).view(rows, KV_HEADS, HEAD_DIM), position)
            memory[0, :, :, position] = k
            memory[1, :, :, position] = (x @ layer["v_proj"].T).view(rows, KV_HEADS, HEAD_DIM)
            keys, values = memory[:, :, :, : position + 1]
            q = q.view(rows, KV_HEADS, -1, HEAD_DIM)
            shares = (q @ keys.transpose(-1, -2) * HEAD_DIM**-0.5).softmax(-1)
            hidden = hidden + (shares @ values).reshape(rows, -1) @ layer["o_proj"].T
            x = _norm(hidden, layer["post_attention_layernorm"])
            gated = F.silu(x @ layer["gate_proj"].T) * (x @ layer["up_proj"].T)
            hidden = hidden + gated @ layer["down_proj"].T
        return _norm(hidden, self.final_norm) @ self.embedding.T

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        cos, sin = self.cos[position], self.sin[position]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    @staticmethod
    def _layer(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        names = [name for name in weights if name.startswith(prefix)]
        return {name.removesuffix(".weight").rsplit(".", 1)[1]: weights[name] for name in names}


def sample(teacher: Teacher, count: int, random: torch.Generator) -> list[list[int]]:
    """Token ids of the stories, out of ``count`` begun, that end within the context."""
    cache = torch.empty(LAYERS, 2, count, KV_HEADS, LENGTH, HEAD_DIM)
    texts = torch.full((count, 1), BOS)
    finished: list[list[int]] = []
    for position in range(LENGTH - 1):
        scores = teacher.logits(texts[:, -1], position, cache)
        drawn = torch.multinomial(scores.softmax(-1), 1, generator=random)
        texts = torch.cat([texts, drawn], 1)
        if position % COMPACT_EVERY == COMPACT_EVERY - 1 or position == LENGTH - 2:
            is_over = (texts[:, 1:] == BOS).any(1)
            finished += [row[1 : row.index(BOS, 1)] for row in texts[is_over].tolist()]
            texts, cache = texts[~is_over], cache[:, :, ~is_over]
            if not len(texts):
                break
    return finished


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=Path, help="stories260K, Hugging Face form")
    parser.add_argument("--out", required=True, type=Path, help="stories.txt to write")
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1024)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(arguments.seed)
    teacher = Teacher(arguments.model)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    written, started = 0, time.monotonic()
    with torch.inference_mode(), arguments.out.open("w", encoding="utf-8") as file:
        while written < arguments.megabytes * 1e6:
            stories = tokenizer.decode_batch(sample(teacher, arguments.rows, random))
            text = "".join(f"{story.strip()}\n{END}\n" for story in stories)
            written += file.write(text)
            rate = written / (time.monotonic() - started) / 1e3
            print(f"{written / 1e6:.1f} MB, {rate:.0f} kB/s", flush=True)


if __name__ == "__main__":
    main()
