"""A model whose replies are written beforehand, round by round, with calls of tools in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from blazr.llm.text_engine import TextEngine
from tests.support.scripted import ScriptedEngine, thinking_core


def calling(*calls: tuple[str, Mapping[str, object]], say: str = "") -> str:
    """A reply that says something and calls tools."""
    written = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    return say + "".join(f"\n<tool_call>\n{each}\n</tool_call>" for each in written)


def calling_core(replies: Sequence[str], **changes: object) -> TextEngine:
    """A core that gives these replies in turn, and the last one again and again."""
    core = thinking_core(replies[0], **{"max_seq_len": 8192, **changes})
    engine = cast("ScriptedEngine", core.engine)
    scripts = [core.tokenizer.encode(each) for each in replies]
    engine.script_of = lambda _: scripts[min(len(engine.submitted), len(scripts) - 1)]
    return core


def prompts(core: TextEngine) -> list[str]:
    """What the model has been shown, request by request."""
    engine = cast("ScriptedEngine", core.engine)
    return [core.tokenizer.decode(each.prompt_ids) for each in engine.submitted]
