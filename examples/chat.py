"""Hold a chat. The built-in model only tells stories; name a chat model to get answers.

Run: python examples/chat.py [MODEL]
"""

import sys

from blazr import LLM, Message, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
messages = [Message(role="system", content="You are a helpful assistant.")]
with LLM(model) as llm:
    for question in ("Tell me a story about a bird.", "And then?"):
        messages.append(Message(role="user", content=question))
        reply = llm.chat(messages, SamplingParams(max_tokens=40, seed=0))
        messages.append(Message(role="assistant", content=reply.text))
        print(f"> {question}\n{reply.text.strip()}\n")
    print(f"[{reply.usage.cached_tokens} of {reply.usage.prompt_tokens} prompt tokens were reused]")
