"""The program of the child process that tries grammars; it imports nothing of ours.

It reads frames from its input and answers each with one: four bytes of length, then the content.
The first frame is the vocabulary, every other a grammar. A grammar that takes too much time or
memory kills the process, which is how its parent learns of it.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_S = 0.5  # the parent spends as much once more, and a busy machine makes more of it
MEMORY_BYTES = 512 << 20
MAX_KEPT_BYTES = 64 << 20  # by which the process may have grown before it is replaced
# Of the states a lexer may build while it runs, half a kilobyte each.
MAX_LEXER_STATES = 20_000
_LENGTH = struct.Struct("<I")
_PAGE_BYTES = resource.getpagesize()


class Vocabulary:
    """The bytes of every token, and one more token: the end. In the shape llguidance asks for.

    Args:
        tokens: Bytes by id; none for ids that mean nothing.
        special_ids: Ids that no text produces.
        encode: The ids of a text; None where nothing is generated.
    """

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Sequence[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.tokens = [*tokens, b"<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [*special_ids, self.eos_token_id]
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text, in UTF-8."""
        return self._encode(text.decode()) if self._encode is not None else []


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """What llguidance makes of a vocabulary."""
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens))


def make_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Compile a grammar; the matcher tells of an error rather than raising it."""
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    return LLMatcher(tokenizer, source, log_level=0, limits=limits)


def pack_vocabulary(vocabulary: Vocabulary) -> bytes:
    """A vocabulary as the first frame."""
    tokens = vocabulary.tokens[:-1]
    head = json.dumps([list(map(len, tokens)), vocabulary.special_token_ids[:-1]]).encode()
    return _LENGTH.pack(len(head)) + head + b"".join(tokens)


def unpack_vocabulary(frame: bytes) -> Vocabulary:
    """The vocabulary in the first frame."""
    at = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    lengths, special_ids = json.loads(frame[_LENGTH.size : at])
    tokens = []
    for length in lengths:
        tokens.append(frame[at : at + length])
        at += length
    return Vocabulary(tokens, special_ids)


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Write one frame."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one frame; None where the stream has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    content = stream.read(length)
    return content if len(content) == length else None


def _memory_bytes(which: int) -> int:
    """Memory of this process: 0 all that is mapped, 1 what is resident."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[which]) * _PAGE_BYTES


def main() -> None:
    """Answer until the input ends."""
    frame = read_frame(sys.stdin.buffer)
    if frame is None:
        return
    tokenizer = make_tokenizer(unpack_vocabulary(frame))
    resident = _memory_bytes(1)
    limit = _memory_bytes(0) + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write_frame(sys.stdout.buffer, b"ready")
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # unhandled, its signal ends the process
        before = _memory_bytes(1)
        matcher = make_matcher(tokenizer, frame.decode())
        after = _memory_bytes(1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer = {
            "error": matcher.get_error(),
            "bytes": max(after - before, 0),
            "needs_restart": after - resident > MAX_KEPT_BYTES,
        }
        write_frame(sys.stdout.buffer, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
