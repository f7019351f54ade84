"""Show text while it is being generated, and stop in the middle.

Run: python examples/stream.py
"""

from blazr import LLM, SamplingParams
from blazr.text.events import Finished, TextDelta

with LLM() as llm:
    for event in llm.stream("Once upon a time", SamplingParams(max_tokens=60, temperature=0)):
        match event:
            case TextDelta(text=text):
                print(text, end="", flush=True)
            case Finished(reason=reason, num_tokens=num_tokens):
                print(f"\n[{num_tokens} tokens, {reason}]")

    # leaving the loop ends the reply: nothing is computed for a reader who has gone
    for count, _ in enumerate(llm.stream("The little cat", SamplingParams(max_tokens=500)), 1):
        if count == 5:
            print("[left after five events]")
            break
