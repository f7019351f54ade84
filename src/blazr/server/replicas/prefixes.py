"""Which replica is likely to have read the beginning of a prompt: a record of what each was sent.

Text is recorded, not tokens: the process in front has neither a tokenizer nor a chat template. What
a body says before the model's words (tools, instructions, messages) is written down in the order in
which templates show it, and cut into blocks; each block's name is the hash of its bytes and of the
name before it, so that a set of names is a trie. A block has about as many bytes as a page of the
cache has tokens, times four.

Replicas do not say what they evict. Each record is as long as the replica's cache has pages, and
forgets first what was sent least recently, the ends of prompts before their beginnings, which is
nearly what the cache does. Where it is wrong, a prompt is read once more than needed, and the
record is right again: then the replica has read it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile

import msgspec

BLOCK_BYTES = 256  # about 64 tokens, which is a page
_MOST_BLOCKS = 8192  # of one prompt; what is behind them is not looked at
_DEFAULT_BLOCKS = 65_536
# Fields of all dialects, in the order in which chat templates show what is in them.
_SHOWN = (
    "tools",
    "functions",
    "system",
    "instructions",
    "messages",
    "input",
    "inputs",
    "input_ids",
    "prompt",
    "input_prefix",
    "text",
    "content",
)
_APART = ("model", "adapter", "cache_salt")  # what prefixes are not shared across


def block_names(tenant: str, body: Mapping[str, object]) -> list[bytes]:
    """The names of a prompt's blocks, the first one first.

    Args:
        tenant: Names the API key; keys share no names.
        body: The decoded body of a request.
    """
    root = [tenant, *(body.get(name) for name in _APART)]
    name = blake2b(msgspec.json.encode(root), digest_size=16).digest()
    text = b"".join(msgspec.json.encode(body[each]) for each in _SHOWN if body.get(each))
    names = []
    for start in range(0, len(text), BLOCK_BYTES)[:_MOST_BLOCKS]:
        name = blake2b(text[start : start + BLOCK_BYTES], key=name, digest_size=16).digest()
        names.append(name)
    return names


class SentPrefixes:
    """The blocks that a replica was sent, and has probably still in memory.

    Attributes:
        most_blocks: How many it holds; the rest is forgotten.
    """

    def __init__(self) -> None:
        self.most_blocks = _DEFAULT_BLOCKS
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def match(self, names: Sequence[bytes]) -> int:
        """How many of a prompt's first blocks are known."""
        return sum(1 for _ in takewhile(self._names.__contains__, names))

    def add(self, names: Sequence[bytes]) -> None:
        """A prompt was sent."""
        for name in reversed(names):  # the first block becomes the youngest
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self.most_blocks:
            self._names.popitem(last=False)

    def clear(self) -> None:
        """The replica has forgotten everything."""
        self._names.clear()
