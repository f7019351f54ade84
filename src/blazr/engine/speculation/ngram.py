"""Drafts from the text itself: what followed the last tokens where they stood before.

Source: Saxena 2023, "Prompt Lookup Decoding", github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter
from blazr.nn.ops.repeats import NOWHERE, repeat_finder


class NgramDrafter(Drafter):
    """Looks for the last tokens earlier in prompt and reply, and proposes what followed them.

    Of the latest places the one is taken where most tokens before it are the same, and the latest
    of equals. As far as the same followed at the latest other place, drafts are kept more often:
    these are of a kind of their own. So are those of a text's only place, and those behind a single
    token.
    """

    def __init__(self) -> None:
        self._find = repeat_finder()

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        return self.propose_beyond(0, sequence, most)

    def propose_beyond(self, match: int, sequence: Sequence, most: int) -> Draft | None:
        """What follows a place where more than ``match`` tokens before it are the same."""
        tokens = sequence.tokens
        place, found, num_agreed = self._find(tokens, most)
        if found <= match:
            return None
        drafts = tuple(tokens[place : place + most])
        # a place so near the end that the draft would go beyond it: what repeats goes on repeating
        if len(drafts) < most:
            drafts = (drafts * (most // len(drafts) + 1))[:most]
        kind = "ngram" if found > 1 else "token"
        if num_agreed == NOWHERE:
            return Draft(drafts, kind)
        behind = f"{kind} alone"
        if not num_agreed:
            return Draft(drafts, behind)
        return Draft(drafts, f"{kind} agreed", num_first=num_agreed, kind_behind=behind)
