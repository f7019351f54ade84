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

replies = [reply for completion in completions for reply in completion.outputs]
for reply in replies:
    prompt = prompts[reply.index // params.n]
    print(f"{reply.index}: {prompt}{reply.text[:60]!r}")
num_tokens = sum(len(reply.token_ids) for reply in replies)
print(f"[{len(replies)} replies, {num_tokens / elapsed_s:.0f} tokens/s]")
