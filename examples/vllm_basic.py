"""A script for vLLM with one import changed: completions of several prompts."""

from blazr import LLM, SamplingParams

prompts = ["Once upon a time", "The old king", "One day, a little girl"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main() -> None:
    llm = LLM(model="nano")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"Prompt:    {output.prompt!r}\nOutput:    {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
