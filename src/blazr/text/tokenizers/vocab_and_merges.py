"""``vocab.json`` and ``merges.txt``, GPT-2's files, as the metadata of a GGUF file would have them.

How a text is cut into words is in neither: the class named in tokenizer_config.json tells.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value
from blazr.text import sidecars
from blazr.text.tokenizer import LARGEST_ID, Tokenizer
from blazr.text.tokenizers.beside import UnknownKindError, metadata_of
from blazr.text.tokenizers.gguf import from_metadata
from blazr.text.tokenizers.gguf_entries import COMPOSES, KEY, NORMAL, UNUSED, unused_name

MERGES = "merges.txt"
# Transformers' classes, and the pattern of each.
_PATTERNS: Mapping[str | None, str] = MappingProxyType(
    {
        None: "gpt-2",
        "GPT2Tokenizer": "gpt-2",
        "CodeGenTokenizer": "gpt-2",
        "Qwen2Tokenizer": "qwen2",
    }
)


def load(path: str) -> Tokenizer:
    """Load a vocab.json, the merges.txt beside it, and what else lies there.

    Raises:
        CheckpointError: A file cannot be read, or is of a kind that is not supported.
    """
    file = Path(path)
    return from_metadata(metadata(file), name=file.parent.resolve().name)


def metadata(file: Path) -> dict[str, Value]:
    """What a GGUF file would say of a vocab.json and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or is of a kind that is not supported.
    """
    config = sidecars.read_json(file.parent / "tokenizer_config.json")
    kind = config.get("tokenizer_class")
    kind = kind.removesuffix("Fast") if isinstance(kind, str) else None
    if kind not in _PATTERNS or config.get("add_prefix_space") is True:
        raise UnknownKindError(
            "nothing is known of how this kind of vocabulary cuts texts.",
            found=f"tokenizer_class {kind!r}, add_prefix_space {config.get('add_prefix_space')}",
            expected=f"{', '.join(filter(None, _PATTERNS))}; no prefix",
            hint="save a tokenizer.json: AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    tokens, types = _tokens(file)
    try:
        lines = sidecars.read_bytes(file.with_name(MERGES)).decode().split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{MERGES} is no text.", found=str(error)[:100]) from error
    merges = [each.removesuffix("\r") for each in lines]
    return {
        KEY + "model": "gpt2",
        KEY + "pre": _PATTERNS[kind],
        KEY + COMPOSES: _PATTERNS[kind] == "qwen2",
        KEY + "merges": merges[merges[0].startswith("#version") :],
        KEY + "add_bos_token": config.get("add_bos_token") is True,
        **metadata_of(tokens, types, file.parent, roles={}),
    }


def _tokens(file: Path) -> tuple[list[str], array[int]]:
    ids = sidecars.read_json(file)
    names = {i: name for name, i in ids.items() if type(i) is int and 0 <= i < LARGEST_ID}
    if not names or len(names) < len(ids):
        raise CheckpointError(
            f"{file.name} is no vocabulary.",
            found=f"{len(ids)} entries, {len(names)} of them with an id of their own",
            expected="tokens, each with an id that no other has",
        )
    behind = max(names) + 1
    if behind > len(names) + sidecars.LARGEST_GAP:
        raise CheckpointError(
            f"{file.name} has an id far behind the others.",
            found=f"{behind - 1}, and {len(names)} tokens",
        )
    try:
        "".join(names.values()).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{file.name} names a token with half a surrogate pair.", found=str(error)[:100]
        ) from None
    tokens = [names.get(i, unused_name(i)) for i in range(behind)]
    return tokens, array("i", (NORMAL if i in names else UNUSED for i in range(behind)))
