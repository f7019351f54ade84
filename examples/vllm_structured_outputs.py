"""A script for vLLM with one import changed: replies that follow a choice, a pattern, a schema."""

from blazr import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}},
          "required": ["name"], "additionalProperties": False}  # fmt: skip
STRUCTURES = {
    "Is the cat happy?": StructuredOutputsParams(choice=["Positive", "Negative"]),
    "My address is": StructuredOutputsParams(regex=r"[a-z]{3,8}@[a-z]{3,8}\.com\n"),
    "The girl in JSON:": StructuredOutputsParams(json=SCHEMA),
    "SQL:": StructuredOutputsParams(grammar='start: "SELECT " /[a-z]{1,5}/ " FROM cats"'),
}


def main() -> None:
    llm = LLM(model="nano", max_model_len=256)
    for prompt, structure in STRUCTURES.items():
        sampling_params = SamplingParams(structured_outputs=structure, max_tokens=60)
        outputs = llm.generate(prompts=prompt, sampling_params=sampling_params)
        print(outputs[0].outputs[0].text)


if __name__ == "__main__":
    main()
