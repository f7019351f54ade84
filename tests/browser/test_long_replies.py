"""A reply of 200 kB of what is dear to draw does not freeze the tab while it comes."""

from __future__ import annotations

import pytest

from tests.browser.conftest import models_saying
from tests.browser.test_chat_page import ask, last_reply, wait_done
from tests.support.loopback import serving_models

pytestmark = pytest.mark.browser

SIZE = 200_000
LONG_MS = 50  # what browsers call a long task
# Answers chats with a stream of the page's own, as no engine of ours says so much so fast, and
# notes how long the tab took to come round again.
STREAM = """([piece, size]) => {
  const real = window.fetch;
  const event = (delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\\n\\n`;
  window.fetch = (url, ...rest) => {
    if (!String(url).includes("chat/completions")) return real(url, ...rest);
    const encoder = new TextEncoder();
    const part = piece.repeat(Math.ceil(1000 / piece.length));
    let sent = 0;
    const body = new ReadableStream({
      async pull(controller) {
        await new Promise((done) => setTimeout(done, 5));
        controller.enqueue(encoder.encode(event({ content: part })));
        sent += part.length;
        if (sent < size) return;
        controller.enqueue(encoder.encode("data: [DONE]\\n\\n"));
        controller.close();
      },
    });
    const headers = { "Content-Type": "text/event-stream" };
    return Promise.resolve(new Response(body, { headers }));
  };
  window.turns = [];
  let last = performance.now();
  const tick = () => {
    const now = performance.now();
    window.turns.push(now - last);
    last = now;
    setTimeout(tick, 1);
  };
  tick();
}"""

DRAWN_ONCE = """async (text) => {
  const { renderMarkdown } = await import("/ui/markdown.js");
  const root = document.createElement("div");
  document.body.append(root);
  const start = performance.now();
  root.append(renderMarkdown(text));
  root.getBoundingClientRect();
  const took = performance.now() - start;
  root.remove();
  return took;
}"""


@pytest.fixture(scope="module")
def running():
    with serving_models(models_saying("x")) as running:
        yield running


@pytest.mark.parametrize("piece", ["[", "**a ", "word ", "![", "a_", "$5 "])
def test_the_tab_stays_usable(running, new_page, piece: str) -> None:
    page = new_page(running.url)
    page.evaluate(STREAM, [piece, SIZE])
    ask(page, "hi")
    wait_done(page)
    assert len(last_reply(page).inner_text()) > SIZE // 2
    turns = page.evaluate("window.turns")
    whole = page.evaluate(DRAWN_ONCE, piece * (SIZE // len(piece)))
    # Where the page does not rest between drawings, some of these take 5 to 13 times as much.
    held = [each for each in turns if each > LONG_MS]
    assert max(turns) < 2 * whole
    assert sum(held) < 3 * whole
