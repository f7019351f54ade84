"""Ends a reply's thinking when enough was thought."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blazr.text.reasoning import ReasoningFormat
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.text.grammars.constraint import GrammarConstraint

_UTF8 = codecs.getincrementaldecoder("utf-8")
# Tokens over the budget to wait for the rest of a character; none has more bytes.
_MAX_OVERRUN = 4


class _Stage(Enum):
    """How far a reply has come."""

    BEFORE = "it may begin to think"
    INSIDE = "it thinks"
    ENDING = "it is made to end its thinking"
    AFTER = "it thinks no more"


class ThinkingBudget:
    """Lets a reply think for so many tokens, then writes the end of its thinking for it.

    The engine's `Constraint`.

    Args:
        form: How the model marks its thinking.
        tokenizer: The model's.
        vocab_size: Ids at and above it do not exist; that one stands for the end.
        budget: Most tokens of thinking, in all.
        is_inside: Whether the prompt has begun it.
        inner: What the reply must follow besides; it takes all that is written here too.
        with_header: Whether what begins an answer is written too, not only the end of the thinking.
    """

    def __init__(
        self,
        form: ReasoningFormat,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        budget: int,
        is_inside: bool,
        inner: GrammarConstraint | None = None,
        with_header: bool = True,
    ) -> None:
        self._form = form
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._left = budget
        self._inner = inner
        self._begin = form.begin.strip().encode()
        self._end = form.end.strip().encode()
        self._end_ids = form.end_ids(tokenizer, with_header=with_header)
        self._forced: deque[int] = deque()
        self._tail = b""  # as much of the text as a marker may need
        self._stage = _Stage.INSIDE if is_inside else _Stage.BEFORE
        self._end_if_spent()

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return self._inner is not None and self._inner.is_finished

    def fork(self) -> ThinkingBudget:
        """Another reply, in the state this one is in."""
        forked = copy(self)
        forked._forced = self._forced.copy()
        forked._inner = None if self._inner is None else self._inner.fork()
        return forked

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may follow, (V // 32 + 1,); bit V says "the end" may.

        Raises:
            GrammarError: None may.
        """
        if self._forced:
            mask.fill(0)
            mask.view(np.uint32)[self._forced[0] // 32] = 1 << self._forced[0] % 32
        elif self._inner is not None:
            self._inner.fill_mask(mask)
        else:
            mask.fill(-1)

    def forced(self) -> Sequence[int]:
        """The tokens that must follow, as many as are certain."""
        if self._forced:
            return tuple(self._forced)
        return () if self._inner is None else self._inner.forced()

    def accept(self, token_id: int) -> None:
        """A token follows.

        Raises:
            GrammarError: It may not.
        """
        if self._inner is not None:
            self._inner.accept(token_id)
        if self._stage is _Stage.ENDING:
            self._forced.popleft()
            if not self._forced:
                self._leave()
        elif self._stage is not _Stage.AFTER:
            self._look_for_marks(self._tokenizer.token_bytes(token_id))

    def _look_for_marks(self, data: bytes) -> None:
        self._tail += data
        if self._stage is _Stage.INSIDE:
            self._left -= 1
            if self._end in self._tail:
                self._leave()
        elif self._form.is_anywhere:
            if self._begin in self._tail:
                self._enter()
        else:
            self._tail = self._tail.lstrip()
            if self._tail.startswith(self._begin):
                self._enter()
            elif not self._begin.startswith(self._tail):
                self._stage = _Stage.AFTER
        self._tail = self._tail[-max(len(self._begin), len(self._end), _MAX_OVERRUN) :]
        self._end_if_spent()

    def _enter(self) -> None:
        self._stage = _Stage.INSIDE
        self._tail = b""

    def _leave(self) -> None:
        self._stage = _Stage.BEFORE if self._form.is_anywhere else _Stage.AFTER
        self._tail = b""

    def _end_if_spent(self) -> None:
        if self._stage is not _Stage.INSIDE or self._left > 0:
            return
        if self._left > -_MAX_OVERRUN:
            decoder = _UTF8("replace")
            decoder.decode(self._tail[-3:])
            if decoder.getstate()[0]:  # a character is incomplete
                return
        self._stage = _Stage.ENDING
        self._forced.extend(self._end_ids)
