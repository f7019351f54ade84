"""The named vocabularies, and which a model is taken to speak."""

import pytest

from blazr.text.vocabs import VOCABS, vocab_of_model


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [
        (512, None),
        (32_000, None),
        (32_100, None),
        (32_101, "cl100k_base"),
        (50_257, "cl100k_base"),
        (100_277, "cl100k_base"),
        (100_315, "cl100k_base"),
        (100_350, "cl100k_base"),
        (100_351, "llama3"),
        (128_256, "llama3"),
        (128_400, "llama3"),
        (128_401, "deepseek_v3"),
        (129_280, "deepseek_v3"),
        (130_000, "deepseek_v3"),
        (130_001, "o200k_base"),
        (200_073, "o200k_base"),
        (201_500, "o200k_base"),
        (201_501, None),
        (256_000, None),
    ],
)
def test_size_tells_the_vocabulary(vocab_size: int, name: str | None) -> None:
    row = vocab_of_model(vocab_size)
    assert (row.name if row else None) == name


def test_agent_tokens_lie_where_they_were_trained() -> None:
    cl100k = VOCABS["cl100k_base"].agent_tokens
    assert cl100k["<|system|>"] == 100_277
    assert cl100k["<|/recall|>"] == 100_315
    assert cl100k["<|/summary|>"] == 100_330
    llama3 = VOCABS["llama3"].agent_tokens
    assert llama3["<|system|>"] == 128_300
    assert llama3["<|image|>"] == 128_256
    assert llama3["<|/video|>"] == 128_261
    assert llama3["<|title|>"] == 128_348
    assert llama3["<|/summary|>"] == 128_353


def test_stop_ids_are_those_of_the_format() -> None:
    assert VOCABS["llama3"].stop_ids == (128_001, 128_008, 128_009)
    assert VOCABS["deepseek_v3"].stop_ids == (1, 128_805)
    assert VOCABS["cl100k_base"].chat_stop_ids == (100_277, 100_278, 100_279, 100_281, 100_317)


def test_every_vocabulary_is_found_by_a_size_of_its_own() -> None:
    for name, row in VOCABS.items():
        found = vocab_of_model(row.size)
        assert found is not None
        assert found.name == name
