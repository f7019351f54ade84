"""A model that answers coding agents as they expect, by what stands in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blazr.engine.request import Request
from blazr.llm.text_engine import TextEngine
from blazr.text.chat_template import ChatTemplate
from blazr.text.reasoning import choose_reasoning
from blazr.text.stream import ReplyFormat
from blazr.text.tool_calls.choose import choose_tool_format
from tests.support.scripted import scripted_core

TEMPLATE = Path(__file__).resolve().parents[2] / "golden" / "templates" / "Qwen-Qwen3-0.6B.jinja"
CONTEXT = 131_072  # of tokens; instructions of an agent take ten thousand
THOUGHT = "<think>\nThe user wants something done.\n</think>\n\n"
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
# Of each agent, the tools that write a file, and how; the first that it has is called.
CALLS = {
    "apply_patch": {"input": PATCH},
    "exec_command": {"cmd": "echo hello > hello.txt"},
    "Write": {"file_path": "hello.txt", "content": "hello\n"},
    "write": {"filePath": "hello.txt", "content": "hello\n"},
}
EDIT = "I let it sleep.\n\nstory.txt\n```\nA dog slept.\n```\n"


def answer(prompt: str, reply_format: ReplyFormat) -> str:
    """What is said after a prompt."""
    if "<tool_response>" in prompt:
        return "The file is written."
    for name, arguments in CALLS.items():
        if f'"name": "{name}"' in prompt:
            return "I write it.\n" + reply_format.tool_format.write([(name, arguments)])
    if "expert software developer" in prompt:  # aider's words, where it lets files be changed
        return EDIT
    return "It is a story of a dog."


def coder() -> TextEngine:
    """The model, ready to be served."""
    core = scripted_core(name="coder", max_seq_len=CONTEXT)
    tokenizer = core.tokenizer
    assert tokenizer is not None
    source = TEMPLATE.read_text("utf-8")
    reply_format = ReplyFormat(
        reasoning=choose_reasoning(source, "any", tokenizer.special_ids),
        tool_format=choose_tool_format(source, "any"),
    )
    core.template = ChatTemplate(source, name="qwen3", reply_format=reply_format)
    core.reply_format = reply_format

    def script_of(request: Request) -> Sequence[int]:
        prompt = tokenizer.decode(list(request.prompt_ids))
        return tokenizer.encode(THOUGHT + answer(prompt, reply_format))

    core.engine.script_of = script_of
    return core
