"""Where a reply ends is found in what a template writes between turns, whatever it is called."""

from __future__ import annotations

import pytest

from blazr.text.chat_template import ChatTemplate
from blazr.text.messages import Message
from blazr.text.templates import CHAT_TEMPLATES
from blazr.text.templates.turn_marks import TurnMarks, find_turn_marks

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


TOOLS_LAST = """{% set asked = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for m in messages %}{{ '<tools>' if m == asked }}{{ m.role }}: {{ m.content }}
{% endfor %}"""
THOUGHTS = """{% set is_asked = messages[-1].role == 'user' %}{% for m in messages -%}
{{ m.role }}: {{ m.content.split('</think>')[-1] if is_asked else m.content }}
{% endfor %}"""
KEPT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
REFUSED = "{{ raise_exception('no') if messages | length > 3 }}" + KEPT
WHOLE = "user: \U0001f600 a\nassistant: <think>b</think>c\ntool: d\n"


@pytest.mark.parametrize(
    ("source", "settled"),
    [
        pytest.param(KEPT, WHOLE, id="all"),
        pytest.param(TOOLS_LAST, "", id="tools before the user's last words"),
        pytest.param(THOUGHTS, "user: \U0001f600 a\nassistant: ", id="thoughts of the last turn"),
        pytest.param(REFUSED, WHOLE, id="another turn is refused"),
    ],
)
def test_what_stays_the_same_when_the_user_speaks_again(cl100k, source, settled) -> None:
    chat = [
        Message(role="user", content="😀 a"),
        Message(role="assistant", content="<think>b</think>c"),
        Message(role="tool", content="d"),
    ]
    prompt = ChatTemplate(source, name="own").prompt(chat, cl100k, looks_ahead=True)
    assert len(settled) in prompt.anchors
    ids = prompt.encode()
    count = prompt.anchor_tokens(ids)[prompt.anchors.index(len(settled))]
    assert cl100k.decode(ids[:count]) == settled.rstrip(" ")  # the space begins the next token


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


TOOLS_FIRST = "You may call hi.\n" + KEPT + "assistant:"


@pytest.mark.parametrize("source", [KEPT, TOOLS_FIRST])
def test_later_chats_part_after_the_instructions_and_after_each_message(cl100k, source) -> None:
    contents = ["Be kind.", "hi", "  Hello 😀!\n", "<|endoftext|> hi", "yes"]
    roles = ["system", "user", "assistant", "user", "assistant"]
    chat = [Message(role=role, content=text) for role, text in zip(roles, contents, strict=True)]
    prompt = ChatTemplate(source, name="own").prompt(chat, cl100k, looks_ahead=True)
    ends = [prompt.text[:anchor][-8:] for anchor in prompt.anchors]
    assert ends[:3] == [".\nuser: ", "user: hi", "Hello 😀!"]
    assert ends[3].endswith("ext|> hi")
    assert ends[4].endswith("yes")
    ids = prompt.encode()
    for anchor, count in zip(prompt.anchors, prompt.anchor_tokens(ids), strict=True):
        assert abs(len(cl100k.decode(ids[:count])) - anchor) <= len("<|endoftext|>")


def test_a_message_that_a_template_rewrites_has_no_place(cl100k) -> None:
    source = "{% for m in messages %}{{ m.content | upper }}.{% endfor %}"
    chat = [Message(role="user", content="one"), Message(role="assistant", content="TWO")]
    prompt = ChatTemplate(source, name="own").prompt(chat, cl100k, looks_ahead=True)
    assert prompt.text == "ONE.TWO."
    assert prompt.anchors == (4, 7, 8)  # where the second begins and ends, and the next turn begins
