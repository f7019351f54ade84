"""Take the pictures in docs/images: the chat page in a real Chromium, with replies made up for it.

Run: python tools/screenshots.py
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw
from typing_extensions import override

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Page, Route, sync_playwright  # noqa: E402  (after the path)

from blazr.server.served import ServedLLM  # noqa: E402
from tests.browser.conftest import CHROMIUM, models_saying  # noqa: E402
from tests.support.loopback import serving_models  # noqa: E402
from tests.support.scripted import ScriptedEngine  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DESKTOP, PHONE, TALL = (1200, 880), (390, 780), (1000, 1100)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

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


SEEN = "A **lighthouse** on a rock, at sunset, with its light on. High tide is at **21:40**."
STEP = {"index": 0, "id": "c1", "server_label": "tides", "name": "next_high_tide"}
STEP |= {"arguments": '{"place": "Cabo da Roca"}', "status": "completed", "output": "21:40"}
CAPABILITIES = {"eyes": ["completion", "vision", "audio"], "brush": ["image"], "voice": ["speech"]}


def drawing(hour: float) -> bytes:
    """A lighthouse in the evening, or at night, as a PNG."""
    image = Image.new("RGB", (480, 300))
    draw = ImageDraw.Draw(image)
    for row in range(300):
        low = row / 300
        evening = [int(70 + 180 * low), int(50 + 90 * low), int(110 - 60 * low)]
        draw.line((0, row, 480, row), fill=tuple(int(part * (1 - hour)) for part in evening))
    draw.polygon([(255, 70), (480, 20), (480, 110)], fill=(250, 230, 150))
    draw.polygon([(215, 300), (228, 90), (262, 90), (275, 300)], fill=(235, 235, 230))
    draw.rectangle((225, 60, 265, 90), fill=(190, 40, 30))
    draw.ellipse((120, 255, 380, 380), fill=(40, 36, 44))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def answer_for(route: Route) -> None:
    """What models with eyes, a brush and a voice would say."""
    path = route.request.url.rpartition("/v1/")[2]
    if path == "models":
        cards = [
            {"id": name, "capabilities": each, "meta": {}} for name, each in CAPABILITIES.items()
        ]
        route.fulfill(json={"data": cards})
    elif path == "images/generations":
        route.fulfill(json={"data": [{"b64_json": b64encode(drawing(0.75)).decode()}]})
    elif path == "chat/completions":
        steps = [{"delta": {"mcp_calls": [STEP]}}, {"delta": {"content": SEEN}}]
        steps.append({"delta": {}, "finish_reason": "stop"})
        lines = [f"data: {json.dumps({'choices': [each]})}\n\n" for each in steps]
        route.fulfill(body="".join(lines), content_type="text/event-stream")
    else:
        route.continue_()


def take_media(page: Page) -> None:
    """A picture that is asked about, and one that is made."""
    page.route("**/v1/**", answer_for)
    page.reload()
    page.locator("#model option").nth(1).wait_for(state="attached")
    page.set_input_files(
        "#choose-files", {"name": "roca.png", "mimeType": "image/png", "buffer": drawing(0)}
    )
    page.locator("#files img").wait_for()
    page.fill("#box", "What is this, and when is high tide there?")
    page.keyboard.press("Enter")
    page.locator(".assistant strong", has_text="lighthouse").wait_for()
    page.select_option("#model", "brush")
    ask(page, "The same lighthouse at night")
    page.screenshot(path=IMAGES / "chat-media.png")


class Pace(threading.Event):
    """Stands where an engine's ``go`` is, so that it writes at a readable speed."""

    @override
    def wait(self, timeout: float | None = None) -> bool:
        """One step."""
        time.sleep(0.012)
        return True


def ask(page: Page, text: str) -> None:
    """Ask, and wait for the end of the reply."""
    page.fill("#box", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".stats li")


def main() -> None:
    """Take every picture."""
    models = models_saying(EXPLANATION, CALL)
    with serving_models(models) as running, sync_playwright() as playwright:
        for slot in models.slots:
            body = {"model": slot.source.name, "prompt": "load"}
            running.client.post("/v1/completions", json=body)
            assert isinstance(slot.model, ServedLLM)
            engine = slot.model.llm.core.engine
            assert isinstance(engine, ScriptedEngine)
            engine.go = Pace()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def page_of(size: tuple[int, int], scheme: Literal["light", "dark"]) -> Page:
            page = browser.new_page(
                viewport={"width": size[0], "height": size[1]},
                is_mobile=size == PHONE,
                has_touch=size == PHONE,
                color_scheme=scheme,
            )
            page.goto(running.url)
            page.locator("#model option").nth(1).wait_for(state="attached")
            return page

        for scheme in SCHEMES:
            page = page_of(DESKTOP, scheme)
            ask(page, "What is a state space model, in short?")
            page.screenshot(path=IMAGES / f"chat-{scheme}.png")
        page = page_of(PHONE, "light")
        page.select_option("#model", "model-1")
        page.click("#open-settings")
        page.fill("#tools", json.dumps([{"type": "function", "function": {"name": "forecast"}}]))
        page.keyboard.press("Escape")
        ask(page, "Do I need an umbrella in Lisbon?")
        page.screenshot(path=IMAGES / "chat-phone.png")
        take_media(page_of(TALL, "light"))
        page = page_of(DESKTOP, "dark")
        page.goto(f"{running.url}/docs")
        page.locator(".operation", has_text="/v1/chat/completions").first.click()
        page.screenshot(path=IMAGES / "api.png")
        browser.close()


if __name__ == "__main__":
    main()
