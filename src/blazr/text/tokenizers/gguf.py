"""The tokenizer in a GGUF file: its ``tokenizer.ggml.*`` metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from blazr.core.errors import CheckpointError
from blazr.core.gguf import Value, read_gguf_header
from blazr.text import detokenize
from blazr.text.tokenizer import Tokenizer, encode_with
from blazr.text.tokenizers.gguf_patterns import DEFAULT, PATTERNS
from blazr.text.tokenizers.hf import BYTE_NAME, BYTE_OF_CHARACTER, MARKER
from blazr.text.tokenizers.sentencepiece import SPACE, SentencePieceBpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Encoder = Callable[[str], list[int]]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_LARGEST_ID = 2**22
_SPACES = " \t\n\v\f\r"  # as C has them
KEY = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Files often name one token that ends a text, where the model writes several.
_END_NAMES = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<|repo_name|>",  # noqa: RUF001
    "<|file_sep|>", "<turn|>", "<|tool_response>",
)  # fmt: skip
# In the Harmony form this one ends a part of a reply only.
_HARMONY, _PART_END = {"<|return|>", "<|call|>"}, "<|end|>"


def load(path: str) -> Tokenizer:
    """Load the tokenizer of a GGUF file, with tensors in it or without.

    Raises:
        CheckpointError: The file cannot be read, or its tokenizer is of an unknown kind.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            metadata = read_gguf_header(stream).metadata
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error
    return from_metadata(metadata, name=file.stem)


def has_tokenizer(metadata: Mapping[str, Value]) -> bool:
    """Whether a file's metadata hold a tokenizer."""
    return metadata.get(KEY + "model") not in {None, "none", "no_vocab"}


def from_metadata(metadata: Mapping[str, Value], *, name: str) -> Tokenizer:
    """Build the tokenizer that metadata describe.

    Raises:
        CheckpointError: They describe none, or one of an unknown kind.
    """
    entries = _Entries(metadata)
    kind = entries.text("model")
    if kind not in _KINDS:
        raise CheckpointError(
            "the tokenizer in the GGUF file is of an unknown kind."
            if kind
            else "the GGUF file holds no tokenizer.",
            found=repr(kind)[:100],
            expected=", ".join(_KINDS),
            hint="name a tokenizer.json of the same model with --vocab",
        )
    return GgufTokenizer(entries, name=name, kind=kind)


class _Entries:
    """The metadata of a tokenizer, read without trusting them."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self.texts("tokens")
        if not 0 < len(self.tokens) <= _LARGEST_ID:
            raise _wrong("tokens", f"{len(self.tokens)} of them")
        types = self._metadata.get(KEY + "token_type")
        self.types: Sequence[int] = types if isinstance(types, memoryview) else ()
        if self.types and len(self.types) < len(self.tokens):
            raise _wrong("token_type", f"{len(self.types)} for {len(self.tokens)} tokens")
        self.types = self.types or [1] * len(self.tokens)
        self.model_name = str(metadata.get("general.name", "")).lower()

    def text(self, key: str) -> str:
        """A string; an empty one where there is none."""
        value = self._metadata.get(KEY + key, "")
        if not isinstance(value, str):
            raise _wrong(key, repr(value))
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; an empty one where there is none."""
        value = self._metadata.get(KEY + key, [])
        if not isinstance(value, list):
            raise _wrong(key, repr(value))
        return [str(each) for each in value]

    def scores(self) -> Sequence[float]:
        """One of each token."""
        value = self._metadata.get(KEY + "scores")
        if not isinstance(value, memoryview) or len(value) < len(self.tokens):
            raise _wrong("scores", repr(value))
        return value

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001  (as `dict.get` takes it)
        """Yes or no."""
        value = self._metadata.get(KEY + key, default)
        return value if isinstance(value, bool) else default

    def token_ids(self, key: str) -> list[int]:
        """Tokens of the vocabulary that share a role: Ollama's word, convert/convert.go."""
        value = self._metadata.get(KEY + key)
        listed = value.tolist() if isinstance(value, memoryview) else []
        return [each for each in listed if isinstance(each, int) and 0 <= each < len(self.tokens)]

    def token_id(self, key: str) -> int | None:
        """A token with a role, where one of the vocabulary is named."""
        value = self._metadata.get(KEY + key)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if 0 <= value < len(self.tokens) else None


def _wrong(key: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"the metadata {KEY}{key} of the GGUF file cannot be used.",
        found=found[:100],
        hint="convert the model again, or name a tokenizer.json with --vocab",
    )


class GgufTokenizer:
    """A vocabulary with one of llama.cpp's ways to encode.

    Special are control tokens and those spelled ``<|so|>``; other tokens that the file calls
    user-defined are found in any text before the rest of it is encoded.
    """

    def __init__(self, entries: _Entries, *, name: str, kind: str) -> None:
        tokens, types = entries.tokens, entries.types
        self.name = name
        self.size = len(tokens)
        ends = _end_ids(entries)
        special = [
            token_id
            for token_id, (text, each) in enumerate(zip(tokens, types, strict=False))
            if text and (each in {UNKNOWN, CONTROL} or token_id in ends or _is_marker(text, each))
        ]
        self.special_ids = MappingProxyType({tokens[i]: i for i in reversed(special)})
        self._special = frozenset(self.special_ids.values())
        self.eos_ids = tuple(ends)
        encode, to_bytes, adds_bos = _KINDS[kind](entries, self._special)
        adds_bos = entries.flag("add_bos_token", adds_bos)
        self.bos_id = entries.token_id("bos_token_id") if adds_bos else None
        self.strips_leading_space = kind == "bert" or (
            kind == "llama" and entries.flag("add_space_prefix", default=True)
        )
        self._encode = encode
        self._bytes = _all_bytes(entries, self._special, to_bytes)
        plain = {tokens[i]: i for i in range(self.size) if types[i] == USER_DEFINED and tokens[i]}
        self._found_in_text = _by_length(
            {each: i for each, i in plain.items() if i not in self._special}
        )
        self._all_found = _by_length({**plain, **self.special_ids})
        self._eats_space = "phi-3" in entries.model_name or "phi3" in entries.model_name

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        names = self._all_found if allow_special else self._found_in_text
        return encode_with(partial(self._encode_around, names), text)

    def _encode_around(self, names: Sequence[tuple[str, int]], text: str) -> list[int]:
        """Encode what lies between the tokens that are found by their names, longest first."""
        parts: list[str | int] = [text]
        for name, token_id in names:
            if name in text:
                parts = [each for part in parts for each in self._cut(part, name, token_id)]
        found: list[int] = []
        for part in parts:
            found += [part] if isinstance(part, int) else self._encode(part) if part else []
        return found

    def _cut(self, part: str | int, name: str, token_id: int) -> Iterator[str | int]:
        if isinstance(part, int):
            yield part
            return
        first, *rest = part.split(name)
        eats_space = self._eats_space and name not in {"<unk>", "<s>", "<|endoftext|>"}
        yield first
        for each in rest:
            yield token_id
            yield each.lstrip(_SPACES) if eats_space else each

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return detokenize.decode(self, ids, skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._bytes[token_id] if 0 <= token_id < self.size else b""

    def is_special(self, token_id: int) -> bool:
        """See `Tokenizer.is_special`."""
        return token_id in self._special

    def unassigned(self, vocab_size: int) -> list[int]:
        """See `Tokenizer.unassigned`."""
        inside = [i for i, each in enumerate(self._bytes[:vocab_size]) if not each]
        return [*inside, *range(self.size, vocab_size)]


def _is_marker(text: str, kind: int) -> bool:
    return kind == USER_DEFINED and MARKER.fullmatch(text) is not None


def _by_length(ids: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(ids.items(), key=lambda item: len(item[0].encode()), reverse=True)


def _end_ids(entries: _Entries) -> list[int]:
    """Every token that ends a text, the one that the file names first."""
    named = [entries.token_id(key) for key in _END_KEYS]
    ids = {text: token_id for token_id, text in enumerate(entries.tokens)}
    ends = [token_id for token_id in named if token_id is not None]
    ends += entries.token_ids("eos_token_ids")
    names = set(_END_NAMES)
    if ends and entries.types[ids.get("</s>", 0)] == NORMAL:
        names.remove("</s>")  # to Gemma it is struck out text in HTML
    if ids.keys() >= _HARMONY:
        names.remove(_PART_END)
        ends = [token_id for token_id in ends if entries.tokens[token_id] != _PART_END]
    ends += [ids[name] for name in _END_NAMES if name in names and name in ids]
    return list(dict.fromkeys(ends))


def _all_bytes(
    entries: _Entries, special: frozenset[int], to_bytes: Callable[[str, int], bytes]
) -> list[bytes]:
    found = []
    for token_id, (text, kind) in enumerate(zip(entries.tokens, entries.types, strict=False)):
        if token_id in special:
            found.append(text.encode())
        elif kind == UNUSED:
            found.append(b"")
        else:
            found.append(to_bytes(text, kind))
    return found


Built = tuple[Encoder, Callable[[str, int], bytes], bool]


def _sentencepiece(entries: _Entries, special: frozenset[int]) -> Built:
    """Llama 2, Mistral, Gemma: scores say what to merge."""
    scores, prefix = entries.scores(), entries.flag("add_space_prefix", default=True)
    usable = {
        text: token_id
        for token_id, text in enumerate(entries.tokens)
        if token_id not in special and entries.types[token_id] != BYTE
    }
    bytes_ = {
        int(found[1], 16): token_id
        for token_id, text in enumerate(entries.tokens)
        if entries.types[token_id] == BYTE and (found := BYTE_NAME.fullmatch(text))
    }
    model = SentencePieceBpe(
        {text: scores[token_id] for text, token_id in usable.items()},
        usable,
        byte_ids=bytes_,
        unknown_id=entries.token_id("unknown_token_id"),
    )

    def encode(text: str) -> list[int]:
        return model.encode((SPACE if prefix else "") + text.replace(" ", SPACE))

    return encode, _piece_bytes, True


def _byte_pairs(entries: _Entries, special: frozenset[int]) -> Built:
    """GPT-2 and its many followers: merges of bytes, within words cut by a pattern."""
    from tokenizers import Regex, models, pre_tokenizers
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
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in pattern.expressions]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell])
    return partial(_ids, backend), _spelled_bytes, pattern.adds_bos


def _marked_pairs(entries: _Entries, special: frozenset[int]) -> Built:
    """Gemma 4: merges of characters, with spaces written ``▁`` and bytes for what is no piece."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary, merges = _merges(entries, special)
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    return partial(_ids, backend), _piece_bytes, True


def _merges(
    entries: _Entries, special: frozenset[int]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The ids of what can be spelled, and what is merged, the most frequent first."""
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


def _spelled_bytes(text: str, kind: int) -> bytes:
    if kind == USER_DEFINED or not all(each in BYTE_OF_CHARACTER for each in text):
        return text.encode()
    return bytes([BYTE_OF_CHARACTER[each] for each in text])


def _word_pieces(entries: _Entries, special: frozenset[int]) -> Built:
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
    model = models.WordPiece(vocabulary, unk_token=name)
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return partial(_ids, backend), lambda text, _: text.replace(SPACE, " ").encode(), True


def _ids(backend: Backend, text: str) -> list[int]:
    found: list[int] = backend.encode(text, add_special_tokens=False).ids
    return found


_KINDS: Mapping[str, Callable[[_Entries, frozenset[int]], Built]] = MappingProxyType(
    {"llama": _sentencepiece, "gpt2": _byte_pairs, "gemma4": _marked_pairs, "bert": _word_pieces}
)
