"""Where a reply ends in a template's form: what it writes where another turn begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from blazr.core.errors import RequestError, TemplateLimitError
from blazr.text.messages import Message
from blazr.text.tokenizer import longest_of

# Words of a small chat, which occur in no template.
_SYSTEM = "blazr-told"
ASKED = "blazr-asked"
_SAID = "blazr-said"
_NEXT = "blazr-next"


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
    # of two names that begin together, the longer is the token
    find_names: Callable[[str], list[str]] = longest_of(names).findall

    def try_render(*messages: Message) -> str | None:
        try:
            return render(messages)
        except TemplateLimitError:
            raise
        except RequestError:
            return None

    asked = Message(role="user", content=ASKED)
    said = Message(role="assistant", content=_SAID)
    text = try_render(asked, said, Message(role="user", content=_NEXT))
    if text is None:  # some templates take one exchange only
        text = try_render(asked, said)
    if text is None:
        return TurnMarks()
    opening = text.partition(ASKED)[2].partition(_SAID)[0]
    gap, is_followed, _ = text.partition(_SAID)[2].partition(_NEXT)
    in_gap = find_names(gap)
    in_opening = find_names(opening)
    marks = [name for name in in_gap if name not in in_opening]
    if not has_own_ends:
        own = [name for name in in_opening if is_followed and name not in in_gap]
        marks = [*in_gap[:1], *marks, *own[:1]]
    with_system = try_render(Message(role="system", content=_SYSTEM), asked, said)
    if with_system is not None and in_gap:
        before = find_names(with_system.partition(_SYSTEM)[0])
        marks += [name for name in before[-1:] if name not in in_opening]
    texts: tuple[str, ...] = ()
    if not in_gap and re.search(r"\w", gap):  # else a reply would contain it by chance
        space = gap[: len(gap) - len(gap.lstrip())]
        texts = (("\n" if "\n" in space else space) + gap.strip(),)
    return TurnMarks(tuple(dict.fromkeys(marks)), texts)
