# ruff: noqa: RUF001  (letters of many scripts)
"""The tokenizer of a directory as the metadata of a GGUF file.

GGUF names the pre-tokenizer of a vocabulary, so that of a tokenizer.json has to be recognised: it
is the first by which a text full of hard cases becomes the same tokens.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blazr.core.gguf_header import Value
from blazr.text import sidecars
from blazr.text.tokenizers import sentencepiece_file, vocab_and_merges
from blazr.text.tokenizers.beside import UnknownKindError
from blazr.text.tokenizers.choose import find_file, kind_of
from blazr.text.tokenizers.gguf import END_KEYS, from_metadata
from blazr.text.tokenizers.gguf_entries import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE,
    Entries,
    unused_name,
)
from blazr.text.tokenizers.gguf_patterns import PATTERNS
from blazr.text.tokenizers.hf import BYTE_NAME, HuggingFaceTokenizer
from blazr.text.tokenizers.sentencepiece import SPACE

# Vocabulary files whose contents are metadata as they are, by their kind.
_METADATA: Mapping[str, Callable[[Path], dict[str, Value]]] = MappingProxyType(
    {
        "tokenizer.model": sentencepiece_file.metadata,
        "vocab.json": vocab_and_merges.metadata,
    }
)
_log = logging.getLogger(__name__)

_ROLES = {"bos_token": "bos", "unk_token": "unknown", "pad_token": "padding"}
_TEMPLATE = "tokenizer.chat_template"
# What tells pre-tokenizers apart: digits, contractions, spaces, letters of many scripts.
_PROBE_TEXT = (
    "Hello, world! I'm 1 of 22, 333, 4444 or 55555; they'LL say it's 3.14 (or 2,718).\n\n\n"
    "  two  spaces\tand\ttabs \n \r\n x=y+1;//z != w && {a: [b]} <p>$5</p> foo_bar fooBar"
    " HTTPServer a'b 'tis don't DON'T you'Ve ___ --- ... !?! #42 @me 100% 1e-9 ١٢٣ ½ ²\n"
    "Übergrößenträger naïve café Привет, мир! Γειά σου 你好，世界。 こんにちは カタカナ 안녕하세요"
    " สวัสดี नमस्ते שלום مرحبا 🚀🚀 👩‍👧 \u200b\xa0end   "
)


def gguf_vocabulary(directory: Path, vocab_size: int) -> dict[str, Value]:
    """The metadata for the tokenizer of a model; none where it has none that GGUF can hold.

    Args:
        directory: Where the model's files are.
        vocab_size: Rows of its embedding.

    Raises:
        CheckpointError: A file cannot be read.
    """
    file = find_file(directory)
    found: dict[str, Value] = {}
    if file is not None and (kind := kind_of(file)) == "tokenizer.json":
        found = _of_tokenizer_json(file, vocab_size)
    elif file is not None and kind in _METADATA:
        with suppress(UnknownKindError):
            found = _padded(_METADATA[kind](file), vocab_size)
    if KEY + "model" not in found:
        _log.warning("GGUF cannot hold this model's vocabulary: name it with --vocab when you run")
        found = {KEY + "model": "none"}
    own = sidecars.own_templates(directory)
    for name, text in own.items():
        found[_TEMPLATE if name == "default" else f"{_TEMPLATE}.{name}"] = text
    others = [name for name in own if name != "default"]
    return found | ({"tokenizer.chat_templates": others} if others else {})


def _of_tokenizer_json(file: Path, vocab_size: int) -> dict[str, Value]:
    tokenizer = HuggingFaceTokenizer(file, only_ids=True)
    stored = sidecars.read_json(file)
    tokens, types = _tokens(tokenizer, stored, vocab_size)
    base: dict[str, Value] = {KEY + "tokens": tokens, KEY + "token_type": memoryview(types)}
    names = sidecars.token_names(file.parent)
    special = {
        word: tokenizer.special_ids[names[role]]
        for role, word in _ROLES.items()
        if names.get(role) in tokenizer.special_ids
    }
    if tokenizer.bos_id is not None:
        special["bos"] = tokenizer.bos_id
    base |= {f"{KEY}{word}_token_id": each for word, each in special.items()}
    base |= {KEY + key: each for key, each in zip(END_KEYS, tokenizer.eos_ids, strict=False)}
    base[KEY + "add_bos_token"] = tokenizer.bos_id is not None
    ids = tokenizer.encode(_PROBE_TEXT)
    for splitting in _likely_splittings(stored, tokens, types) if tokens else ():
        found = base | splitting
        if from_metadata(found, name=tokenizer.name).encode(_PROBE_TEXT) == ids:
            return found
    return {}


def _padded(metadata: dict[str, Value], vocab_size: int) -> dict[str, Value]:
    """Metadata with a token for each row of an embedding; empty where it has too few rows."""
    entries = Entries(metadata)
    missing = range(len(entries.tokens), vocab_size)
    if len(entries.tokens) > vocab_size:
        return {}
    types = [USER_DEFINED if each == WHOLE else each for each in entries.types]
    types += [UNUSED] * len(missing)
    found: dict[str, Value] = {
        KEY + "tokens": [*entries.tokens, *map(unused_name, missing)],
        KEY + "token_type": memoryview(array("i", types)),
    }
    if KEY + "scores" in metadata:
        scores = [*entries.scores(), *([0.0] * len(missing))]
        found[KEY + "scores"] = memoryview(array("f", scores))
    return metadata | found


def _tokens(
    tokenizer: HuggingFaceTokenizer, stored: Mapping[str, object], vocab_size: int
) -> tuple[list[str], array[int]]:
    """Tokens and their types, with an unused token for each further row of the embedding.

    Both are empty where the embedding has too few rows.
    """
    tokens = list[str]()
    types = array("i")
    if tokenizer.size > vocab_size:
        return tokens, types
    added = stored.get("added_tokens")
    found_in_text = {
        each.get("id")
        for each in (added if isinstance(added, list) else ())
        if isinstance(each, dict)
    }
    for token_id in range(vocab_size):
        name = tokenizer.name_of(token_id)
        tokens.append(unused_name(token_id) if name is None else name)
        if name is None:
            types.append(UNUSED)
        elif name == "<unk>":
            types.append(UNKNOWN)
        elif tokenizer.is_special(token_id):
            types.append(CONTROL)
        elif token_id in found_in_text:
            types.append(USER_DEFINED)
            tokens[-1] = tokens[-1].replace(SPACE, " ")  # as llama.cpp finds it in a text
        else:
            types.append(BYTE if BYTE_NAME.fullmatch(name) else NORMAL)
    return tokens, types


def _likely_splittings(
    stored: Mapping[str, object], tokens: Sequence[str], types: Sequence[int]
) -> Iterator[dict[str, Value]]:
    """The metadata that may describe how a vocabulary splits text, the likeliest first."""
    model = stored.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if isinstance(model, dict) and kind == "BPE":
        yield from _byte_pair_splittings(stored, model, len(tokens))
    elif isinstance(model, dict) and kind == "WordPiece":
        # GGUF marks the pieces that begin a word; a tokenizer.json those that go on
        mark = str(model.get("continuing_subword_prefix", "##"))
        unknown = model["vocab"].get(model.get("unk_token", "[UNK]"))
        spelled = [
            name if each != NORMAL else name[len(mark) :] if name.startswith(mark) else SPACE + name
            for name, each in zip(tokens, types, strict=True)
        ]
        named = {} if unknown is None else {KEY + "unknown_token_id": unknown}
        yield {KEY + "model": "bert", KEY + "pre": "default", KEY + "tokens": spelled, **named}


def _byte_pair_splittings(
    stored: Mapping[str, object], model: Mapping[str, Any], vocab_size: int
) -> Iterator[dict[str, Value]]:
    merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
    if "ByteLevel" in json.dumps(stored.get("decoder")):
        lines = [" ".join(pair) for pair in merges]
        whole = bool(model.get("ignore_merges"))
        for name, pattern in PATTERNS.items():
            if pattern.whole_words == whole:
                yield {KEY + "model": "gpt2", KEY + "pre": name, KEY + "merges": lines}
        return
    ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(merges)))}
    names = {token_id: name for name, token_id in model["vocab"].items()}
    # what is merged first scores highest
    each = (-float(ranks.get(names.get(i, ""), len(merges))) for i in range(vocab_size))
    scores = memoryview(array("f", each))
    for has_space in (True, False):
        space = {KEY + "add_space_prefix": has_space, KEY + "scores": scores}
        yield {KEY + "model": "llama", KEY + "pre": "default", **space}
