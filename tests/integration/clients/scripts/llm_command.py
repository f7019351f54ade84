"""The command `llm`, with a row for the server in its extra-openai-models.yaml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks import MAX_TOKENS, MODEL, QUESTION, check, is_text, is_weather, run

SCHEMA = (
    '{"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome"]},'
    '"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"],'
    '"additionalProperties":false}'
)


def llm(url: str, *arguments: str, max_tokens: int = MAX_TOKENS) -> str:
    """What the command prints."""
    row = (
        f"- model_id: blazr\n  model_name: {MODEL}\n  api_base: {url}/v1\n  supports_schema: true\n"
    )
    Path("extra-openai-models.yaml").write_text(row, encoding="utf-8")
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(max_tokens)]
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "blazr", *options, *arguments, "--key", "none"],
        env={"LLM_USER_PATH": str(Path.cwd()), "HOME": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@check
def chat(url: str) -> None:
    is_text(llm(url, QUESTION, "--no-stream"))


@check
def stream(url: str) -> None:
    assert llm(url, QUESTION) == llm(url, QUESTION, "--no-stream")


@check
def json(url: str) -> None:
    is_weather(llm(url, QUESTION, "--schema", SCHEMA, max_tokens=100))


run()
