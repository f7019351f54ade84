"""Drafts from the text itself: what followed the last tokens where they stood before.

Source: Saxena 2023, "Prompt Lookup Decoding", github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from bisect import bisect

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter
from blazr.nn.ops.repeats import NONE, repeat_finder

# The least tokens before the place that are the last ones: the more, the likelier drafts are kept.
_MATCHES = (1, 2, 3, 4, 6, 10)
# Kinds of drafts, by whether others may stand for some of these tokens, and by how many of _MATCHES
# they reach: of an only place, as far as another place agrees, and beyond that.
_KINDS = {
    (is_edited, number): tuple(f"{name} of {match}{end}" for end in ("", " agreed", " alone"))
    for is_edited, name in ((False, "ngram"), (True, "edited ngram"))
    for number, match in enumerate(_MATCHES, 1)
}


class NgramDrafter(Drafter):
    """Looks for the last tokens earlier in prompt and reply, and proposes what followed them.

    Of several places the one counts that is most like the end, also where it has other names; these
    are put into what is proposed. As far as the same followed at the latest other place, drafts are
    kept more often: these are of a kind of their own. So are those of a text's only place, those of
    a place that is not wholly like the end, and those behind more tokens that are the last ones.
    """

    def __init__(self) -> None:
        self._find = repeat_finder()

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        return self.propose_beyond(0, sequence, most)

    def propose_beyond(self, match: int, sequence: Sequence, most: int) -> Draft | None:
        """What follows a place where more than ``match`` tokens before it are the same."""
        drafts, found, num_agreed, is_edited = self._find(sequence.tokens, most)
        if found <= match:
            return None
        only, agreed, alone = _KINDS[is_edited, bisect(_MATCHES, found)]
        if num_agreed > 0:
            return Draft(drafts, agreed, 0, num_agreed, alone)
        return Draft(drafts, only if num_agreed == NONE else alone)
