"""The token ids of recent replies, so that the next turn of a chat is made of the very same ids.

A model does not write a text as a tokenizer would cut it. Tokenized again, its own words would be
other ids, which nothing in memory begins with, and the whole chat would be computed once more.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from blazr.text.chat_template import ChatPrompt
from blazr.text.tokenizer import Detokenizer

MAX_CHARACTERS = 16_000_000  # of all conversations together; their ids take about as much memory


class _Conversation(NamedTuple):
    salt: str
    key: tuple[str, ...]
    text: str


class ReplyTokenCache:
    """Conversations up to the end of a reply, by their text. Thread-safe; the oldest go first.

    Args:
        max_characters: Bound of all texts together.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._num_characters = 0
        self._known: OrderedDict[_Conversation, array[int]] = OrderedDict()
        self._lock = Lock()

    def encode(self, prompt: ChatPrompt, salt: str) -> list[int]:
        """The token ids of a chat; as they were written, as far as it is known.

        Args:
            prompt: The chat.
            salt: Conversations of another salt are unknown.
        """
        with self._lock:
            begun = (
                each
                for each in self._known
                if each.salt == salt
                and each.key == prompt.key
                and prompt.text.startswith(each.text)
            )
            longest = max(begun, key=lambda each: len(each.text), default=None)
            if longest is None or not _can_split(prompt, len(longest.text)):
                return prompt.encode()
            self._known.move_to_end(longest)
            ids = self._known[longest].tolist()
        return ids + prompt.encode(len(longest.text))

    def add(
        self,
        prompt: ChatPrompt,
        salt: str,
        prompt_ids: Sequence[int],
        reply_ids: Sequence[int],
        *,
        stop: str | None = None,
    ) -> None:
        """Remember a reply.

        Args:
            prompt: What it replies to.
            salt: Whom it may be told to.
            prompt_ids: The same, as it was computed.
            reply_ids: What was written, without the token that ended it.
            stop: The string that ended it, which is not part of it.
        """
        text, count = _whole_text(prompt, reply_ids, stop)
        if not count:
            return
        known = _Conversation(salt, prompt.key, prompt.text + text)
        with self._lock:
            if self._known.pop(known, None) is None:
                self._num_characters += len(known.text)
            self._known[known] = array("i", [*prompt_ids, *reply_ids[:count]])
            while self._num_characters > self._max_characters:
                oldest, _ = self._known.popitem(last=False)
                self._num_characters -= len(oldest.text)


def _whole_text(prompt: ChatPrompt, reply_ids: Sequence[int], stop: str | None) -> tuple[str, int]:
    """The text of a reply, and how many of its tokens make it.

    Without half a character or white space at its end: templates trim replies, and what is left
    out is tokenized with the next turn.
    """
    detokenizer = Detokenizer(prompt.tokenizer, skip_special=False, continues=True)
    text = ""
    ends = []
    for token_id in reply_ids:
        text += detokenizer.push(token_id)
        ends.append(len(text))
    limit = text.rfind(stop) if stop else len(text)
    for count in range(len(ends), 0, -1):
        whole = text[: ends[count - 1]]
        if len(whole) > limit or not whole or whole[-1].isspace():
            continue
        data = b"".join(map(prompt.tokenizer.token_bytes, reply_ids[:count]))
        if data.decode("utf-8", "replace") == whole:  # else it ends within a character
            return whole, count
    return "", 0


def _can_split(prompt: ChatPrompt, place: int) -> bool:
    """Whether a prompt can be tokenized in two parts without a space coming between them."""
    if not prompt.tokenizer.strips_leading_space or place == len(prompt.text):
        return True
    return prompt.text.startswith(tuple(filter(None, prompt.usable)), place)
