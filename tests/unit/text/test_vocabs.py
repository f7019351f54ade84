"""The named vocabularies, and which a model is taken to speak."""

import pytest

from blazr.text.vocabs import CHAT_STOP_NAMES, VOCABS, guess_vocab


@pytest.mark.parametrize(
    ("num_rows", "name"),
    [
        (512, None),
        (32_000, None),
        (50_257, None),
        (100_277, "cl100k_base"),
        (100_315, "cl100k_base"),
        (100_331, "cl100k_base"),
        (100_352, "cl100k_base"),  # the same padded to 64s and to 1,024s
        (100_353, None),
        (102_400, None),
        (128_000, None),
        (128_256, "llama3"),
        (128_354, "llama3"),
        (128_512, "llama3"),
        (128_815, "deepseek_v3"),
        (128_954, "deepseek_v3"),
        (129_280, "deepseek_v3"),
        (130_000, None),
        (131_072, None),
        (151_936, None),
        (152_064, None),
        (200_019, "o200k_base"),
        (200_064, "o200k_base"),
        (200_704, "o200k_base"),
        (201_088, None),
        (256_000, None),
    ],
)
def test_only_an_exact_or_padded_count_tells_the_vocabulary(
    num_rows: int, name: str | None
) -> None:
    guess = guess_vocab(num_rows)
    assert (guess.vocab.name if guess.vocab else None) == name
    assert f"{num_rows:,} rows" in guess.reason


def test_a_count_that_fits_two_vocabularies_tells_none() -> None:
    guess = guess_vocab(129_024)
    assert guess.vocab is None
    assert "llama3 and deepseek_v3" in guess.reason


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
    tokens = VOCABS["cl100k_base"].agent_tokens
    ends = [tokens[name] for name in CHAT_STOP_NAMES]
    assert ends == [100_277, 100_278, 100_279, 100_281, 100_317]


def test_every_vocabulary_is_found_by_a_size_of_its_own() -> None:
    for name, row in VOCABS.items():
        for count in (row.base_size, row.size):
            found = guess_vocab(count).vocab
            assert found is not None
            assert found.name == name
