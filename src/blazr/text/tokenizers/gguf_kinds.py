"""KINDS: llama.cpp's ways to encode, each built of a file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from blazr.core.errors import CheckpointError
from blazr.text.tokenizers.character_map import CharacterMap
from blazr.text.tokenizers.gguf_entries import (
    BYTE,
    COMPOSES,
    SPACE_PREFIX_ONCE,
    UNUSED,
    USER_DEFINED,
    WHOLE,
    Entries,
    wrong,
)
from blazr.text.tokenizers.gguf_patterns import DEFAULT, PATTERNS
from blazr.text.tokenizers.hf import BYTE_NAME, byte_level, encode_plain
from blazr.text.tokenizers.sentencepiece import (
    SPACE,
    Fallback,
    SentencePieceBpe,
    SentencePieceUnigram,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# The ids of a text; whether anything goes before it matters to SentencePiece.
Encoder = Callable[[str, bool], list[int]]
Built = tuple[Encoder, Callable[[str, int], bytes], bool]


def _sentencepiece(
    make: type[SentencePieceBpe | SentencePieceUnigram],
    entries: Entries,
    special: frozenset[int],
    *,
    adds_bos: bool,
) -> Built:
    """Llama 2, Mistral, Gemma: scores say what to merge. T5: they say which pieces are likely."""
    scores = entries.scores()
    unusable = {BYTE} if make is SentencePieceBpe else {BYTE, UNUSED}  # merges lead through them
    usable = {
        text: token_id
        for token_id, text in enumerate(entries.tokens)
        if text and token_id not in special and entries.types[token_id] not in unusable
    }
    bytes_ = {
        int(found[1], 16): token_id
        for token_id, text in enumerate(entries.tokens)
        if entries.types[token_id] == BYTE and (found := BYTE_NAME.fullmatch(text))
    }
    whole = {each for each, token_id in usable.items() if entries.types[token_id] == WHOLE}
    prefix_at_start = SPACE if entries.flag("add_space_prefix", default=True) else ""
    prefix_after_token = "" if entries.flag(SPACE_PREFIX_ONCE, default=False) else prefix_at_start
    removes_spaces = entries.flag("remove_extra_whitespaces", default=False)
    replace = CharacterMap(entries.bytes("precompiled_charsmap"), kept=whole)
    model = make(
        {text: scores[token_id] for text, token_id in usable.items()},
        usable,
        fallback=Fallback(bytes_, entries.token_id("unknown_token_id")),
        whole=whole,
    )

    def encode(text: str, is_first: bool) -> list[int]:  # noqa: FBT001
        prefix = prefix_at_start if is_first else prefix_after_token
        text = replace(text)
        if removes_spaces:
            text = " ".join(each for each in text.split(" ") if each)
        text = (prefix + text).replace(" ", SPACE) if text else ""
        return model.encode(text.rstrip(SPACE) if removes_spaces else text)

    return encode, _piece_bytes, adds_bos


def _byte_pairs(entries: Entries, special: frozenset[int]) -> Built:
    """GPT-2 and its many followers: merges of bytes, within words cut by a pattern."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    named = entries.text("pre")
    pattern = PATTERNS.get(named) if named else DEFAULT
    if pattern is None:
        raise CheckpointError(
            "the tokenizer in the GGUF file splits words in a way that is not known.",
            found=repr(named)[:100],
            expected=", ".join(PATTERNS),
            hint="name a tokenizer.json of the same model with --vocab",
        )
    vocabulary, merges = _merges(entries, special)
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pattern.whole_words))
    if entries.flag(COMPOSES, default=False):
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in pattern.expressions]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell])

    def to_bytes(text: str, kind: int) -> bytes:
        return text.encode() if kind == USER_DEFINED else byte_level(text)

    return partial(_ids, backend), to_bytes, pattern.adds_bos


def _marked_pairs(entries: Entries, special: frozenset[int]) -> Built:
    """Gemma 4: merges of characters, with spaces written ``▁`` and bytes for what is no piece."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary, merges = _merges(entries, special)
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    return partial(_ids, backend), _piece_bytes, True


def _merges(
    entries: Entries, special: frozenset[int]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The ids of what can be spelled, and what is merged, the most frequent first.

    Raises:
        CheckpointError: The file does not say what is merged, not even that it is nothing.
    """
    if not entries.has("merges"):
        raise wrong("merges", "no such key")
    vocabulary = {text: i for i, text in enumerate(entries.tokens) if i not in special}
    merges = []
    for line in entries.texts("merges"):
        at = line.find(" ", 1)
        left, right = line[:at], line[at + 1 :]
        if at > 0 and left in vocabulary and right in vocabulary and left + right in vocabulary:
            merges.append((left, right))
    return vocabulary, merges


def _piece_bytes(text: str, kind: int) -> bytes:
    byte = BYTE_NAME.fullmatch(text) if kind == BYTE else None
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()


def _word_pieces(entries: Entries, special: frozenset[int]) -> Built:
    """BERT: the longest pieces from the left; here those that begin a word are marked."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers, pre_tokenizers

    inner = "##"
    vocabulary = {}
    for token_id, text in enumerate(entries.tokens):
        begins = text.startswith(SPACE)
        if token_id not in special:
            vocabulary[text[1:] if begins else inner + text] = token_id
    unknown = entries.token_id("unknown_token_id")
    name = entries.tokens[unknown] if unknown is not None else "[UNK]"
    if unknown is not None:
        vocabulary[name] = unknown
    elif name in entries.tokens:
        vocabulary[name] = entries.tokens.index(name)
    model = models.WordPiece(vocabulary, unk_token=name)
    backend = Backend(model)
    lowers = entries.flag("normalizer.lowercase", default=True)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowers,
        strip_accents=entries.flag(
            "normalizer.strip_accents", default=entries.flag("strip_accents", default=lowers)
        ),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return partial(_ids, backend), lambda text, _: text.replace(SPACE, " ").encode(), True


def _ids(backend: Backend, text: str, _: bool) -> list[int]:  # noqa: FBT001
    found: list[int] = encode_plain(backend, text).ids
    return found


KINDS: Mapping[str, Callable[[Entries, frozenset[int]], Built]] = MappingProxyType(
    {
        "llama": partial(_sentencepiece, SentencePieceBpe, adds_bos=True),
        "t5": partial(_sentencepiece, SentencePieceUnigram, adds_bos=False),
        "gpt2": _byte_pairs,
        "gemma4": _marked_pairs,
        "bert": _word_pieces,
    }
)
