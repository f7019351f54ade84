"""Hold a chat. The built-in model only tells stories; name a chat model to get answers.

Run: python examples/chat.py [MODEL]
"""

import sys

from blazr import LLM, Message, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
messages = [
    Message(role="system", content="You are a helpful assistant."),
    Message(role="user", content="Tell me a story about a bird."),
]
with LLM(model) as llm:
    for question in ("And then?", None):
        reply = llm.chat(messages, SamplingParams(max_tokens=40, seed=0))
        print(f"> {messages[-1].content}\n{reply.text.strip()}\n")
        if question is not None:
            messages.append(Message(role="assistant", content=reply.text))
            messages.append(Message(role="user", content=question))
    print(f"[{reply.usage.cached_tokens} of {reply.usage.prompt_tokens} prompt tokens were reused]")
