"""What the files beside a vocabulary say of it, as the metadata of a GGUF file would have it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value
from blazr.text import sidecars
from blazr.text.tokenizers.gguf_entries import (
    CONTROL,
    KEY,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    unused_name,
)


class UnknownKindError(CheckpointError):
    """A vocabulary is sound, but of a kind that nothing here reads."""


def metadata_of(
    tokens: Sequence[str],
    types: array[int],
    directory: Path,
    *,
    roles: Mapping[str, str],
    scores: array[float] | None = None,
) -> dict[str, Value]:
    """The tokens of a vocabulary with those that are declared beside it, and what they are for.

    Args:
        tokens: Their names.
        types: And their kinds.
        directory: Where tokenizer_config.json and the like may be.
        roles: The tokens that begin or end a text where no file says so: ``{"bos_token": …}``.
        scores: What the tokens score, if they do.

    Raises:
        CheckpointError: A file cannot be read, or declares a token with a wild id.
    """
    tokens = list(tokens)
    types = array("i", types)
    num_tokens = len(tokens)
    added = sidecars.added_tokens(directory, num_tokens=num_tokens)
    for token_id in range(num_tokens, max(added, default=0) + 1):
        tokens.append(unused_name(token_id))
        types.append(UNUSED)
    roles = {**roles, **sidecars.token_names(directory)}
    special = {*roles.values(), *sidecars.more_special_names(directory)}
    for token_id, (name, is_special) in added.items():
        tokens[token_id] = name
        types[token_id] = UNKNOWN if types[token_id] == UNKNOWN else USER_DEFINED
        special |= {name} if is_special else set()
    ids = {name: token_id for token_id, name in reversed(list(enumerate(tokens)))}
    for token_id in (ids[name] for name in special if name in ids):
        types[token_id] = UNKNOWN if types[token_id] == UNKNOWN else CONTROL
    words = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    named = {word: ids[roles[role]] for role, word in words.items() if roles.get(role) in ids}
    found: dict[str, Value] = {f"{KEY}{word}_token_id": each for word, each in named.items()}
    found[KEY + "tokens"] = tokens
    found[KEY + "token_type"] = memoryview(types)
    eos_ids = [each for each in sidecars.eos_ids(directory) if each < len(tokens)]
    found[KEY + "eos_token_ids"] = memoryview(array("i", eos_ids))
    if scores is not None:
        found[KEY + "scores"] = memoryview(scores + array("f", [0.0] * (len(tokens) - num_tokens)))
    return found
