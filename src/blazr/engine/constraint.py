"""What restricts a reply to a language, as the engine sees it: ids and bits, no text."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one reply. Only the engine's thread uses it, after the fork."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow, so that the reply ends."""

    def fork(self) -> Self:
        """Another reply, in the state this one is in; later changes to either stay its own."""

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Say which tokens may follow; it raises where it cannot.

        Args:
            mask: (V // 32 + 1,), overwritten. Bit ``i % 32`` of word ``i // 32`` is token ``i``;
                bit V says that the reply may end. At least one bit is set.
        """

    def forced(self) -> Sequence[int]:
        """Tokens that must follow. Where there is one, the mask allows only the first."""

    def accept(self, token_id: int) -> None:
        """A token follows; it raises where that one may not."""


def advance(
    constraint: Constraint, token_id: int, *, max_tokens: int, stop_ids: Container[int]
) -> tuple[int, ...]:
    """A token was drawn: take it, and those that must follow it.

    Args:
        constraint: Of the reply.
        token_id: Drawn from its mask.
        max_tokens: How many to take at most, at least 1.
        stop_ids: Ids that are left to the next draw, because they end the reply.

    Returns:
        ``token_id``, then what follows.
    """
    constraint.accept(token_id)
    taken = [token_id]
    # once: what a second look might find is left to the next draw, which finds it too
    for forced in constraint.forced() if max_tokens > 1 else ():
        if len(taken) == max_tokens or forced in stop_ids:
            break
        constraint.accept(forced)
        taken.append(forced)
    return tuple(taken)
