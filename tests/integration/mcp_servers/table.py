"""Other people's servers of tools: one row each, with a call and what its answer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "mcp"
SDKS = ("2.3.0", "1.30.0")  # of Python; their source distributions hold the examples
PROGRAMS = ("mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19")  # beside the first
NPM = (
    "@modelcontextprotocol/inspector@0.15.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
)
NODE_MODULES = BUILD / "npm" / "node_modules" / "@modelcontextprotocol"


def python(sdk: str) -> Path:
    """The Python that has a version of the SDK."""
    return BUILD / f"sdk-{sdk}" / "bin" / "python"


@dataclass(frozen=True)
class Served:
    """A server, and calls of its tools.

    Attributes:
        name: What it is called here.
        over: How it is spoken to.
        command: Its program and arguments; ``{port}`` and ``{folder}`` are filled in.
        calls: For each tool, its arguments, and a part of what it says; of an error, after ``!``.
        cwd: Where it runs.
        env: What it finds there; filled in likewise.
        num_tools: How many it has.
    """

    name: str
    over: Literal["stdio", "http"]
    command: tuple[str, ...]
    calls: Mapping[str, tuple[Mapping[str, object], str]]
    num_tools: int
    cwd: Path = ROOT
    env: Mapping[str, str] = field(default_factory=dict)


def _example(
    sdk: str, name: str, over: Literal["stdio", "http"], *more: str, **row: object
) -> Served:
    """A row for a server in ``examples/servers`` of the SDK."""
    module = f"mcp_{name.replace('-', '_')}"
    arguments = (*more, "--port", "{port}") if over == "http" else more
    return Served(
        f"{sdk} {name} {' '.join(more)}".strip(),
        over,
        (str(python(sdk)), "-m", module, *arguments),
        cwd=BUILD / f"mcp-{sdk}" / "examples" / "servers" / name,
        **row,
    )


def _snippet(sdk: str, module: str, **row: object) -> Served:
    """A row for a server in one file of the SDK's examples."""
    folder = "mcpserver" if sdk.startswith("2") else "fastmcp"
    code = f"import {module}; {module}.mcp.run()"
    return Served(
        f"{sdk} {module}",
        "stdio",
        (str(python(sdk)), "-c", code),
        cwd=BUILD / f"mcp-{sdk}" / "examples" / folder,
        **row,
    )


def _of_sdk(sdk: str) -> list[Served]:
    stream = {"interval": 0.01, "count": 3, "caller": "blazr"}
    notes: dict[str, tuple[Mapping[str, object], str]] = {
        "start-notification-stream": (stream, "Sent 3 notifications")
    }
    shrimp = {"tank": {"shrimp": [{"name": "Ann"}]}, "extra_names": ["Bo"]}
    everything: dict[str, tuple[Mapping[str, object], str]] = {
        "test_simple_text": ({}, "simple text response"),
        "test_image_content": ({}, "[image/png, which is not shown]"),
        "test_embedded_resource": ({}, "embedded resource content"),
        "test_multiple_content_types": ({}, "Multiple content types"),
        "test_tool_with_logging": ({}, "executed successfully"),
        "test_tool_with_progress": ({}, ""),
        "test_reconnection": ({}, "Reconnection test completed"),
        "test_error_handling": ({}, "!intentionally returns an error"),
    }
    is_new = sdk.startswith("2")
    rows = [
        _example(
            sdk,
            "simple-tool",
            "stdio",
            calls={"fetch": ({}, "!" if is_new else "!url")},
            num_tools=1,
        ),
        _example(
            sdk,
            "simple-pagination",
            "stdio",
            calls={"tool_23": ({"a": 1}, "Called tool 'tool_23'")},
            num_tools=25,
        ),
        _example(sdk, "simple-streamablehttp", "http", calls=notes, num_tools=1),
        _example(sdk, "simple-streamablehttp", "http", "--json-response", calls=notes, num_tools=1),
        _example(sdk, "simple-streamablehttp-stateless", "http", calls=notes, num_tools=1),
        _example(
            sdk, "everything-server", "http", calls=everything, num_tools=28 if is_new else 13
        ),
        _snippet(sdk, "echo", calls={"echo_tool": ({"text": "hi"}, "hi")}, num_tools=1),
        _snippet(sdk, "complex_inputs", calls={"name_shrimp": (shrimp, "Bo")}, num_tools=1),
        _snippet(
            sdk, "unicode_example", calls={"hello_unicode": ({}, "¡Hola, 世界! 👋")}, num_tools=3
        ),
    ]
    if is_new:
        rows.append(
            _example(
                sdk,
                "simple-pagination",
                "http",
                "--transport",
                "streamable-http",
                calls={"tool_23": ({}, "Called tool 'tool_23'")},
                num_tools=25,
            )
        )
    return rows


def _node(
    name: str, over: Literal["stdio", "http"], file: str, *more: str, **row: object
) -> Served:
    return Served(name, over, ("node", str(NODE_MODULES / file), *more), **row)


def _program(name: str, *more: str, **row: object) -> Served:
    return Served(name, "stdio", (str(python(SDKS[0]).with_name(name)), *more), **row)


_EVERYTHING: Mapping[str, tuple[Mapping[str, object], str]] = {
    "echo": ({"message": "hi"}, "hi"),
    "get-sum": ({"a": 20, "b": 22}, "42"),
    "get-tiny-image": ({}, "[image/png, which is not shown]"),
    "get-structured-content": ({"location": "Chicago"}, "conditions"),
    "trigger-long-running-operation": ({"duration": 0.2, "steps": 2}, "completed"),
}
_ENTITY = {"entities": [{"name": "Ann", "entityType": "person", "observations": ["swims"]}]}
_THOUGHT = {"thought": "x", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}

SERVERS = (
    *(row for sdk in SDKS for row in _of_sdk(sdk)),
    _node(
        "TypeScript simpleStreamableHttp",
        "http",
        "sdk/dist/esm/examples/server/simpleStreamableHttp.js",
        calls={
            "greet": ({"name": "Ann"}, "Hello, Ann!"),
            "multi-greet": ({"name": "Ann"}, "Good morning, Ann!"),
            "list-files": ({}, "file:///example"),
        },
        num_tools=7,
        env={"MCP_PORT": "{port}"},
    ),
    _node(
        "TypeScript mcpServerOutputSchema",
        "stdio",
        "sdk/dist/esm/examples/server/mcpServerOutputSchema.js",
        calls={"get_weather": ({"city": "Rome", "country": "IT"}, "temperature")},
        num_tools=1,
    ),
    _node(
        "everything stdio",
        "stdio",
        "server-everything/dist/index.js",
        "stdio",
        calls=_EVERYTHING,
        num_tools=13,
    ),
    _node(
        "everything http",
        "http",
        "server-everything/dist/index.js",
        "streamableHttp",
        calls=_EVERYTHING,
        num_tools=13,
        env={"PORT": "{port}"},
    ),
    _node(
        "filesystem",
        "stdio",
        "server-filesystem/dist/index.js",
        "{folder}",
        calls={
            "write_file": ({"path": "{folder}/a.txt", "content": "remember"}, "Successfully"),
            "read_text_file": ({"path": "{folder}/a.txt"}, "remember"),
            "list_directory": ({"path": "/"}, "!Access denied"),
        },
        num_tools=14,
    ),
    _node(
        "memory",
        "stdio",
        "server-memory/dist/index.js",
        calls={"create_entities": (_ENTITY, "swims"), "read_graph": ({}, "swims")},
        num_tools=9,
        env={"MEMORY_FILE_PATH": "{folder}/memory.json"},
    ),
    _node(
        "sequential-thinking",
        "stdio",
        "server-sequential-thinking/dist/index.js",
        calls={"sequentialthinking": (_THOUGHT, "thoughtNumber")},
        num_tools=1,
    ),
    _program(
        "mcp-server-time",
        calls={
            "get_current_time": ({"timezone": "Asia/Tokyo"}, "+09:00"),
            "convert_time": ({"source_timezone": "none"}, "!"),
        },
        num_tools=2,
    ),
    _program(
        "mcp-server-git",
        "--repository",
        str(ROOT),
        calls={"git_log": ({"repo_path": str(ROOT), "max_count": 1}, "Author")},
        num_tools=12,
    ),
)
