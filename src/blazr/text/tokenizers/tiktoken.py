"""Byte-pair rank files (``.tiktoken``): a line is a token in base64, a space, its id.

What such a file does not hold may lie in a JSON file beside it, ``NAME.tiktoken.json``:

    {"pattern": "...", "special_tokens": {"<|endoftext|>": 1000}, "eos_token": "<|endoftext|>"}

All keys are optional: the pattern that splits text into words (else that of cl100k_base), the
special tokens, and which of them end (``eos_token``, one or a list) or begin (``bos_token``) a
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.text import sidecars
from blazr.text.tokenizer import LARGEST_ID, Tokenizer
from blazr.text.tokenizers.byte_pair import from_ranks


def load(path: str) -> Tokenizer:
    """Load a rank file and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or cannot encode every text.
    """
    import splintr

    file = Path(path)
    options = sidecars.read_json(file.with_name(file.name + ".json"))
    pattern = options.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise CheckpointError('"pattern" must be a string.', found=repr(pattern)[:100])
    special = options.get("special_tokens") or {}
    listed = special.items() if isinstance(special, Mapping) else ()
    special_ids = {x: i for x, i in listed if x and type(i) is int and 0 <= i <= LARGEST_ID}
    if not isinstance(special, Mapping) or len(special_ids) < len(special):
        raise CheckpointError(
            f'"special_tokens" beside {file.name} is wrong.',
            found=repr(special)[:100],
            expected="names, each with an id that no other token has",
        )
    return from_ranks(
        sidecars.read_bytes(file),
        pattern or splintr.CL100K_BASE_PATTERN,
        file=file,
        name=file.stem,
        named_ids=special_ids,
        eos_ids=_named_ids(options.get("eos_token"), special_ids, file.name),
        bos_id=next(iter(_named_ids(options.get("bos_token"), special_ids, file.name)), None),
    )


def _named_ids(names: object, special_ids: Mapping[str, int], name: str) -> tuple[int, ...]:
    listed: list[object] = names if isinstance(names, list) else [names]
    found = [special_ids[each] for each in listed if isinstance(each, str) and each in special_ids]
    if names is not None and len(found) < len(listed):
        raise CheckpointError(
            f'a token named beside {name} is not among its "special_tokens".',
            found=repr(names)[:100],
        )
    return tuple(found)
