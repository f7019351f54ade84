"""Continue many prompts at once, several times each; the engine batches them.

Run: python examples/batch.py
"""

import time

from blazr import LLM, SamplingParams

prompts = ["Once upon a time", "The old king", "In the garden", "A boy named Tom"]
params = SamplingParams(max_tokens=40, n=2, seed=0)

with LLM() as llm:
    start = time.monotonic()
    completions = llm.generate(prompts, params)
    elapsed_s = time.monotonic() - start

for completion in completions:
    prompt = prompts[completion.index // params.n]
    print(f"{completion.index}: {prompt}{completion.text[:60]!r}")
num_tokens = sum(completion.usage.completion_tokens for completion in completions)
print(f"[{len(completions)} replies, {num_tokens / elapsed_s:.0f} tokens/s]")
