"""Codex, by `blazr launch`: one question, and a command to run or a patch to apply."""

from __future__ import annotations

import json
from pathlib import Path

from checks import check, run, writes_hello

# Its sandbox needs namespaces that not every machine has; what it runs here is of our own making.
FLAGS = ["--dangerously-bypass-approvals-and-sandbox", "--config", "analytics.enabled=false"]
# What Codex is told of a model that it does not know, so that it offers its tool for patches.
MODEL = {
    "slug": "coder",
    "display_name": "coder",
    "apply_patch_tool_type": "freeform",
    "base_instructions": "You are a coding agent.",
    "shell_type": "unified_exec",
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "support_verbosity": False,
    "supported_reasoning_levels": [],
    "experimental_supported_tools": [],
}


@check
def tools(url: str) -> None:
    writes_hello(url, "codex", "commanded", "exec", *FLAGS, "Write hello.txt.")


@check
def apply_patch(url: str) -> None:
    """A tool whose input is held to a grammar."""
    catalog = Path("models.json").resolve()
    catalog.write_text(json.dumps({"models": [MODEL]}), encoding="utf-8")
    flags = [*FLAGS, "--config", f"model_catalog_json={json.dumps(str(catalog))}"]
    writes_hello(url, "codex", "patched", "exec", *flags, "Write hello.txt.")


run()
