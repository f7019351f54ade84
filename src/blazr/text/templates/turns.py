"""Where a reply ends: the marks that a chat template writes between turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from blazr.core.errors import RequestError
from blazr.text.messages import Message

# Words of the small chat, which occur in no template.
_SYSTEM, _ASKED, _SAID, _NEXT = "blazr-told", "blazr-asked", "blazr-said", "blazr-next"


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """What a template writes where another turn begins.

    Args:
        names: Special tokens, that which ends a reply first.
        texts: Strings, where no special token stands between a reply and the next turn.
    """

    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def find_turn_marks(
    render: Callable[[Sequence[Message]], str], names: Collection[str], *, has_own_ends: bool
) -> TurnMarks:
    """Render a small chat and look at what stands between the turns.

    Args:
        render: The text of a chat; it raises `RequestError` where the template refuses it.
        names: The special tokens that the model has.
        has_own_ends: Whether the model names several end tokens. Such a model knows its own: its
            reply may have parts, and what follows one of them ends nothing. Only marks that never
            begin a turn of the assistant are then taken.
    """
    asked, said = Message(role="user", content=_ASKED), Message(role="assistant", content=_SAID)
    # some templates take one exchange only
    text = _try(render, [asked, said, Message(role="user", content=_NEXT)])
    text = _try(render, [asked, said]) if text is None else text
    if text is None:
        return TurnMarks()
    opening = text.partition(_ASKED)[2].partition(_SAID)[0]
    gap, is_followed, _ = text.partition(_SAID)[2].partition(_NEXT)
    in_gap, in_opening = _find(gap, names), _find(opening, names)
    marks = [name for name in in_gap if name not in in_opening]
    if not has_own_ends:
        own = [name for name in in_opening if is_followed and name not in in_gap]
        marks = [*in_gap[:1], *marks, *own[:1]]
    told = _try(render, [Message(role="system", content=_SYSTEM), asked, said])
    if told is not None and in_gap:
        before = _find(told.partition(_SYSTEM)[0], names)
        marks += [name for name in before[-1:] if name not in in_opening]
    return TurnMarks(tuple(dict.fromkeys(marks)), () if in_gap else _as_text(gap))


def _try(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str | None:
    try:
        return render(messages)
    except RequestError:
        return None


def _find(text: str, names: Collection[str]) -> list[str]:
    """The names in a text, in order; of two that begin together, the longer."""
    known = sorted(filter(None, names), key=len, reverse=True)
    return re.findall("|".join(map(re.escape, known)) or "(?!)", text)


def _as_text(gap: str) -> tuple[str, ...]:
    """What stands between turns, if a reply would not contain it by chance."""
    mark = gap.strip()
    if not re.search(r"\w", mark):
        return ()
    space = gap[: len(gap) - len(gap.lstrip())]
    return (("\n" if "\n" in space else space) + mark,)
