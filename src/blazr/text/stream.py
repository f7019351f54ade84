"""From one reply's token ids to its events: characters, then stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from blazr.text.detokenize import Detokenizer
from blazr.text.events import Event, Finished, TextDelta, TokenText
from blazr.text.stop import StopMatcher
from blazr.text.tokenizer import Tokenizer


class TextStream:
    """Turns the tokens of one reply to events as they come.

    Args:
        tokenizer: What the ids mean.
        index: Which reply.
        stop: Strings that end it.
        include_stop: Leave the stop string in the text.
        skip_special: Leave special tokens out of the text.
        prompt_ids: What the reply continues. After a prompt with text in it, a leading space is
            part of the reply; after none, vocabularies that add one have it taken away.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        index: int,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        continues = any(not tokenizer.is_special(token_id) for token_id in prompt_ids)
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, continues=continues)
        self._matcher = StopMatcher(stop, include_stop=include_stop)
        self._num_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the reply; None while none has."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int], *, logprobs: Sequence[TokenText] = ()) -> list[Event]:
        """Take new tokens. Those after the one that completes a stop string are dropped.

        Args:
            token_ids: The tokens.
            logprobs: Nothing, or one per token.

        Returns:
            At most one `TextDelta`. Its text lags behind its tokens while a character is
            incomplete or a stop string possible.
        """
        text = ""
        used = 0
        for token_id in token_ids:
            if self.stopped is not None:
                break
            text += self._matcher.push(self._detokenizer.push(token_id))
            used += 1
        if not used:
            return []
        self._num_tokens += used
        return [TextDelta(self._index, text, tuple(token_ids[:used]), tuple(logprobs[:used]))]

    def finish(self, reason: str) -> list[Event]:
        """The reply ended; get the text still held back, and `Finished`.

        Args:
            reason: Why it ended, unless a stop string did: then the reason is ``"stop"``.
        """
        text = ""
        if self.stopped is None:
            text = self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
        events: list[Event] = [TextDelta(self._index, text)] if text else []
        stop = self.stopped
        end = Finished(self._index, reason if stop is None else "stop", self._num_tokens, stop=stop)
        return [*events, end]
