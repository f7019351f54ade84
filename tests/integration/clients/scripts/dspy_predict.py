"""DSPy, through LiteLLM."""

from __future__ import annotations

import dspy
from checks import KEY, MAX_TOKENS, MODEL, QUESTION, are_vectors, check, is_text, is_usage, run


def model(url: str, max_tokens: int = MAX_TOKENS) -> dspy.LM:
    return dspy.LM(
        f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=max_tokens,
        cache=False,
        num_retries=0,
    )


@check
def chat(url: str) -> None:
    opened = model(url)
    (text,) = opened(QUESTION)
    is_text(text)
    usage = opened.history[-1]["usage"]
    is_usage(usage["prompt_tokens"], usage["completion_tokens"])


@check
def embeddings(url: str) -> None:
    embedder = dspy.Embedder(f"openai/{MODEL}", api_base=f"{url}/v1", api_key=KEY, caching=False)
    are_vectors(embedder(["a dog", "the sun is hot"]).tolist())


run()
