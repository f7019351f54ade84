"""Which tokenizer a model speaks: what the user named, else what lies beside it, else its size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blazr.core.errors import CheckpointError, UnknownNameError
from blazr.core.gguf import Value
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import TOKENIZERS, gguf
from blazr.text.vocabs import VOCABS, vocab_of_model


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
    file = _find_file(directory) if directory is not None else None
    if file is not None:
        return _load_file(file)
    row = vocab_of_model(vocab_size) if vocab_size is not None else None
    return TOKENIZERS["vocabulary"](row.name) if row is not None else None


def _load_named(vocab: str) -> Tokenizer:
    if vocab in VOCABS:
        return TOKENIZERS["vocabulary"](vocab)
    path = Path(vocab).expanduser()
    file = path if path.is_file() else _find_file(path)
    if file is not None:
        return _load_file(file)
    try:
        VOCABS[vocab]
    except UnknownNameError as error:
        expected = f"{error.expected}, or the path of a tokenizer.json, .tiktoken or .gguf file"
        raise UnknownNameError(error.message, expected=expected, hint=error.hint) from None
    raise AssertionError(vocab)


def _load_file(file: Path) -> Tokenizer:
    kind = {".tiktoken": "tiktoken", ".gguf": "gguf"}.get(file.suffix, "tokenizer.json")
    return TOKENIZERS[kind](str(file))


def _find_file(directory: Path) -> Path | None:
    if not directory.is_dir():
        return None
    file = directory / "tokenizer.json"
    if file.is_file():
        return file
    files = sorted(directory.glob("*.tiktoken"))
    if len(files) > 1:
        raise CheckpointError(
            "there are several .tiktoken files, and nothing tells which to use.",
            found=", ".join(each.name for each in files)[:100],
            hint="name one with --vocab",
        )
    return files[0] if files else None
