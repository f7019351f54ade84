"""What packed weights cost, and keys, values and states in fewer bits: perplexity of a text.

    python benchmarks/perplexity.py nano stories.txt --quantize none q8_0 q4_k
    python benchmarks/perplexity.py nano stories.txt --kv-dtype auto q8_0 fp8_e4m3
    python benchmarks/perplexity.py nano stories.txt --state-dtype auto bfloat16
    python benchmarks/perplexity.py model.gguf stories.txt        (and llama.cpp's)

The first tokens of the text in windows that do not overlap, each from nothing.
"""

import argparse
import math
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F

from blazr.llm.llm import LLM


def windows_of(model: str, text: str, count: int, length: int) -> torch.Tensor:
    with LLM(model, device="cpu") as llm:
        start = [llm.tokenizer.bos_id] if llm.tokenizer.bos_id is not None else []
        ids = llm.tokenizer.encode(text[: 8 * count * length])
    body = length - len(start)
    assert len(ids) >= count * body, "the text is too short"
    return torch.tensor([[*start, *ids[i * body : (i + 1) * body]] for i in range(count)])


def ours(
    model: str,
    windows: torch.Tensor,
    *,
    quantize: str | None,
    dtype: str,
    kv_dtype: str,
    state_dtype: str,
) -> float:
    with LLM(
        model,
        device="cpu",
        quantize=quantize,
        dtype=dtype,
        kv_dtype=kv_dtype,
        state_dtype=state_dtype,
    ) as llm:
        losses = [F.cross_entropy(llm.logits(row.tolist())[:-1], row[1:]) for row in windows]
    return math.exp(torch.stack(losses).mean())


def theirs(model: str, windows: torch.Tensor) -> float:
    import llama_cpp
    import numpy as np

    length = windows.shape[1]
    llama = llama_cpp.Llama(model, n_ctx=length, logits_all=True, verbose=False, n_threads=1)
    losses = []
    for row in windows:
        llama.reset()
        llama.eval(row.tolist())
        scores = torch.from_numpy(np.array(llama.scores[: length - 1]))
        losses.append(F.cross_entropy(scores, row[1:]))
    return math.exp(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--quantize", nargs="+", default=["none"])
    parser.add_argument("--kv-dtype", nargs="+", default=["auto"])
    parser.add_argument("--state-dtype", nargs="+", default=["auto"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    windows = windows_of(options.model, text, options.windows, options.length)
    print(f"{options.model}: {windows.numel()} tokens")
    for name, kv_dtype, state_dtype in product(
        options.quantize, options.kv_dtype, options.state_dtype
    ):
        found = ours(
            options.model,
            windows,
            quantize=None if name == "none" else name,
            dtype=options.dtype,
            kv_dtype=kv_dtype,
            state_dtype=state_dtype,
        )
        print(f"  {name:8} {kv_dtype:8} {state_dtype:8} {found:.4f}")
    if options.model.endswith(".gguf") and find_spec("llama_cpp"):
        print(f"  llama.cpp {theirs(options.model, windows):.4f}")


if __name__ == "__main__":
    main()
