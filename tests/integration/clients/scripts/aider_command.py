"""aider's command, asked a question about a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks import KEY, MODEL, QUESTION, check, is_text, run

SETTINGS = f"""
- name: openai/{MODEL}
  edit_format: ask
  extra_params:
    stop: ["."]  # or the end of the context would be the end
"""


@check
def ask(url: str) -> None:
    Path("story.txt").write_text("A dog ran.\n", encoding="utf-8")
    Path("settings.yml").write_text(SETTINGS, encoding="utf-8")
    flags = "--no-git --yes-always --no-check-update --no-analytics --no-show-model-warnings"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "aider", *flags.split()),
            *("--model", f"openai/{MODEL}", "--model-settings-file", "settings.yml"),
            *("--openai-api-base", f"{url}/v1", "--openai-api-key", KEY),
            *("--chat-history-file", "history.md", "--message", QUESTION, "story.txt"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, answered = Path("history.md").read_text("utf-8").partition(QUESTION)
    # Lines with > are aider's own: what it found wrong, and how many tokens there were.
    is_text("".join(line for line in answered.splitlines() if not line.startswith(">")))


run()
