"""A script for vLLM with one import changed: one chat, then a batch of them."""

from blazr import LLM, SamplingParams

CONVERSATION = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me of a cat."},
]


def main() -> None:
    llm = LLM(model="nano", max_model_len=512)
    default = llm.get_default_sampling_params()
    sampling_params = SamplingParams(temperature=default.temperature, max_tokens=40)
    for output in llm.chat(CONVERSATION, sampling_params, use_tqdm=False):
        print(output.outputs[0].text)
    for output in llm.chat([CONVERSATION] * 3, sampling_params, use_tqdm=True):
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()
