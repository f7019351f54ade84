"""A user asks, the model calls tools, they answer, it goes on: all of it reaches the model."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from blazr.core.errors import RequestError
from blazr.text.chat_template import ChatTemplate
from blazr.text.choose_template import choose_template
from blazr.text.messages import Message
from blazr.text.splitter import CallArguments, CallBegin, merge
from blazr.text.stream import ReplyFormat
from blazr.text.templates.spelling import Spelling, as_dicts, spell
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls.choose import choose_tool_format
from blazr.text.tool_calls.rows import TOOL_FORMATS

TEMPLATES = Path(__file__).resolve().parents[2] / "golden" / "templates"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Weather of a city.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each template by its file: ours, and those that ``--templates`` names."""
    if "file" in metafunc.fixturenames:
        more = metafunc.config.getoption("--templates")
        files = {
            each.name: each for path in (more, TEMPLATES) if path for each in path.glob("*.jinja")
        }
        metafunc.parametrize(
            "file", [files[name] for name in sorted(files)], ids=lambda file: file.stem
        )


def called(*cities: str, content: str | None = None) -> Message:
    calls = [
        {
            "id": f"abc12345{number}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for number, city in enumerate(cities)
    ]
    return Message(role="assistant", content=content, extra={"tool_calls": calls})


def result(number: int, content: str) -> Message:
    extra = {"tool_call_id": f"abc12345{number}", "name": "get_weather"}
    return Message(role="tool", content=content, extra=extra)


ASK = Message(role="user", content="Weather in Genf?")
ONE = [ASK, called("Zug"), result(0, "Sunny22"), Message(role="assistant", content="It shines.")]
MORE = Message(role="user", content="And now?")
TWO = [ASK, called("Zug", "Chur"), result(0, "Sunny22"), result(1, "Snow-3")]
SAID = [ASK, called("Zug", content="I look."), result(0, "Sunny22")]


def template_of(source: str) -> ChatTemplate:
    reply_format = ReplyFormat(tool_format=choose_tool_format(source, "any"))
    names = {"bos_token": "<s>"}
    return ChatTemplate(source, name="t", token_names=names, reply_format=reply_format)


def test_a_round_trip_is_rendered_whole(file: Path) -> None:
    template = template_of(file.read_text("utf-8"))
    text = template.render([*ONE, MORE], tools=TOOLS)
    for word in ("Weather of a city.", "Zug", "Sunny22", "It shines.", "And now?"):
        assert word in text, word
    assert text.index("Genf") < text.index("Zug") < text.index("Sunny22") < text.index("shines")
    assert "None" not in text


def test_calls_made_together_and_text_beside_them_are_kept(file: Path) -> None:
    template = template_of(file.read_text("utf-8"))
    text = template.render(TWO, tools=TOOLS)
    for word in ("Zug", "Sunny22", "Chur", "Snow-3"):
        assert text.count(word) == 1, word
    text = template.render(SAID, tools=TOOLS)
    assert "I look." in text
    assert "Zug" in text
    assert "Zug" in template.render(SAID)


def test_text_beside_a_call_fits_into_a_longer_chat(file: Path) -> None:
    template = template_of(file.read_text("utf-8"))
    chat = [*SAID, Message(role="assistant", content="It shines."), MORE]
    text = template.render(chat, tools=TOOLS)
    for word in ("Zug", "Sunny22", "It shines.", "And now?"):
        assert word in text, word


def test_a_call_that_was_cut_off_does_not_end_the_chat(file: Path) -> None:
    """As `max_tokens` leaves it; agents send it again with every turn."""
    template = template_of(file.read_text("utf-8"))
    whole = '{"city": "Zug", "days": 2}'
    for place in range(1, len(whole)):
        call = {"id": "abc123450", "function": {"name": "get_weather", "arguments": whole[:place]}}
        said = Message(role="assistant", content=None, extra={"tool_calls": [call]})
        text = template.render([ASK, said, result(0, "Sunny22"), MORE], tools=TOOLS)
        assert "get_weather" in text.partition("Genf")[2]
        assert "Sunny22" in text
        assert "Zug" in text or '"Zug",' not in whole[:place]


def test_agents_tell_the_system_more_on_the_way(file: Path) -> None:
    """Instructions and rules at the start, changed rules and two messages of the user later."""
    told = [Message(role="system", content=f"Rule {number}.") for number in range(3)]
    template = template_of(file.read_text("utf-8"))
    for tools in (TOOLS, None):
        chat = [*told[:2], MORE, *(ONE if tools else [ASK, ONE[-1]]), told[2], MORE, ASK]
        text = template.render(chat, tools=tools)
        words = ["Rule 0.", "Rule 1.", "And now?", "It shines.", "Rule 2."]
        assert [word for word in words if word not in text] == []
        assert text.index("Rule 0.") < text.index("Rule 1.") < text.rindex("Rule 2.")


def test_what_is_rendered_is_read_again(file: Path) -> None:
    """The calls in a rendered chat are, in the model's own format, what its parser finds."""
    template = template_of(file.read_text("utf-8"))
    tool_format = template.reply_format.tool_format
    assert tool_format is not None
    whole = template.render([ASK, called("Zug")], tools=TOOLS, add_generation_prompt=False)
    stream = tool_format.parser()
    asked = template.render([ASK], tools=TOOLS, add_generation_prompt=True)
    reply = whole.removeprefix(asked) if whole.startswith(asked) else whole.partition("Genf?")[2]
    pieces = merge(stream.push(reply) + stream.flush())
    found = [piece for piece in pieces if not isinstance(piece, str)]
    assert [type(piece) for piece in found] == [CallBegin, CallArguments]
    assert getattr(found[0], "name", "") == "get_weather"
    assert getattr(found[1], "text", "") == '{"city": "Zug"}'


def test_a_template_without_tools_is_helped() -> None:
    template = template_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert template.render(TWO, tools=TOOLS) == (
        "system: # Tools\n\nYou may call these functions:\n"
        f"{json.dumps(FUNCTION)}\n\n"
        "To call a function, write nothing but its name and arguments, in this form:\n"
        '<tool_call>\n{"name": "function-name", "arguments": {"argument-name": "value"}}\n'
        "</tool_call>\n"
        "user: Weather in Genf?\n"
        'assistant: <tool_call>\n{"name": "get_weather", "arguments": {"city": "Zug"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Chur"}}\n'
        "</tool_call>\n"
        "tool: Sunny22\ntool: Snow-3\n"
    )


def test_tools_follow_the_system_prompt_or_lead_the_users_words() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    system = Message(role="system", content="Be kind.")
    assert "[system]Be kind.\n\n# Tools" in template_of(source).render([system, ASK], tools=TOOLS)
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + source
    text = template_of(strict).render([ASK], tools=TOOLS)
    assert text.startswith("[user]# Tools")
    assert text.endswith("Weather in Genf?")


def test_a_result_without_a_role_is_the_users() -> None:
    said = "{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% endif %}"
    source = "{% for m in messages %}" + said + "{% endfor %}"
    text = template_of(source).render(TWO)
    assert text.endswith(
        "[user]<tool_response>\nSunny22\n</tool_response>\n"
        "<tool_response>\nSnow-3\n</tool_response>"
    )


def test_calls_that_only_come_alone_are_parted() -> None:
    both = called("Zug", "Chur", content="Hm.")
    chat = as_dicts([ASK, both, result(0, "a"), result(1, "b"), MORE])
    messages, _ = spell(chat, None, Spelling(one_at_a_time=True), TOOL_FORMATS["hermes"])
    told = [str(each.get("tool_call_id") or each.get("tool_calls")) for each in messages]
    assert [each[-60:].count("Zug") for each in told] == [0, 1, 0, 0, 0, 0]
    assert told[2] == "abc123450"
    assert "Chur" in told[3]
    assert "Zug" not in told[3]
    assert told[4] == "abc123451"
    assert [each["content"] for each in messages] == [
        *("Weather in Genf?", "Hm.", "a", None, "b", "And now?"),
    ]


def test_ids_that_a_template_refuses_are_shortened() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{{ c.id }}={{ c.function.arguments }}{% endfor %}"
        "{% if m.role == 'tool' %} {{ m.tool_call_id }}:{{ m.content }}{% endif %}{% endfor %}"
    )
    call = {"id": "call_0123456789", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        Message(role="assistant", content=None, extra={"tool_calls": [call]}),
        Message(role="tool", content="42", extra={"tool_call_id": "call_0123456789"}),
    ]
    text = template_of(source).render(messages)
    call_id = text.partition("=")[0]
    assert len(call_id) == 9
    assert text.endswith(f" {call_id}:42")


@pytest.mark.parametrize(
    "call", [1, {}, {"function": 1}, {"function": {}}, {"function": {"name": 1}}]
)
def test_a_call_that_is_none_is_refused(call: object) -> None:
    message = Message(role="assistant", content=None, extra={"tool_calls": [call]})
    with pytest.raises(RequestError, match="lacks something"):
        template_of("{{ messages }}").render([message])


def test_arguments_that_cannot_be_written_are_refused() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "not json"}}
    message = Message(role="assistant", content=None, extra={"tool_calls": [call]})
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(RequestError, match="not a JSON object"):
        template_of(source).render([message])


def test_markers_a_client_writes_stay_text(cl100k: Tokenizer) -> None:
    """What is written for a template has real tokens in it, what clients say has none."""
    template = choose_template(
        directory=None, name_or_path=None, family="oxidizr", tokenizer=cl100k
    )
    assert template.reply_format.tool_format is TOOL_FORMATS["agent"]
    marker = cl100k.special_ids["<|function|>"]
    city = "<|function|>"
    tool: Mapping[str, object] = {"function": {"name": "f", "description": city}}
    messages = [ASK, called(city), result(0, city)]
    ids = template.prompt(messages, cl100k, tools=[tool]).encode()
    assert ids.count(marker) == 2  # the example and the call
    assert cl100k.decode(ids, skip_special=False).count(city) == 5


def test_thinking_is_told_in_every_spelling() -> None:
    message = Message(role="assistant", content=None, extra={"reasoning_content": "Hm"})
    said = "{{ m.reasoning_content }}{{ m.reasoning }}{{ m.thinking }}"
    source = "{% for m in messages %}" + said + "{% endfor %}"
    assert template_of(source).render([message]) == "HmHmHm"
