"""Rows of a dataset are answered as `LLM` answers them; that Ray Data runs it is a test for Ray."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.llm import LLM
from blazr.ray_data import Processor

GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def processor() -> Iterator[Processor]:
    made = Processor("nano", GREEDY, device="cpu", memory="64MiB")
    yield made
    made.close()


def test_prompts_and_their_own_parameters(processor: Processor) -> None:
    rows = {
        "id": np.array([7, 8]),
        "prompt": np.array(["Once upon a time", "Two"], dtype=object),
        "sampling_params": np.array([None, {"max_tokens": 3}], dtype=object),
    }
    found = processor(rows)
    assert found["id"].tolist() == [7, 8]
    assert found["num_generated_tokens"].tolist() == [6, 3]
    assert found["finish_reason"].tolist() == ["length", "length"]
    assert found["error"].tolist() == ["", ""]
    with LLM("nano", device="cpu", memory="64MiB") as llm:
        expected = llm.generate("Once upon a time", SamplingParams(**GREEDY))
    assert found["generated_text"][0] == expected[0].text
    assert found["num_input_tokens"][0] == expected[0].usage.prompt_tokens


def test_chats_as_ray_hands_them_on(processor: Processor) -> None:
    """With arrays for lists, and None for keys that other rows have."""
    chat = np.array([{"role": "user", "content": "Tell me a story", "name": None}], dtype=object)
    chats = np.empty(1, dtype=object)
    chats[0] = chat
    found = processor({"messages": chats})
    assert found["error"].tolist() == [""]
    assert found["num_generated_tokens"][0] > 0


def test_a_row_that_cannot_be_answered_fails_alone(processor: Processor) -> None:
    rows = {
        "prompt": np.array(["Once", "word " * 50_000, "Two", "Three"], dtype=object),
        "sampling_params": np.array([None, None, {"temperature": 9}, {"heat": 1}], dtype=object),
    }
    found = processor(rows)
    assert found["finish_reason"].tolist() == ["length", "error", "error", "error"]
    assert "tokens" in found["error"][1]
    assert "temperature" in found["error"][2]
    assert "heat" in found["error"][3]
    assert found["generated_text"][0]


def test_rows_without_a_prompt_are_refused(processor: Processor) -> None:
    with pytest.raises(RequestError, match="question"):
        processor({"question": np.array(["Why?"], dtype=object)})


def test_unknown_parameters_are_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(RequestError, match="sampling_params"):
        Processor("no such model", {"heat": 1})
