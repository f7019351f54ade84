"""The token ids of replies, so that the next turn of a chat begins with them."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from blazr.text.chat_template import ChatPrompt
from blazr.text.tokenizer import Detokenizer

# Of all conversations whose replies are remembered; their ids take about as much memory.
MAX_CHARACTERS = 16_000_000
# Each new turn looks through all of them, and short ones take more memory than their text.
MAX_CONVERSATIONS = 2000


class _Conversation(NamedTuple):
    salt: str
    key: tuple[str, ...]
    text: str


class ReplyTokenCache:
    """Conversations up to the end of a reply, by their text, so that the next turn has their ids.

    A model does not write a text as a tokenizer would cut it. Tokenized again, its own words would
    be other ids, which nothing in memory begins with, and the chat would be computed once more.
    Thread-safe; the oldest conversations go first.

    Args:
        max_characters: Bound of all texts together.
        max_conversations: Most conversations.
    """

    def __init__(
        self,
        max_characters: int = MAX_CHARACTERS,
        max_conversations: int = MAX_CONVERSATIONS,
    ) -> None:
        self._max_characters = max_characters
        self._max_conversations = max_conversations
        self._num_characters = 0
        self._known: OrderedDict[_Conversation, array[int]] = OrderedDict()
        self._added: deque[tuple[_Conversation, array[int]]] = deque()
        self._lock = Lock()  # of all that is known, but not of what was added

    def encode(self, prompt: ChatPrompt, salt: str) -> list[int]:
        """The token ids of a chat; as they were written, as far as it is known.

        Args:
            prompt: The chat.
            salt: Conversations of another salt are unknown.
        """
        with self._lock:
            self._take_added()
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
        """Remember a reply. Never waits: a garbage collection calls it, too.

        That ends a reply that nobody reads any more, on any thread, which may hold the lock.

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
        self._added.append((known, array("i", [*prompt_ids, *reply_ids[:count]])))
        if self._lock.acquire(blocking=False):  # else whoever has it, or comes next, takes it up
            try:
                self._take_added()
            finally:
                self._lock.release()

    def _take_added(self) -> None:
        while self._added:
            known, ids = self._added.popleft()
            if self._known.pop(known, None) is None:
                self._num_characters += len(known.text)
            self._known[known] = ids
        while (
            self._num_characters > self._max_characters
            or len(self._known) > self._max_conversations
        ):
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
