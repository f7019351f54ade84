"""Train nano: ``python tools/nano/train.py --corpus PATH --out DIR --minutes 120``.

``--start DIR`` goes on from a finished model, with its tokenizer.

Everything is seeded. A run saves its progress every few minutes; the same command goes on from
there, with the time that is left. The learning rate follows the clock: it warms up, holds, and
falls to zero over the last part of the time, so that a run of any length ends well.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
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
from tokenizer import id_of, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.layers.moe import Moe

IGNORED = -1  # the label of a token that nobody has to foresee
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


def labels(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """What is to be foreseen in the place of each token of a document, or ``IGNORED``.

    Of a chat these are the replies alone, and where the template goes on after a reply with a line
    break and the next role, the end token: a reply ends there, whatever the template writes.
    """
    end, newline = id_of(tokenizer, END), tokenizer.encode("\n").ids[0]
    names = ("system", "user", "assistant")
    roles = [id_of(tokenizer, f"<|{name}|>") for name in names]
    is_told = True  # a story, or a reply
    found = []
    for index, token in enumerate(ids):
        before, after = ids[max(index - 1, 0)], ids[min(index + 1, len(ids) - 1)]
        if token == newline and after in roles:
            found.append(end if is_told else IGNORED)
        elif token in roles or before in roles or not is_told:
            is_told = token == roles[-1] or (is_told and token not in roles)
            found.append(IGNORED)
        else:
            found.append(token)
    return found


def pack(corpus: Corpus, tokenizer: Tokenizer, *, length: int, seed: int) -> Tensor:
    """One epoch of rows, (rows, 2, length + 1): whole documents, each followed by the end token.

    A row's tokens, and their labels. Places left over are labelled ``IGNORED``. Documents longer
    than a row are cut into rows.
    """
    rng = random.Random(seed)
    end = id_of(tokenizer, END)
    texts = [text for text, weight in corpus.documents for _ in range(_times(weight, rng))]
    rng.shuffle(texts)
    pieces = []
    for encoding in tokenizer.encode_batch(texts):
        ids = [*encoding.ids, end]
        pairs = list(zip(ids, labels(ids, tokenizer), strict=True))
        pieces += [pairs[i : i + length + 1] for i in range(0, len(pairs), length + 1)]
    open_rows: list[list[tuple[int, int]]] = []
    rows: list[list[tuple[int, int]]] = []
    for piece in pieces:
        # best fit among a window of open rows: order stays random, little is wasted
        fits = [r for r in open_rows if len(r) + len(piece) <= length + 1]
        row = max(fits, key=len, default=None)
        if row is None:
            row = []
            open_rows.append(row)
        row += piece
        if len(row) > length - 16 or len(open_rows) > 64:
            full = max(open_rows, key=len)
            open_rows.remove(full)
            rows.append(full)
    rows += open_rows
    rng.shuffle(rows)
    table = torch.tensor([end, IGNORED]).view(1, 2, 1).repeat(len(rows), 1, length + 1)
    for index, row in enumerate(rows):
        table[index, :, : len(row)] = torch.tensor(row).T
    return table


def batches(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, rows: int, seed: int, start: int
) -> Iterator[Tensor]:
    """Endless batches, (rows, 2, length + 1); ``start`` of them are skipped."""
    epoch = 0
    while True:
        table = pack(corpus, tokenizer, length=length, seed=seed + epoch)
        count = len(table) // rows
        for index in range(min(start, count), count):
            yield table[index * rows : (index + 1) * rows]
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


def compile_layers(model: CausalLM) -> None:
    """Fuse what can be: all but the experts, whose shapes depend on the data."""
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        has_experts = isinstance(getattr(layer, "feed_forward", None), Moe)
        part = layer.mixer if has_experts else layer
        part.forward_sequences = torch.compile(part.forward_sequences)  # type: ignore[method-assign]


def learning_rate(share: float) -> float:
    """Factor at this share of the time: up, flat, down to zero."""
    if share < WARM_UP:
        return share / WARM_UP
    return max(0.0, min(1.0, (1 - share) / DECAY))


class Run:
    """A training run: everything that is saved and resumed.

    Args:
        arguments: The command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        torch.set_num_threads(arguments.threads)
        self.arguments = arguments
        self.out = Path(arguments.out)
        self.budget_s = arguments.minutes * 60
        folder = Path(arguments.corpus)
        self.corpus = load_corpus(folder, seed=arguments.seed)
        self.model = CausalLM(nano_config())
        if arguments.start is None:
            self.tokenizer = train_tokenizer(self.corpus.plain, self.out)
            init_weights(self.model, seed=arguments.seed)
        else:
            self.tokenizer = self.start_from(Path(arguments.start))
        if arguments.compile:
            compile_layers(self.model)
        self.optimizers = make_optimizers(self.model)
        self.base_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.balance = BalanceLoss(self.model)
        self.progress = Progress()
        self.checkpoint = self.out / "progress.pt"
        print(f"{sum(p.numel() for p in self.model.parameters()):,} parameters", flush=True)
        if self.checkpoint.exists():
            self.resume()

    def start_from(self, folder: Path) -> Tokenizer:
        """Take the weights and the tokenizer of a finished model."""
        loaded = load(str(folder), device=resolve_device("cpu"), dtype="float32")
        self.model.load_state_dict(loaded.module.state_dict())
        self.out.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, self.out / name)
        return Tokenizer.from_file(str(folder / "tokenizer.json"))

    def resume(self) -> None:
        """Go on where the saved run stopped."""
        saved = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = Progress(**saved["progress"])
        minutes = self.progress.seconds / 60
        print(f"going on at step {self.progress.step}, {minutes:.1f} min in", flush=True)

    def save(self) -> None:
        """Write the progress, the model as it is served, and the plot."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "progress": asdict(self.progress),
        }
        torch.save(state, self.checkpoint.with_suffix(".part"))
        self.checkpoint.with_suffix(".part").replace(self.checkpoint)
        save_model(self.model, self.out)
        plot_loss(self.progress.losses, self.progress.evaluations, self.out / "loss.png")
        text = json.dumps(asdict(self.progress))
        (self.out / "losses.json").write_text(text, encoding="utf-8")

    def update(self, rows: Tensor) -> float:
        """One step of the optimizers on (B, 2, length + 1) tokens and labels; returns the loss."""
        factor = learning_rate(self.progress.seconds / self.budget_s) * self.arguments.rate
        for optimizer, rates in zip(self.optimizers, self.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        inputs, targets = rows[:, 0, :-1], rows[:, 1, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.arguments.bf16):
            logits = self.model.forward_sequences(inputs)
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        (loss + BALANCE * self.balance.take()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def evaluate(self, *, whole: bool) -> None:
        """Score the held-out stories (a quarter of them, or all) and show a sample."""
        stories = self.corpus.held_out[:: 1 if whole else 4]
        with torch.compiler.set_stance("force_eager"):  # texts have all lengths
            score = bits_per_byte(self.model, self.tokenizer, stories)
            story = sample_story(self.model, self.tokenizer, "Once upon a time")
        self.progress.evaluations.append((self.progress.tokens, score))
        print(f"held-out bits per byte {score:.4f}\n{story}", flush=True)
        self.balance.terms.clear()

    def train(self) -> None:
        """Until the time is over."""
        progress, mean = self.progress, 0.0
        next_save = progress.seconds + SAVE_S
        next_evaluation = (progress.seconds // EVAL_S + 1) * EVAL_S
        source = batches(
            self.corpus,
            self.tokenizer,
            length=self.arguments.length,
            rows=self.arguments.rows,
            seed=self.arguments.seed,
            start=progress.step,
        )
        while progress.seconds < self.budget_s:
            started = time.monotonic()
            rows = next(source)
            loss = self.update(rows)
            seconds = time.monotonic() - started
            count = int((rows[:, 1, 1:] != IGNORED).sum())
            progress.step += 1
            progress.tokens += count
            progress.seconds += seconds
            mean = 0.98 * mean + 0.02 * loss if mean else loss
            if progress.step % 10 == 0:
                progress.losses.append((progress.tokens, loss))
                left = (self.budget_s - progress.seconds) / 60
                print(
                    f"step {progress.step} loss {loss:.3f} mean {mean:.3f} "
                    f"{count / seconds:.0f} tok/s {left:.1f} min left",
                    flush=True,
                )
            if progress.seconds >= next_evaluation:
                self.evaluate(whole=False)
                next_evaluation += EVAL_S
            if progress.seconds >= next_save:
                self.save()
                next_save = progress.seconds + SAVE_S
        self.evaluate(whole=True)
        self.save()


def _times(weight: float, rng: random.Random) -> int:
    return int(weight) + (rng.random() < weight % 1)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="folder with the four text collections")
    parser.add_argument("--out", required=True, help="where the model and the progress go")
    parser.add_argument("--start", help="a finished model to go on from")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="one eighth faster, after minutes")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    Run(parser.parse_args()).train()


if __name__ == "__main__":
    main()
