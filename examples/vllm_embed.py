"""A script for vLLM with one import changed: texts as vectors, and how well they fit."""

from blazr import LLM

prompts = ["The cat sat on the mat.", "A kitten slept.", "The stock market fell."]


def main() -> None:
    llm = LLM(model="nano", runner="pooling")
    for prompt, output in zip(prompts, llm.embed(prompts), strict=True):
        embedding = output.outputs.embedding
        print(f"{prompt!r}: {embedding[:4]}... (size {len(embedding)})")
    for output in llm.score(prompts[0], prompts[1:]):
        print(f"score: {output.outputs.score:.3f}")


if __name__ == "__main__":
    main()
