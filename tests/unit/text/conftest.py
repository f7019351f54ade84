"""Tokenizers for the tests of this package."""

from pathlib import Path

import pytest

from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import TOKENIZERS

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def cl100k() -> Tokenizer:
    return TOKENIZERS["vocabulary"]("cl100k_base")


@pytest.fixture(scope="session")
def llama3() -> Tokenizer:
    return TOKENIZERS["vocabulary"]("llama3")


@pytest.fixture(scope="session")
def stories() -> Tokenizer:
    return TOKENIZERS["tokenizer.json"](str(GOLDEN / "tokenizers/stories260k/tokenizer.json"))


@pytest.fixture(scope="session")
def chatty() -> Tokenizer:
    """Byte-level, with the markers of ChatML."""
    return TOKENIZERS["tokenizer.json"](str(GOLDEN / "tokenizers/byte_level/tokenizer.json"))
