"""Which tokenizer a model speaks: what the user named, else what lies beside it, else its size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value
from blazr.text import sidecars
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers import TOKENIZERS, gguf
from blazr.text.tokenizers.beside import UnknownKindError
from blazr.text.tokenizers.vocab_and_merges import MERGES
from blazr.text.vocabs import VOCABS, guess_vocab

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
_FAST = "PreTrainedTokenizerFast"  # what needs a tokenizer.json alone
_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """Which tokenizer a model speaks, before it is loaded.

    Args:
        name: The vocabulary, or the file; None where nothing tells.
        reason: Why it was chosen, or why there is none.
        load: Loads it; None where there is none.
        is_named: Whether somebody asked for it.
    """

    name: str | None
    reason: str
    load: Callable[[], Tokenizer] | None = None
    is_named: bool = False


def load_tokenizer(choice: TokenizerChoice) -> Tokenizer | None:
    """Load the tokenizer that `find_tokenizer` has found.

    Returns:
        The tokenizer, or None where nothing tells: such a model takes and gives token ids only.

    Raises:
        CheckpointError: The tokenizer's file cannot be read.
    """
    if choice.load is None:
        _log.warning("token ids only: %s (name a vocabulary with --vocab)", choice.reason)
        return None
    try:
        tokenizer = choice.load()
    except UnknownKindError as error:
        if choice.is_named:
            raise
        _log.warning("%s Text needs a vocabulary: name one with --vocab.", error.message)
        return None
    _log.info("vocabulary %s: %s", choice.name, choice.reason)
    return tokenizer


def find_tokenizer(
    *,
    directory: Path | None = None,
    vocab: str | None = None,
    vocab_size: int | None = None,
    metadata: Mapping[str, Value] | None = None,
    declared: str | None = None,
) -> TokenizerChoice:
    """Find the tokenizer of a model.

    Args:
        directory: Where the model's files are.
        vocab: A vocabulary's name, a tokenizer's file, or a directory with one. Comes first.
        vocab_size: Rows of the model's embedding. Comes last.
        metadata: What the model's own file says, if it is a GGUF file.
        declared: The ``tokenizer_vocab`` of the model's config, which counts like ``vocab``.

    Raises:
        UnknownNameError: ``vocab`` is neither a name nor a path with a tokenizer.
        CheckpointError: There are several tokenizers.
    """
    if vocab is not None:
        return replace(_find_named(vocab, "named by --vocab"), is_named=True)
    if declared is not None:
        choice = _find_named(declared, "named by config.json: tokenizer_vocab")
        return replace(choice, is_named=True)
    if metadata and gguf.has_tokenizer(metadata):
        name = str(metadata.get("general.name", "gguf"))
        return TokenizerChoice(
            name=str(metadata.get("tokenizer.ggml.model", "gguf"))[:40],
            reason="in the GGUF file itself",
            load=lambda: gguf.from_metadata(metadata, name=name),
        )
    if directory is not None:
        file = find_file(directory)
        if file is not None:
            return _of_file(file, "beside the weights")
        unread = [each.name for pattern in _UNREAD for each in directory.glob(pattern)]
        config = sidecars.read_json(directory / _CONFIG)
        if not unread and config.get("tokenizer_class") not in (None, _FAST):
            unread = [_CONFIG]
        if unread:
            reason = f"{min(unread)} tells of a vocabulary that is not here"
            return TokenizerChoice(name=None, reason=reason)
    return _guess_by_size(vocab_size)


def _guess_by_size(vocab_size: int | None) -> TokenizerChoice:
    if vocab_size is None:
        return TokenizerChoice(name=None, reason="nothing tells the vocabulary")
    guess = guess_vocab(vocab_size)
    reason = f"no tokenizer lies beside the weights, and {guess.reason}"
    if guess.vocab is None:
        return TokenizerChoice(name=None, reason=reason)
    return _of_vocabulary(guess.vocab.name, reason)


def _of_vocabulary(name: str, reason: str) -> TokenizerChoice:
    return TokenizerChoice(name=name, reason=reason, load=lambda: TOKENIZERS["vocabulary"](name))


def _of_file(file: Path, reason: str) -> TokenizerChoice:
    return TokenizerChoice(
        name=file.name, reason=reason, load=lambda: TOKENIZERS[kind_of(file)](str(file))
    )


def _find_named(vocab: str, reason: str) -> TokenizerChoice:
    if vocab in VOCABS:
        return _of_vocabulary(vocab, reason)
    path = Path(vocab).expanduser()
    file = path if path.is_file() else find_file(path)
    if file is None:
        files = "tokenizer.json, tokenizer.model, .tiktoken or .gguf file"
        raise VOCABS.unknown(vocab, instead=f"the path of a {files}")
    return _of_file(file, reason)


def kind_of(file: Path) -> str:
    """The row of `TOKENIZERS` that reads a file, by its name."""
    kinds = (kind for pattern, kind in _KINDS.items() if fnmatch(file.name, pattern))
    return next(kinds, "tokenizer.json")


def find_file(directory: Path) -> Path | None:
    """The file of the tokenizer in a directory, None where there is none that can be read.

    A broken link counts as one, so that nothing else is taken in its place.

    Raises:
        CheckpointError: There are several.
    """
    beside = sorted(directory.iterdir()) if directory.is_dir() else []  # `glob` skips broken links
    for pattern in _IN_DIRECTORY:
        files = [each for each in beside if fnmatch(each.name, pattern) and not each.is_dir()]
        if len(files) > 1 and pattern == "*.tiktoken":
            raise CheckpointError(
                "there are several .tiktoken files, and nothing tells which to use.",
                found=", ".join(each.name for each in files)[:100],
                hint="name one with --vocab",
            )
        if files and (pattern != "vocab.json" or (directory / MERGES).is_file()):
            return files[-1]  # the last version
    return None
