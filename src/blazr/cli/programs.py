"""PROGRAMS: what `blazr launch` runs, and how each program is told of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from blazr.core.table import Table

# Of a context, the share that a program may have answered at once.
_ANSWER_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """The server that a program is to use.

    Args:
        url: Its address, without ``/v1``.
        key: Its API key, or any text where it has none.
        model: The model's name there.
        context: Tokens of its context; None where the server does not say.
    """

    url: str
    key: str
    model: str
    context: int | None

    @property
    def answer(self) -> int | None:
        """Tokens that an answer may have."""
        return None if self.context is None else max(self.context // _ANSWER_SHARE, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How a program is told.

    Args:
        env: Environment variables.
        args: Arguments before the user's own.
        files: Files by name, which lie in the directory that ``{files}`` in an argument stands for.
    """

    env: Mapping[str, str]
    args: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def args_in(self, folder: str) -> list[str]:
        """The arguments, where the files lie in ``folder``."""
        return [each.replace("{files}", folder) if self.files else each for each in self.args]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be launched.

    Args:
        name: What it is called, as a command, too.
        install: How it is installed.
        settings: What tells it of a server.
    """

    name: str
    install: str
    settings: Callable[[LaunchTarget], LaunchSettings]


def claude(target: LaunchTarget) -> LaunchSettings:
    """Claude Code."""
    names = ("MODEL", *(f"DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    env = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_API_KEY": "",  # one of the user's would go before the token
        **{f"ANTHROPIC_{name}": target.model for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context is not None:
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.answer)
    return LaunchSettings(env=env)


def codex(target: LaunchTarget) -> LaunchSettings:
    """Codex."""
    provider = (
        f'{{name = "blazr", base_url = {json.dumps(target.url + "/v1")}, '
        'env_key = "OPENAI_API_KEY", wire_api = "responses"}'
    )
    values = {
        "model_provider": '"blazr"',
        "model_providers.blazr": provider,
        "model": json.dumps(target.model),
        "web_search": '"disabled"',
    }
    if target.context is not None:
        values["model_context_window"] = str(target.context)
    args = [part for name, value in values.items() for part in ("-c", f"{name}={value}")]
    return LaunchSettings(env={"OPENAI_API_KEY": target.key}, args=args)


def opencode(target: LaunchTarget) -> LaunchSettings:
    """Set up opencode."""
    model: dict[str, object] = {"name": target.model, "tool_call": True}
    if target.context is not None:
        model["limit"] = {"context": target.context, "output": target.answer}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "blazr",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key},
        "models": {target.model: model},
    }
    name = f"blazr/{target.model}"
    config = {"provider": {"blazr": provider}, "model": name, "small_model": name}
    return LaunchSettings(env={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def aider(target: LaunchTarget) -> LaunchSettings:
    """Set up aider."""
    name = f"openai/{target.model}"
    args = ["--model", name, "--no-show-model-warnings"]
    files = {}
    if target.context is not None:
        about = {
            "max_input_tokens": target.context,
            "max_output_tokens": target.answer,
            "max_tokens": target.answer,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        files = {"models.json": json.dumps({name: about}, indent=2)}
        args += ["--model-metadata-file", "{files}/models.json"]
    env = {"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.key}
    return LaunchSettings(env=env, args=args, files=files)


def open_webui(target: LaunchTarget) -> LaunchSettings:
    """Open WebUI."""
    env = {
        "OPENAI_API_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key,
        "ENABLE_OLLAMA_API": "false",
        "DEFAULT_MODELS": target.model,
        "TASK_MODEL_EXTERNAL": target.model,
    }
    # by itself it takes port 8080, as blazr serve does
    return LaunchSettings(env=env, args=["serve", "--port", "3000"])


PROGRAMS: Table[Program] = Table.of(
    "program",
    (
        Program("claude", "npm install -g @anthropic-ai/claude-code", claude),
        Program("codex", "npm install -g @openai/codex", codex),
        Program("opencode", "npm install -g opencode-ai", opencode),
        Program("aider", "pip install aider-chat", aider),
        Program("open-webui", "pip install open-webui", open_webui),
    ),
)
