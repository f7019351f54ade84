"""Requests as coding agents send them: fields, headers and blocks of Codex and Claude Code.

The texts are short and ours; what stands where is theirs.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
NUM_TURNS = 30
PATCH_GRAMMAR = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: "*** Update File: " /(.+)/ LF change
change: ("@@" LF | ("+" | "-" | " ") /(.*)/ LF)+
%import common.LF
"""
_RULES = " ".join(f"Rule {n}: keep every change small, and say what it is for." for n in range(60))
_OBJECT = {"type": "object", "additionalProperties": False}


def thought(turn: int) -> str:
    """What the model thinks before a turn."""
    return (
        f"Step {turn}. The tests failed before, so I look at the file again and mend line {turn}."
    )


def words(turn: int) -> str:
    """What it says beside a call."""
    return f"I look at part {turn} now."


def output(turn: int) -> str:
    """What a tool answers."""
    lines = (f"{n:4d}  value_{turn}_{n} = compute({n}, scale={turn})" for n in range(12))
    return "\n".join(lines)


def patch(turn: int) -> str:
    """A change of a file."""
    return (
        f'*** Begin Patch\n*** Update File: src/part_{turn}.py\n@@\n-old = "{turn}"\n'
        f'+new = "{turn}\\n"\n*** End Patch\n'
    )


class Codex:
    """A session of Codex over /v1/responses, which stores nothing at the server."""

    path = "/v1/responses"
    headers = {
        "originator": "codex_cli_rs",
        "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "openai-beta": "responses=experimental",
        "accept": "text/event-stream",
    }

    def __init__(self) -> None:
        self.input: list[Json] = [
            _message("developer", "<permissions instructions>Ask before you write.</permissions>"),
            _message("user", "# AGENTS.md instructions for /repo\n\nUse four spaces."),
            _message("user", "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"),
            _message("user", "Mend the tests."),
        ]

    def body(self) -> Json:
        """The next request."""
        return {
            "model": "default",
            "instructions": f"You are Codex, a coding agent.\n{_RULES}",
            "input": self.input,
            "tools": [
                _function("exec_command", cmd={"type": "string"}, yield_time_ms={"type": "number"}),
                _function("update_plan", plan={"type": "array", "items": {"type": "object"}}),
                {
                    "type": "custom",
                    "name": "apply_patch",
                    "description": "Use the apply_patch tool to edit files.",
                    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
                },
                {"type": "web_search", "external_web_access": False},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
            "text": {"verbosity": "low"},
            "service_tier": "auto",
            "client_metadata": {"x-codex-installation-id": "b1"},
        }

    def take(self, events: list[Json], turn: int) -> tuple[int, int, int]:
        """Take a streamed answer, and add what comes of it: tokens read, reused and written."""
        assert events[-1]["type"] == "response.completed", events[-1]
        calls = []
        for event in events:
            if event["type"] != "response.output_item.done":
                continue
            item = {k: v for k, v in event["item"].items() if k not in {"id", "status"}}
            if item["type"] == "reasoning":  # kept by its opaque form alone
                item = {**item, "content": None}
            self.input.append(item)
            calls += [item] if "call_id" in item else []
        for call in calls:
            kind = f"{call['type']}_output"
            self.input.append({"type": kind, "call_id": call["call_id"], "output": output(turn)})
        if not calls:
            self.input.append(_message("user", f"Go on with part {turn}."))
        if turn == 12:
            self.input.append(_message("developer", "<permissions instructions>Now write."))
        usage = events[-1]["response"]["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"]

    def reply(self, turn: int) -> tuple[str, str, tuple[str, Json] | None]:
        """What the model does in a turn: thoughts, words, and a call."""
        if turn % 7 == 6:
            return thought(turn), f"Part {turn} is done.", None
        if turn % 3 == 2:
            return thought(turn), "", ("apply_patch", {"input": patch(turn)})
        return thought(turn), words(turn), ("exec_command", {"cmd": f"cat src/part_{turn}.py"})


class ClaudeCode:
    """A session of Claude Code over /v1/messages."""

    path = "/v1/messages?beta=true"
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
        "context-management-2025-06-27,prompt-caching-scope-2026-01-05",
        "x-app": "cli",
        "user-agent": "claude-cli/2.1.77 (external, cli)",
        "x-stainless-lang": "js",
    }

    def __init__(self) -> None:
        reminder = "<system-reminder>\nThe date is today.\n</system-reminder>\n"
        self.messages: list[Json] = [_turn("user", _text(reminder), _text("Mend the tests."))]
        self._num_requests = 0

    def body(self) -> Json:
        """The next request: the mark of the cache is on its last block alone."""
        self._num_requests += 1
        last = self.messages[-1]
        marked = {**last["content"][-1], "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        messages = [*self.messages[:-1], _turn(last["role"], *last["content"][:-1], marked)]
        billing = f"x-anthropic-billing-header: cc_version=2.1.77.{self._num_requests:03x}; cch=00;"
        return {
            "model": "default",
            "max_tokens": 32000,
            "messages": messages,
            "system": [
                _text(billing),
                {
                    **_text("You are Claude Code, Anthropic's official CLI for Claude."),
                    "cache_control": {"type": "ephemeral"},
                },
                {**_text(f"\n{_RULES}"), "cache_control": {"type": "ephemeral", "scope": "global"}},
            ],
            "tools": [
                _anthropic_tool("Read", file_path={"type": "string"}),
                _anthropic_tool("Bash", command={"type": "string"}, timeout={"type": "number"}),
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            ],
            "metadata": {"user_id": "user_1_account__session_2"},
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "temperature": 1,
            "stream": True,
        }

    def take(self, events: list[Json], turn: int) -> tuple[int, int, int]:
        """Take a streamed answer, and add what comes of it: tokens read, reused and written."""
        blocks: list[Json] = []
        usage: Json = {}
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "typed": ""})
            elif event["type"] == "content_block_delta":
                _add(blocks[-1], event["delta"])
            elif event["type"] == "message_delta":
                usage = event["usage"]
        assert events[-1]["type"] == "message_stop", events[-1]
        for block in blocks:
            typed = block.pop("typed")
            if block["type"] == "tool_use":
                block["input"] = json.loads(typed)
        self.messages.append(_turn("assistant", *blocks))
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": [_text(output(turn))],
                "is_error": False,
            }
            for block in blocks
            if block["type"] == "tool_use"
        ]
        said = [] if results else [_text(f"Go on with part {turn}.")]
        self.messages.append(_turn("user", *results, *said))
        if turn == 12:
            self.messages.append(_turn("system", _text("The plan mode is over.")))
            self.messages.append(_turn("user", _text("Now write.")))
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached, usage["output_tokens"]

    def reply(self, turn: int) -> tuple[str, str, tuple[str, Json] | None]:
        """What the model does in a turn: thoughts, words, and a call."""
        if turn % 7 == 6:
            return thought(turn), f"Part {turn} is done.", None
        if turn % 3 == 2:
            return thought(turn), "", ("Bash", {"command": "pytest -q", "timeout": 1000})
        return thought(turn), words(turn), ("Read", {"file_path": f"/repo/src/part_{turn}.py"})


def _message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _function(name: str, **properties: Json) -> Json:
    parameters = {**_OBJECT, "properties": properties, "required": [next(iter(properties))]}
    about = {"description": f"Runs {name}.", "strict": False, "parameters": parameters}
    return {"type": "function", "name": name, **about}


def _anthropic_tool(name: str, **properties: Json) -> Json:
    schema = {**_OBJECT, "properties": properties, "required": [next(iter(properties))]}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return {"name": name, "description": f"Runs {name}.", "input_schema": schema}


def _turn(role: str, *blocks: Json) -> Json:
    return {"role": role, "content": list(blocks)}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _add(block: Json, delta: Json) -> None:
    if delta["type"] == "input_json_delta":
        block["typed"] += delta["partial_json"]
    elif delta["type"] == "text_delta":
        block["text"] += delta["text"]
    elif delta["type"] == "thinking_delta":
        block["thinking"] += delta["thinking"]
    else:
        block["signature"] = delta["signature"]
