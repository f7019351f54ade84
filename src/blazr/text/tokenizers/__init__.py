"""TOKENIZERS: the kinds there are, and how each is loaded."""

from __future__ import annotations

from collections.abc import Callable

from blazr.core.table import Table
from blazr.text.tokenizer import Tokenizer

# A row takes what names the tokenizer: "vocabulary" a name in VOCABS, the others a file's path.
TOKENIZERS: Table[Callable[[str], Tokenizer]] = Table(
    "tokenizer",
    {},
    lazy={
        "vocabulary": "blazr.text.tokenizers.vocabulary:load",
        "tokenizer.json": "blazr.text.tokenizers.hf:load",
        "tiktoken": "blazr.text.tokenizers.tiktoken:load",
        "gguf": "blazr.text.tokenizers.gguf:load",
        "tokenizer.model": "blazr.text.tokenizers.sentencepiece_file:load",
        "tekken.json": "blazr.text.tokenizers.tekken:load",
        "tiktoken.model": "blazr.text.tokenizers.kimi:load",
        "vocab.json": "blazr.text.tokenizers.vocab_and_merges:load",
    },
)
