"""``tiktoken.model``, the vocabulary of Kimi and Moonlight: ranks, and special tokens behind them.

Source: tokenization_kimi.py and tokenization_moonshot.py, which lie beside such files.
"""

from __future__ import annotations

from pathlib import Path

from blazr.text import sidecars
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.byte_pair import from_ranks, parse_ranks
from blazr.text.tokenizers.hf import MARKER

# So many ids behind those of the file are special, whether they have names or not.
_RESERVED = 256


def load(path: str) -> Tokenizer:
    """Load a ``tiktoken.model`` and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or cannot encode every text.
    """
    import splintr

    file = Path(path)
    data = sidecars.read_bytes(file)
    first = max(parse_ranks(data, file.name).values()) + 1
    names = {each: f"<|reserved_token_{each}|>" for each in range(first, first + _RESERVED)}
    added = sidecars.added_tokens(file.parent, num_tokens=first)
    names |= {token_id: name for token_id, (name, _) in added.items()}
    ids = {name: token_id for token_id, name in names.items()}
    roles = sidecars.token_names(file.parent)
    plain = {name for name, is_special in added.values() if not is_special}
    plain = {each for each in plain if not MARKER.fullmatch(each)} - set(roles.values())
    eos = [ids[roles["eos_token"]]] if roles.get("eos_token") in ids else []
    return from_ranks(
        data,
        splintr.KIMI_PATTERN,
        file=file,
        name=file.parent.resolve().name,
        named_ids=ids,
        plain_names=plain,
        eos_ids=eos + sidecars.eos_ids(file.parent),
    )
