"""Which tokenizer a model speaks: what the user named, else what lies beside it, else its size."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from blazr.core.errors import CheckpointError, UnknownNameError
from blazr.core.gguf import Value
from blazr.text import sidecars
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import TOKENIZERS, gguf
from blazr.text.tokenizers.beside import UnknownKindError
from blazr.text.tokenizers.vocab_and_merges import MERGES
from blazr.text.vocabs import VOCABS, vocab_of_model

_log = logging.getLogger(__name__)

# Where the files of a directory are looked for, those that tell most first.
_IN_DIRECTORY = (
    "tokenizer.json", "*.tiktoken", "tokenizer.model", "tokenizer.model.v*", "tekken.json",
    "tiktoken.model", "vocab.json",
)  # fmt: skip
# The kind of a file by its name; any other is a tokenizer.json.
_KINDS = {
    "*.tiktoken": "tiktoken",
    "*.gguf": "gguf",
    "tiktoken.model": "tiktoken.model",
    "*.model": "tokenizer.model",
    "*.model.v*": "tokenizer.model",
    "tekken*.json": "tekken.json",
    "vocab.json": "vocab.json",
}
# With one of these, a vocabulary is not what the size of the embedding suggests; nor is it where
# the config names a class.
_UNREAD = ("*.model", "vocab.*", "merges.txt", "tokenization_*.py")
_CONFIG = "tokenizer_config.json"


def choose_tokenizer(
    *,
    directory: Path | None,
    vocab: str | None,
    vocab_size: int | None,
    metadata: Mapping[str, Value] | None = None,
) -> Tokenizer | None:
    """Find and load the tokenizer of a model.

    Args:
        directory: Where the model's files are.
        vocab: A vocabulary's name, a tokenizer's file, or a directory with one. Comes first.
        vocab_size: Rows of the model's embedding. Comes last.
        metadata: What the model's own file says, if it is a GGUF file.

    Returns:
        The tokenizer, or None where nothing tells: such a model takes and gives token ids only.

    Raises:
        UnknownNameError: ``vocab`` is neither a name nor a path with a tokenizer.
        CheckpointError: The tokenizer's file cannot be read, or there are several.
    """
    if vocab is not None:
        return _load_named(vocab)
    if metadata and gguf.has_tokenizer(metadata):
        return gguf.from_metadata(metadata, name=str(metadata.get("general.name", "gguf")))
    file = find_file(directory) if directory is not None else None
    if file is not None:
        try:
            return TOKENIZERS[kind_of(file)](str(file))
        except UnknownKindError as error:
            _log.warning("%s Text needs a vocabulary: name one with --vocab.", error.message)
            return None
    if directory is not None and (unread := _unread_file(directory)):
        _log.warning("%s tells of a vocabulary that is not here: name one with --vocab", unread)
        return None
    row = vocab_of_model(vocab_size) if vocab_size is not None else None
    return TOKENIZERS["vocabulary"](row.name) if row is not None else None


def _load_named(vocab: str) -> Tokenizer:
    if vocab in VOCABS:
        return TOKENIZERS["vocabulary"](vocab)
    path = Path(vocab).expanduser()
    file = path if path.is_file() else find_file(path)
    if file is not None:
        return TOKENIZERS[kind_of(file)](str(file))
    try:
        VOCABS[vocab]
    except UnknownNameError as error:
        files = "tokenizer.json, tokenizer.model, .tiktoken or .gguf file"
        expected = f"{error.expected}, or the path of a {files}"
        raise UnknownNameError(error.message, expected=expected, hint=error.hint) from None
    raise AssertionError(vocab)


def kind_of(file: Path) -> str:
    """The row of `TOKENIZERS` that reads a file, by its name."""
    kinds = (kind for pattern, kind in _KINDS.items() if fnmatch(file.name, pattern))
    return next(kinds, "tokenizer.json")


def find_file(directory: Path) -> Path | None:
    """The file of the tokenizer in a directory, None where there is none that can be read.

    Raises:
        CheckpointError: There are several.
    """
    for pattern in _IN_DIRECTORY:
        files = sorted(each for each in directory.glob(pattern) if each.is_file())
        if len(files) > 1 and pattern == "*.tiktoken":
            raise CheckpointError(
                "there are several .tiktoken files, and nothing tells which to use.",
                found=", ".join(each.name for each in files)[:100],
                hint="name one with --vocab",
            )
        if files and (pattern != "vocab.json" or (directory / MERGES).is_file()):
            return files[-1]  # the last version
    return None


def _unread_file(directory: Path) -> str | None:
    """A file that tells of a vocabulary of a kind that is not known here."""
    found = [each.name for pattern in _UNREAD for each in directory.glob(pattern)]
    config = sidecars.read_json(directory / _CONFIG)
    names_one = config.get("tokenizer_class") not in {None, "PreTrainedTokenizerFast"}
    return min(found, default=_CONFIG if names_one else None)
