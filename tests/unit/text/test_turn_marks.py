"""Where a reply ends is found in what a template writes between turns, whatever it is called."""

from __future__ import annotations

import pytest

from blazr.text.chat_template import ChatTemplate
from blazr.text.messages import Message
from blazr.text.templates import CHAT_TEMPLATES
from blazr.text.templates.turns import TurnMarks, find_turn_marks

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
    "{% endfor %}"
)
INSTRUCTIONS = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% else %}### Response:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
)
SWITCHED = (
    "{% for m in messages %}{% if m.role == 'user' %}[Q]{{ m.content }}"
    "{% else %}[A]{{ m.content }}{% endif %}{% endfor %}"
)
ALTERNATING = "{% if messages|length > 2 %}{{ raise_exception('no') }}{% endif %}" + CHATML


def marks(source: str, names: tuple[str, ...], *, has_own_ends: bool = False) -> TurnMarks:
    template = ChatTemplate(source, name="own")
    return find_turn_marks(
        lambda messages: template.render(messages, add_generation_prompt=False),
        names,
        has_own_ends=has_own_ends,
    )


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        (CHATML, ("<|im_start|>", "<|im_end|>"), TurnMarks(("<|im_end|>",))),
        (ALTERNATING, ("<|im_start|>", "<|im_end|>"), TurnMarks(("<|im_end|>",))),
        (
            CHAT_TEMPLATES["oxidizr"].source,
            ROLES,
            TurnMarks(("<|user|>", "<|assistant|>", "<|system|>")),
        ),
        (CHAT_TEMPLATES["oxidizr"].source, (), TurnMarks((), ("\n<|user|>",))),
        (CHAT_TEMPLATES["generic"].source, (), TurnMarks((), ("\nuser:",))),
        (INSTRUCTIONS, (), TurnMarks((), ("\n### Instruction:",))),
        (SWITCHED, ("[Q]", "[A]"), TurnMarks(("[Q]", "[A]"))),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", (), TurnMarks()),
        ("{{ raise_exception('no') }}", ROLES, TurnMarks()),
    ],
)
def test_the_marks_are_those_between_the_turns(source, names, expected) -> None:
    assert marks(source, names) == expected


def test_what_stands_in_a_reply_of_several_parts_does_not_end_it() -> None:
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    assert marks(HARMONY, names, has_own_ends=True) == TurnMarks()


def test_the_next_user_ends_a_reply_also_where_the_model_names_its_ends() -> None:
    source = CHAT_TEMPLATES["oxidizr"].source
    assert marks(source, ROLES, has_own_ends=True).names == ("<|user|>", "<|system|>")


def test_the_same_marks_are_found_for_the_template_of_a_tokenizer(cl100k) -> None:
    template = ChatTemplate(CHAT_TEMPLATES["oxidizr"].source, name="own")
    user, assistant, system = (cl100k.special_ids[name] for name in (ROLES[1], ROLES[2], ROLES[0]))
    assert template.stop_ids(cl100k) == (user, assistant, system)
    assert template.stop_texts(cl100k) == ()
    generic = ChatTemplate(CHAT_TEMPLATES["generic"].source, name="generic")
    assert generic.stop_texts(cl100k) == ("\nuser:",)
    assert generic.render([Message(role="user", content="a")]).endswith("user: a\nassistant:")
