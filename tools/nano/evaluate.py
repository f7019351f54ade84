"""Bits per byte on stories never trained on, of nano and of a Llama to compare with.

python tools/nano/evaluate.py --corpus PATH --model DIR [--model DIR ...]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from data import END, held_out_stories
from tokenizer import id_of
from tokenizers import Tokenizer

from blazr.models.causal_lm import CausalLM


@torch.inference_mode()
def bits_per_byte(
    model: CausalLM, tokenizer: Tokenizer, stories: list[str], *, first: str = END
) -> float:
    """Mean over all bytes of the stories, each read on its own after the token ``first``.

    The end of a story is not scored. A story beyond the model's context is cut there.
    """
    nats, size = 0.0, 0
    start = id_of(tokenizer, first)
    for story in stories:
        ids = [start, *tokenizer.encode(story, add_special_tokens=False).ids]
        ids = ids[: model.config.max_seq_len]
        tensor = torch.tensor([ids])
        logits = model.forward_sequences(tensor[:, :-1])[0]
        nats += F.cross_entropy(logits, tensor[0, 1:], reduction="sum").item()
        size += len(tokenizer.decode(ids[1:]).encode())
    return nats / math.log(2) / size


@torch.inference_mode()
def sample_story(
    model: CausalLM, tokenizer: Tokenizer, prompt: str, *, max_tokens: int = 120
) -> str:
    """A greedy continuation, computed afresh for every token (slow and simple)."""
    ids = tokenizer.encode(prompt).ids
    for _ in range(max_tokens):
        token = int(model.forward_sequences(torch.tensor([ids]))[0, -1].argmax())
        if token == tokenizer.token_to_id(END):
            break
        ids.append(token)
    return tokenizer.decode(ids)


def common_prefixes(stories: list[str], readers: list[tuple[Tokenizer, int]]) -> list[str]:
    """Each story cut to what every model can read, so that all are scored on the same bytes.

    Args:
        stories: Whole stories.
        readers: Tokenizer and context, in tokens, of each model.
    """
    cut = []
    for story in stories:
        for tokenizer, context in readers:
            ids = tokenizer.encode(story, add_special_tokens=False).ids
            if len(ids) >= context:
                story = story[: len(tokenizer.decode(ids[: context - 1]))]  # noqa: PLW2901
        cut.append(story)
    return cut


def main() -> None:
    """Print a line for each model."""
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--model", action="append", required=True)
    arguments = parser.parse_args()
    models = []
    for folder in arguments.model:
        loaded = load(folder, device=resolve_device("cpu"), dtype="float32")
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        models.append((folder, loaded.module, tokenizer))
    stories = held_out_stories(Path(arguments.corpus))
    readers = [(tokenizer, model.config.max_seq_len) for _, model, tokenizer in models]
    stories = common_prefixes(stories, readers)
    print(f"{len(stories)} stories, {sum(len(s.encode()) for s in stories):,} bytes")
    for folder, model, tokenizer in models:
        first = END if tokenizer.token_to_id(END) is not None else "<s>"
        score = bits_per_byte(model, tokenizer, stories, first=first)
        print(f"{folder}: {score:.4f} bits per byte")


if __name__ == "__main__":
    main()
