"""Drafts from the text itself: what followed the last tokens where they stood before.

Source: Saxena 2023, "Prompt Lookup Decoding", github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter
from blazr.nn.ops.repeats import NONE, repeat_finder

# Kinds of drafts, by whether more than one token before the place are the last ones, and whether
# others may stand for some: of an only place, as far as another place agrees, and beyond that.
_KINDS = {
    (is_longer, is_edited): tuple(f"{name}{end}" for end in ("", " agreed", " alone"))
    for is_longer, is_edited, name in (
        (False, False, "token"),
        (False, True, "edited token"),
        (True, False, "ngram"),
        (True, True, "edited ngram"),
    )
}


class NgramDrafter(Drafter):
    """Looks for the last tokens earlier in prompt and reply, and proposes what followed them.

    Of several places the one counts that is most like the end, also where it has other names; these
    are put into what is proposed. As far as the same followed at the latest other place, drafts are
    kept more often: these are of a kind of their own. So are those of a text's only place, those
    behind a single token, and those of a place that is not wholly like the end.
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
        only, agreed, alone = _KINDS[found > 1, is_edited]
        if num_agreed == NONE:
            return Draft(drafts, only)
        if not num_agreed:
            return Draft(drafts, alone)
        return Draft(drafts, agreed, num_first=num_agreed, kind_behind=alone)
