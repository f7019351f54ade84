"""Take the pictures in docs/images: the chat page in a real Chromium, with replies made up for it.

Run: python tools/screenshots.py
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Page, sync_playwright  # noqa: E402  (after the path)

from tests.browser.conftest import CHROMIUM, models_saying  # noqa: E402
from tests.support.loopback import serving_models  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DESKTOP = {"viewport": {"width": 1200, "height": 880}}
PHONE = {"viewport": {"width": 390, "height": 780}, "is_mobile": True, "has_touch": True}

EXPLANATION = """<think>
A short explanation, with code. A table helps to compare.
</think>

A **state space model** reads a sequence once, from left to right, and keeps a state of
*fixed size*.

```python
def scan(tokens, state):
    \"\"\"One step a token; the state never grows.\"\"\"
    for token in tokens:  # O(n), not O(n²)
        state = 0.9 * state + embed(token)
        yield readout(state)
```

| layer | memory per token | looks back |
|---|---:|:--|
| attention | grows | exactly |
| Mamba | none | in summary |

1. Use Mamba layers for most of the depth
2. Keep a few attention layers, for `copying`

> Hybrids do both: see [the paper](https://arxiv.org/abs/2312.00752).
"""
CALL = """<think>
I need the forecast for that.
</think>

Let me look.
<tool_call>
{"name": "forecast", "arguments": {"city": "Lisbon", "days": 2, "units": "metric"}}
</tool_call>"""


class Pace:
    """Stands where an engine's ``go`` is, so that it writes at a readable speed."""

    def wait(self) -> None:
        """One step."""
        time.sleep(0.012)

    def set(self) -> None:
        """Go on; it does anyway."""


def ask(page: Page, text: str) -> None:
    """Ask, and wait for the end of the reply."""
    page.fill("#box", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".stats li")


def main() -> None:
    """Take every picture."""
    models = models_saying(EXPLANATION, CALL)
    with serving_models(models) as running, sync_playwright() as playwright:
        for seat in models.seats:
            body = {"model": seat.source.name, "prompt": "load"}
            running.client.post("/v1/completions", json=body)
            seat.service.llm.core.engine.go = Pace()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def page_of(**settings: object) -> Page:
            page = browser.new_page(**settings)
            page.goto(running.url)
            page.locator("#model option").nth(1).wait_for(state="attached")
            return page

        for scheme in ("light", "dark"):
            page = page_of(**DESKTOP, color_scheme=scheme)
            ask(page, "What is a state space model, in short?")
            page.screenshot(path=IMAGES / f"chat-{scheme}.png")
        page = page_of(**PHONE, color_scheme="light")
        page.select_option("#model", "model-1")
        page.click("#open-settings")
        page.fill("#tools", json.dumps([{"type": "function", "function": {"name": "forecast"}}]))
        page.keyboard.press("Escape")
        ask(page, "Do I need an umbrella in Lisbon?")
        page.screenshot(path=IMAGES / "chat-phone.png")
        page = page_of(**DESKTOP, color_scheme="dark")
        page.goto(f"{running.url}/docs")
        page.locator(".operation", has_text="/v1/chat/completions").first.click()
        page.screenshot(path=IMAGES / "api.png")
        browser.close()


if __name__ == "__main__":
    main()
