"""TOOL_FORMATS: the ways in which models write calls of tools, in the order they are tried."""

from __future__ import annotations

from blazr.core.table import Table
from blazr.text.tool_calls.format import ToolFormat

TOOL_FORMATS: Table[ToolFormat] = Table(
    "tool format",
    {},
    lazy={
        name: f"blazr.text.tool_calls.rows:{name.upper()}"
        for name in (
            "harmony",
            "kimi_k2",
            "glm47",
            "glm45",
            "seed_oss",
            "minimax_m2",
            "deepseek_v32",
            "deepseek_v4",
            "gigachat35",
            "qwen3_coder",
            "functionary_v31",
            "deepseek_v3",
            "deepseek_v31",
            "mistral_args",
            "mistral",
            "cohere",
            "apertus",
            "apriel",
            "gigachat",
            "gigachat3",
            "gemma4",
            "functiongemma",
            "firefunction",
            "granite",
            "lfm2",
            "pythonic",
            "llama3_json",
            "agent",
            "hermes",
        )
    },
)
