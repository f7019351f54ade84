"""Continue a prompt with the built-in model.

Run: python examples/quickstart.py
"""

from blazr import LLM, SamplingParams

with LLM() as llm:
    params = SamplingParams(max_tokens=60, temperature=0)
    (completion,) = llm.generate("Once upon a time", params)
    print("Once upon a time" + completion.text)
    print(f"[{completion.usage.completion_tokens} tokens, {completion.finish_reason}]")
