"""What a compiled grammar allows next, token by token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from blazr.core.errors import GrammarError
from blazr.text.grammars.child import Vocabulary
from blazr.text.tokenizer import Tokenizer

# A character that words never hold, so that what follows it is a text's beginning for no tokenizer.
_BARRIER = "\x02"


# Masks after which a grammar is compiled anew: the replies that share it share the states its lexer
# builds as it goes, and of those there may be only so many.
MAX_MASKS = 10_000


@dataclass(slots=True)
class _Usage:
    """How much a compiled grammar has been used, by all replies together."""

    num_masks: int = 0
    is_broken: bool = False


class GrammarConstraint:
    """The state of one reply under a grammar; the engine's `Constraint`.

    Where a grammar forces text, the tokens are those the tokenizer makes of it, and no others are
    allowed. They are the same whether the engine asks for them at once or draws one by one.

    Args:
        matcher: Its state; nobody else's.
        vocab_size: Ids at and above it do not exist; that one stands for the end.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._usage = _Usage()
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._forced: deque[int] = deque()
        self._ahead: NDArray[np.int32] | None = None  # the next mask, where it is known already

    def fork(self) -> GrammarConstraint:
        """Another reply, in the state this one is in."""
        forked = GrammarConstraint(self._matcher.deep_copy(), self._vocab_size)
        forked._usage = self._usage
        forked._forced.extend(self._forced)
        forked._ahead = self._ahead
        return forked

    @property
    def needs_recompile(self) -> bool:
        """Whether new replies should follow the same grammar compiled anew."""
        return self._usage.is_broken or self._usage.num_masks > MAX_MASKS

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        if self._matcher.is_stopped():
            return True
        if self._forced or not self._matcher.is_accepting():
            return False
        # some ends are seen only by looking for something that could follow
        if self._ahead is None:
            self._ahead = self._next_mask()
        word, bit = divmod(self._vocab_size, 32)
        allowed = self._ahead.view(np.uint32).copy()
        allowed[word] &= ~np.uint32(1 << bit)
        return not allowed.any()

    def check_start(self) -> None:
        """Refuse a grammar that no reply can follow, or only the empty one.

        Raises:
            GrammarError: With the reason.
        """
        if self.is_finished:
            raise GrammarError("only the empty text follows the grammar.")
        # kept, because the first mask of a large grammar takes longer than all that follow
        self._ahead = self._next_mask() if not self.forced() else None

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may follow, (V // 32 + 1,); bit V says "the end" may.

        Raises:
            GrammarError: None may, or finding out takes too much work.
        """
        forced = self.forced()
        if forced:
            mask.fill(0)
            mask.view(np.uint32)[forced[0] // 32] = 1 << forced[0] % 32
            return
        mask[:] = self._next_mask() if self._ahead is None else self._ahead

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow, as many as are certain."""
        if not self._forced:
            certain = self._matcher.compute_ff_tokens()
            self._forced.extend(certain[: self._matcher.validate_tokens(certain)])
        return tuple(self._forced)

    def accept(self, token_id: int) -> None:
        """A token follows.

        Raises:
            GrammarError: It may not.
        """
        if self._forced and self._forced.popleft() != token_id:
            self._forced.clear()
        self._ahead = None
        if not self._matcher.consume_token(token_id):
            raise self._failure()

    def _next_mask(self) -> NDArray[np.int32]:
        mask = np.zeros(self._vocab_size // 32 + 1, np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._usage.num_masks += 1
        if self._matcher.is_error():
            raise self._failure()
        if not mask.any():
            raise GrammarError("the vocabulary has no token that the grammar allows next.")
        return mask

    def _failure(self) -> GrammarError:
        self._usage.is_broken = True
        found = self._matcher.get_error().split("\n")[0][:100]
        return GrammarError("the grammar cannot be followed any further.", found=found)


def make_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, special_ids: frozenset[int] = frozenset()
) -> Vocabulary:
    """A model's vocabulary for llguidance.

    Args:
        tokenizer: What its ids mean; those beyond it mean nothing.
        vocab_size: Rows of the model's embedding.
        special_ids: Ids that no text produces, besides those the tokenizer knows.
    """
    ids = range(vocab_size)
    special = [each for each in ids if each in special_ids or tokenizer.is_special(each)]
    tokens = [tokenizer.token_bytes(each) for each in ids]

    def encode(text: str) -> list[int]:
        if not tokenizer.strips_leading_space:
            return tokenizer.encode(text)
        before = tokenizer.encode(_BARRIER)
        return tokenizer.encode(_BARRIER + text)[len(before) :]

    return Vocabulary(tokens, special, encode)
