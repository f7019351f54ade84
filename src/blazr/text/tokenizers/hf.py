"""``tokenizer.json``, the Hugging Face format, by the ``tokenizers`` package."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.core.files import open_regular
from blazr.text import sidecars
from blazr.text.tokenizer import LARGEST_ID, Tokenizer
from blazr.text.tokenizers.growth import check_growth

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer

# Some files do not mark their turn markers as special, only spell them like this.
MARKER = re.compile(r"<[|｜].+[|｜]>")  # noqa: RUF001  (DeepSeek's bars are full-width)
BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LIKELY_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<eos>")


def load(path: str) -> Tokenizer:
    """Load a tokenizer.json and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or is of a kind without byte-exact decoding.
    """
    file = Path(path)
    try:
        return HuggingFaceTokenizer(file)
    except BaseException as error:
        # the package panics over some files, and a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{file.name} is not sound.", found=str(error)[:100]) from None


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json.

    Special are the tokens that the files mark so or give a role, and those spelled ``<|so|>``.

    Args:
        file: Where it is.
        only_ids: Whether nothing will be decoded, so that any decoder will do.

    Raises:
        CheckpointError: It cannot be read, or its tokens do not stand for bytes one by one.
    """

    def __init__(self, file: Path, *, only_ids: bool = False) -> None:
        directory = file.parent
        backend = _read(file)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if size > LARGEST_ID:
            raise CheckpointError(
                f"{file.name} has an id beyond any vocabulary's.",
                found=f"{size - 1:,}",
                expected=f"less than {LARGEST_ID:,}",
            )
        roles = sidecars.token_names(directory)
        added = backend.get_added_tokens_decoder()
        names = [
            each.content
            for each in added.values()
            if each.special or MARKER.fullmatch(each.content)
        ]
        declared = (*roles.values(), *sidecars.more_special_names(directory))
        names += [name for name in declared if backend.token_to_id(name) is not None]
        names = list(dict.fromkeys(names))
        ends = [vocabulary[roles["eos_token"]]] if roles.get("eos_token") in vocabulary else []
        ends += sidecars.eos_ids(directory)
        likely = [vocabulary[name] for name in _LIKELY_EOS if name in vocabulary]
        # not every declared token goes before a prompt
        bos_id = backend.token_to_id(roles["bos_token"]) if "bos_token" in roles else None
        adds_bos = sidecars.read_json(directory / "tokenizer_config.json").get("add_bos_token")
        if bos_id is None or not isinstance(adds_bos, bool):
            first = next(iter(backend.encode("", add_special_tokens=True).ids), None)
            bos_id = first if bos_id in {None, first} else None
        elif not adds_bos:
            bos_id = None
        self._to_bytes, strips_space = (
            (str.encode, False) if only_ids else _decoder(backend, file.name)
        )
        super().__init__(
            name=directory.resolve().name if file.name == "tokenizer.json" else file.stem,
            size=size,
            special_ids={name: vocabulary[name] for name in names},
            gaps=set(range(size)).difference(vocabulary.values()),
            eos_ids=dict.fromkeys(ends or likely[:1]),
            bos_id=bos_id,
            strips_leading_space=strips_space,
        )
        self._file = file
        # the decoder reads other added tokens like pieces: Gemma's "▁▁" is two spaces
        self._unread = {
            token_id: token.content.encode()
            for token_id, token in added.items()
            if token.content in self.special_ids or self._to_bytes is byte_level
        }
        self._taking = {token_id: (token.lstrip, token.rstrip) for token_id, token in added.items()}
        _make_plain(backend, self.special_ids)
        self._plain = backend

    @cached_property
    def _marked(self) -> Backend:
        """A second one in which the names of special tokens stand for them.

        The setting belongs to the tokenizer, not to the call, and threads share a tokenizer.
        """
        backend = _read(self._file)
        _mark_special(backend, self.special_ids)
        return backend

    @cached_property
    def _later(self) -> Backend:
        """One for texts behind others, which puts no space before them where the first has one."""
        pre_tokenizer = _without_first_space(self._plain)
        if pre_tokenizer is None:
            return self._plain
        backend = _read(self._file)
        _make_plain(backend, self.special_ids)
        backend.pre_tokenizer = pre_tokenizer
        return backend

    def name_of(self, token_id: int) -> str | None:
        """How the file spells a token; None where there is none."""
        name: str | None = self._plain.id_to_token(token_id)
        return name

    @override
    def _encode(self, text: str, *, allow_special: bool, continues: bool) -> list[int]:
        backend = self._marked if allow_special else self._later if continues else self._plain
        ids: list[int] = encode_plain(backend, text).ids
        return ids

    @override
    def _takes_space(self, token_id: int) -> tuple[bool, bool]:
        return self._taking.get(token_id, (False, False))

    @override
    def _bytes_of(self, token_id: int) -> bytes:
        unread = self._unread.get(token_id)
        return self._to_bytes(self.name_of(token_id) or "") if unread is None else unread


def encode_plain(backend: Backend, text: str) -> Encoding:
    """The tokens of a text, with none before or behind it."""
    # `encode` would keep all other threads from running meanwhile
    return backend.encode_batch([text], add_special_tokens=False)[0]


def _read(file: Path) -> Backend:
    from tokenizers import Tokenizer as Backend

    try:
        with open_regular(file):  # the package would wait for a pipe
            backend = Backend.from_file(str(file))
    except CheckpointError:
        raise
    except Exception as error:  # the package raises bare ones
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error
    check_growth(backend, file.name)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _mark_special(backend: Backend, names: Sequence[str] | Mapping[str, int]) -> None:
    """Tell the backend which tokens are special, keeping how each takes the spaces beside it."""
    from tokenizers import AddedToken

    added = {each.content: each for each in backend.get_added_tokens_decoder().values()}
    tokens = [added.get(name) or AddedToken(name, normalized=False) for name in names]
    backend.add_special_tokens([each for each in tokens if not each.special])


def _make_plain(backend: Backend, special_ids: Mapping[str, int]) -> None:
    """Let the names of special tokens be text like any other.

    Some models find names in a text by themselves: one of likelihoods has scores for all pieces and
    does not know which are control tokens; others take a word that is a token before they merge.
    """
    _mark_special(backend, special_ids)
    backend.encode_special_tokens = True  # as plain text, that is
    model = backend.model
    found = {
        name
        for name, token_id in special_ids.items()
        if model.token_to_id(name) == token_id
        and any(each.id == token_id for each in model.tokenize(name))
    }
    state = json.loads(model.__getstate__()) if found else {}
    found.discard(state.get("unk_token"))  # some models need it by its name
    if not found:
        return
    # nobody can write what nobody can guess, and the ids stay as they are
    names = {name: secrets.token_hex(16) for name in found}
    pieces = state["vocab"]
    state["vocab"] = (
        {names.get(piece, piece): token_id for piece, token_id in pieces.items()}
        if isinstance(pieces, dict)
        else [[names.get(piece, piece), score] for piece, score in pieces]
    )
    if "merges" in state:
        state["merges"] = [
            [left, right]
            for left, right in state["merges"]
            if found.isdisjoint({left, right, left + right})
        ]
    model.__setstate__(json.dumps(state).encode())
    backend.model = model


def _without_first_space(backend: Backend) -> PreTokenizer | None:
    """A pre-tokenizer for texts behind others; None where that of the first text does as well."""
    from tokenizers.pre_tokenizers import Metaspace

    if backend.pre_tokenizer is None:
        return None
    state = json.loads(backend.pre_tokenizer.__getstate__())
    steps = state.get("pretokenizers", []) if state.get("type") == "Sequence" else [state]
    first = [step for step in steps if step.get("prepend_scheme") == "first"]
    for step in first:
        step["prepend_scheme"] = "never"
    pre_tokenizer = Metaspace()
    pre_tokenizer.__setstate__(json.dumps(state).encode())
    return pre_tokenizer if first else None


def _decoder(backend: Backend, name: str) -> tuple[Callable[[str], bytes], bool]:
    """How a piece is turned to bytes, and whether decoding takes a leading space away."""
    steps: list[dict[str, object]] = []
    if backend.decoder is not None:
        state = json.loads(backend.decoder.__getstate__())
        stored = state["decoders"] if state.get("type") == "Sequence" else [state]
        steps = [step for step in stored if isinstance(step, dict)]
    kinds = {str(step.get("type")) for step in steps}
    if not steps:  # words, joined by spaces
        return lambda piece: b" " + piece.encode(), True
    if "ByteLevel" in kinds:
        return byte_level, False
    unknown = kinds - {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}
    if unknown:
        raise CheckpointError(
            f"{name} decodes in a way that is not supported.",
            found=", ".join(sorted(unknown))[:100],
            expected="ByteLevel, ByteFallback or Metaspace",
        )
    replacements, strips_space = _replacements(steps)
    has_bytes = "ByteFallback" in kinds

    def to_bytes(piece: str) -> bytes:
        byte = BYTE_NAME.fullmatch(piece) if has_bytes else None
        if byte:
            return bytes([int(byte[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return to_bytes, strips_space


def _replacements(steps: Sequence[Mapping[str, object]]) -> tuple[list[tuple[str, str]], bool]:
    """What is replaced in a piece, and whether decoding takes a leading space away."""
    replacements: list[tuple[str, str]] = []
    strips_space = False
    for step in steps:
        pattern = step.get("pattern")
        match step.get("type"):
            case "Metaspace":
                replacements.append((str(step.get("replacement") or "▁"), " "))
                strips_space |= step.get("prepend_scheme", "always") != "never"
            case "Replace" if isinstance(pattern, dict) and "String" in pattern:
                replacements.append((str(pattern["String"]), str(step.get("content", ""))))
            case "Strip":
                strips_space |= step.get("content") == " " and step.get("start") != 0
    return replacements, strips_space


def byte_level(piece: str) -> bytes:
    """The bytes that a byte-level vocabulary spells so; else those of the piece itself."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:  # no byte is spelled like this
        return piece.encode()


def _bytes_by_character() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte: itself if it prints.

    Source: the GPT-2 encoder.
    """
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(prints)]
    spelled = {chr(byte): byte for byte in prints}
    return spelled | {chr(256 + offset): byte for offset, byte in enumerate(others)}


BYTE_OF_CHARACTER = _bytes_by_character()
