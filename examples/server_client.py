"""Talk to a running server with OpenAI's client.

Run: blazr serve & python examples/server_client.py [URL]
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
client = OpenAI(base_url=url, api_key="not-needed")
model = client.models.list().data[0].id

stream = client.completions.create(
    model=model, prompt="Once upon a time", max_tokens=40, temperature=0, stream=True
)
for chunk in stream:
    print(chunk.choices[0].text, end="", flush=True)
print()

reply = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me a story about a bird."}],
    max_tokens=40,
    seed=0,
)
print(reply.choices[0].message.content)
print(f"[{reply.model}: {reply.usage.completion_tokens} tokens]")
