"""Train nano: ``python tools/nano/train.py --corpus PATH --out DIR --minutes 120``.

Everything is seeded. A run saves its progress every few minutes; the same command goes on from
there, with the time that is left. The learning rate follows the clock: it warms up, holds, and
falls to zero over the last part of the time, so that a run of any length ends well.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from data import END, Corpus, load_corpus
from evaluate import bits_per_byte, sample_story
from model import init_weights, nano_config, save_model
from optimizer import make_optimizers
from plot import plot_loss
from tokenizer import train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.moe import Moe

LENGTH, BATCH = 512, 16
WARM_UP, DECAY = 0.02, 0.35  # shares of the time
SAVE_S, EVAL_S = 120.0, 600.0
BALANCE = 0.01


@dataclass
class Progress:
    """Where a run stands; saved with the weights."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)


def pack(corpus: Corpus, tokenizer: Tokenizer, *, seed: int) -> Tensor:
    """One epoch of rows, (rows, LENGTH + 1): whole documents, each followed by the end token.

    Places left over are -1. Documents longer than a row are cut into rows.
    """
    rng = random.Random(seed)
    end = tokenizer.token_to_id(END)
    texts = [
        text for text, weight in corpus.documents for _ in range(_times(weight, rng))
    ]
    rng.shuffle(texts)
    pieces = []
    for encoding in tokenizer.encode_batch(texts):
        ids = [*encoding.ids, end]
        pieces += [ids[i : i + LENGTH + 1] for i in range(0, len(ids), LENGTH + 1)]
    open_rows: list[list[int]] = []
    rows: list[list[int]] = []
    for piece in pieces:
        # best fit among a window of open rows: order stays random, little is wasted
        fits = [r for r in open_rows if len(r) + len(piece) <= LENGTH + 1]
        row = max(fits, key=len, default=None)
        if row is None:
            row = []
            open_rows.append(row)
        row += piece
        if len(row) > LENGTH - 16 or len(open_rows) > 64:
            full = max(open_rows, key=len)
            open_rows.remove(full)
            rows.append(full)
    rows += open_rows
    rng.shuffle(rows)
    table = torch.full((len(rows), LENGTH + 1), -1)
    for index, row in enumerate(rows):
        table[index, : len(row)] = torch.tensor(row)
    return table


def batches(corpus: Corpus, tokenizer: Tokenizer, *, seed: int, start: int) -> Iterator[Tensor]:
    """Endless batches, (BATCH, LENGTH + 1); ``start`` of them are skipped."""
    epoch = 0
    while True:
        table = pack(corpus, tokenizer, seed=seed + epoch)
        count = len(table) // BATCH
        for index in range(min(start, count), count):
            yield table[index * BATCH : (index + 1) * BATCH]
        start = max(0, start - count)
        epoch += 1


class BalanceLoss:
    """Keeps the experts in use [arXiv:2101.03961]: E times the dot of share and probability."""

    def __init__(self, model: CausalLM) -> None:
        self.terms: list[Tensor] = []
        for module in model.modules():
            if isinstance(module, Moe):
                module.register_forward_hook(self._hook)

    def take(self) -> Tensor:
        """The mean over layers, for one forward pass."""
        loss = torch.stack(self.terms).mean()
        self.terms.clear()
        return loss

    def _hook(self, module: Moe, inputs: tuple[Tensor], _output: Tensor) -> None:
        logits = module.router(inputs[0].flatten(0, -2)).float()
        chosen = logits.topk(module.config.experts_per_token).indices
        count = module.config.num_experts
        share = F.one_hot(chosen, count).float().sum(1).mean(0)
        self.terms.append((share * logits.softmax(-1).mean(0)).sum() * count)


def learning_rate(share: float) -> float:
    """Factor at this share of the time: up, flat, down to zero."""
    if share < WARM_UP:
        return share / WARM_UP
    return max(0.0, min(1.0, (1 - share) / DECAY))


def train(arguments: argparse.Namespace) -> None:
    """Train until the time is over, then export."""
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    out = Path(arguments.out)
    corpus = load_corpus(Path(arguments.corpus), seed=arguments.seed)
    plain = [text for text, weight in corpus.documents if weight >= 0.3]
    tokenizer = train_tokenizer(plain, out)
    model = CausalLM(nano_config())
    init_weights(model, seed=arguments.seed)
    optimizers = make_optimizers(model)
    base_rates = [[g["lr"] for g in o.param_groups] for o in optimizers]
    progress = Progress()
    checkpoint = out / "progress.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        progress = Progress(**saved["progress"])
        print(f"going on at step {progress.step}, {progress.seconds / 60:.1f} min in", flush=True)
    balance = BalanceLoss(model)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [o.state_dict() for o in optimizers],
            "progress": asdict(progress),
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)
        save_model(model, out)
        plot_loss(progress.losses, progress.evaluations, out / "loss.png")
        (out / "losses.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")

    budget, last = arguments.minutes * 60, time.monotonic()
    next_save, next_eval, recent = SAVE_S, EVAL_S, 0.0
    next_save += progress.seconds
    next_eval += progress.seconds // EVAL_S * EVAL_S
    for rows in batches(corpus, tokenizer, seed=arguments.seed, start=progress.step):
        factor = learning_rate(progress.seconds / budget)
        for optimizer, rates in zip(optimizers, base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        inputs, targets = rows[:, :-1].clamp(min=0), rows[:, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            logits = model.forward_sequences(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1)
        (loss + BALANCE * balance.take()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        now = time.monotonic()
        progress.step += 1
        progress.tokens += int((targets >= 0).sum())
        progress.seconds += now - last
        rate = int((targets >= 0).sum()) / (now - last)
        last = now
        recent = loss.item() if not recent else 0.98 * recent + 0.02 * loss.item()
        if progress.step % 10 == 0:
            progress.losses.append((progress.tokens, loss.item()))
            left = (budget - progress.seconds) / 60
            print(
                f"step {progress.step} loss {loss.item():.3f} mean {recent:.3f} {rate:.0f} tok/s "
                f"lr x{factor:.2f} {left:.1f} min left",
                flush=True,
            )
        is_over = progress.seconds >= budget
        if progress.seconds >= next_eval or is_over:
            score = bits_per_byte(model, tokenizer, corpus.held_out[:: 1 if is_over else 4])
            progress.evaluations.append((progress.tokens, score))
            print(f"held-out bits per byte {score:.4f}", flush=True)
            print(sample_story(model, tokenizer, "Once upon a time"), flush=True)
            next_eval += EVAL_S
            last = time.monotonic()
        if progress.seconds >= next_save or is_over:
            save()
            next_save = progress.seconds + SAVE_S
            last = time.monotonic()
        if is_over:
            return


def _times(weight: float, rng: random.Random) -> int:
    return int(weight) + (rng.random() < weight % 1)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="folder with the three text collections")
    parser.add_argument("--out", required=True, help="where the model and the progress go")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
