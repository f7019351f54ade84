"""Real models' templates, compared with a plain sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import jinja2
import pytest
from jinja2.ext import Extension
from jinja2.sandbox import SandboxedEnvironment

from blazr.text.chat_template import ChatTemplate
from blazr.text.messages import Message

TEMPLATES = Path(__file__).resolve().parents[2] / "golden" / "templates"
SYSTEM = Message(role="system", content="Be kind.")
USER = Message(role="user", content="Hi <b>there</b> é")
ASSISTANT = Message(role="assistant", content="Hello!")
FUNCTION = {"name": "f", "arguments": '{"x": 1}'}
CALL = Message(
    role="assistant",
    content=None,
    extra={"tool_calls": [{"id": "abc123def", "type": "function", "function": FUNCTION}]},
)
RESULT = Message(role="tool", content="42", extra={"tool_call_id": "abc123def", "name": "f"})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does.",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
]


class _Generation(Extension):
    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def plain_sandbox() -> SandboxedEnvironment:
    """What Hugging Face's library renders with, less all that is ours."""

    def fail(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = lambda value, **kwargs: json.dumps(
        value, **{"ensure_ascii": False, **kwargs}
    )
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def as_dict(message: Message, null: str | None) -> dict[str, object]:
    content = null if message.content is None else message.content
    fields = json.loads(json.dumps({"role": message.role, "content": content}))
    fields |= json.loads(json.dumps(message.extra or {}))
    for call in fields.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return dict(fields)


CHATS: Mapping[str, tuple[Sequence[Message], Sequence[Mapping[str, object]] | None]] = {
    "one turn": ([USER], None),
    "turns": ([SYSTEM, USER, ASSISTANT, USER], None),
    "tools": ([USER, CALL, RESULT], TOOLS),
}


# What these do not write is written for them; see test_tool_round_trips.py.
WITHOUT_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "ibm-granite-granite-3.3-2B-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}


@pytest.mark.sample
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("*.jinja")), ids=lambda file: file.stem)
def test_real_templates_render_as_in_a_plain_sandbox(file: Path, chat: str) -> None:
    source = file.read_text("utf-8")
    messages, tools = CHATS[chat]
    template = ChatTemplate(source, name=file.stem, token_names={"bos_token": "<s>"})
    text = template.render(messages, tools=tools)
    assert "None" not in text
    expected = plain_render(source, messages, tools)
    assert expected in {None, text} or (chat == "tools" and file.stem in WITHOUT_TOOLS)


def plain_render(
    source: str, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None
) -> str | None:
    """What the plain sandbox makes of it, or None where it fails without the rules we add."""
    for null in (None, ""):
        try:
            text = (
                plain_sandbox()
                .from_string(source)
                .render(
                    messages=[as_dict(message, null) for message in messages],
                    tools=tools,
                    add_generation_prompt=True,
                    bos_token="<s>",
                    eos_token="",
                )
            )
        except (jinja2.TemplateError, TypeError):
            continue
        if "None" not in text:
            return text
    return None
