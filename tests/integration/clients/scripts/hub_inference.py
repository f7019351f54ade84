"""huggingface_hub's client, which speaks to text-generation-inference."""

from __future__ import annotations

import json as decoding

from checks import (
    MAX_TOKENS,
    QUESTION,
    WEATHER_SCHEMA,
    check,
    is_stream_of,
    is_text,
    is_weather,
    run,
)
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

ASKED = {"max_new_tokens": MAX_TOKENS}


@check
def text(url: str) -> None:
    client = InferenceClient(url)
    whole = client.text_generation(QUESTION, **ASKED)
    is_text(whole)
    assert client.text_generation(QUESTION, **ASKED, return_full_text=True) == QUESTION + whole
    end = whole[4:8]
    assert client.text_generation(QUESTION, **ASKED, stop=[end]) == whole[: whole.find(end) + 4]
    drawn = [client.text_generation(QUESTION, **ASKED, do_sample=True, seed=3) for _ in range(2)]
    assert drawn[0] == drawn[1]


@check
def stream(url: str) -> None:
    client = InferenceClient(url)
    whole = client.text_generation(QUESTION, **ASKED, details=True)
    is_stream_of(client.text_generation(QUESTION, **ASKED, stream=True), whole.generated_text)
    parts = list(client.text_generation(QUESTION, **ASKED, stream=True, details=True))
    assert [vars(part.token) for part in parts] == [vars(each) for each in whole.details.tokens]
    assert parts[-1].generated_text == whole.generated_text
    assert parts[-1].details.finish_reason == "length"


@check
def json(url: str) -> None:
    client = InferenceClient(url)
    grammar = {"type": "json", "value": WEATHER_SCHEMA}
    is_weather(client.text_generation(QUESTION, max_new_tokens=100, grammar=grammar))
    digits = client.text_generation(QUESTION, grammar={"type": "regex", "value": "[0-9]{3}"})
    assert isinstance(decoding.loads(digits.lstrip("0") or "0"), int)


@check
def errors(url: str) -> None:
    said = ""
    try:
        InferenceClient(url).text_generation(QUESTION, best_of=2, do_sample=True)
    except ValidationError as error:
        said = str(error)
    assert "best_of" in said


run()
