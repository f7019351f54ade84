"""The chat page, as somebody at a browser meets it."""

from __future__ import annotations

import json
import re

import pytest

from tests.browser.conftest import Steps
from tests.support.loopback import Loopback
from tests.support.scripted import wait_until

pytestmark = pytest.mark.browser

STORY = "Once there was a **brave** cat."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
HOSTILE = """<script>window.hacked=1</script>
<img src=x onerror="window.hacked=1">
[click](javascript:window.hacked=1) [click](JaVa\tScript:alert(1))
![x](data:text/html,<script>1</script>)
<a href="javascript:window.hacked=1">raw</a> [ok](https://example.com/"onmouseover="window.hacked=1)

| <svg onload=window.hacked=1> | b |
|---|---|
| `<b>x</b>` | [l](vbscript:x) |

```html"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked=1</script>
```
"""


def ask(page, text: str) -> None:
    page.fill("#box", text)
    page.keyboard.press("Enter")


def last_reply(page):
    return page.locator(".assistant").last


def wait_done(page) -> None:
    page.wait_for_selector("#stop", state="hidden")
    page.wait_for_selector(".assistant:not(.running)")


def prompts(running: Loopback, place: int = 0) -> list[str]:
    """What an engine was asked, in text."""
    core = running.models.slots[place].model.llm.core
    return [
        core.tokenizer.decode(list(each.prompt_ids), skip_special=False)
        for each in core.engine.submitted
    ]


def test_ask_and_read(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    assert page.evaluate("document.activeElement.id") == "box"
    ask(page, "Tell me of <b>a cat</b>")
    wait_done(page)
    assert page.locator(".user .said").inner_text() == "Tell me of <b>a cat</b>"
    assert last_reply(page).locator(".markdown strong").inner_text() == "brave"
    told = last_reply(page).locator(".stats").inner_text().replace("\n", " ")
    assert re.search(r"\d+ tokens.*cache 2 of \d+", told)
    assert page.locator("#status").inner_text() == "Done."


def test_it_goes_on_where_it_was_after_a_reload(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    ask(page, "one")
    wait_done(page)
    page.reload()
    page.click("#chats .open")
    assert last_reply(page).locator(".reply").inner_text() == "Once there was a brave cat."
    ask(page, "two")
    wait_done(page)
    assert page.locator(".assistant").count() == 2
    assert re.search("one.*brave.*two", prompts(running)[-1], re.DOTALL)


def test_a_reply_is_kept_as_far_as_it_came_when_the_page_is_left(saying, new_page) -> None:
    running = saying("one two three four five six")
    running.client.post("/generate", json={"prompt": "load", "max_tokens": 1})
    running.engine.go = Steps(3)
    page = new_page(running.url)
    ask(page, "count")
    page.wait_for_selector(".running .reply p")
    page.reload()
    running.engine.go.set()
    page.click("#chats .open")
    assert last_reply(page).locator(".reply").inner_text().startswith("one")
    assert last_reply(page).locator(".notice").is_visible()
    assert last_reply(page).locator(".continue").is_visible()


def test_stop_ends_the_reply_on_the_server(saying, new_page) -> None:
    running = saying("one two three four five six", keep_alive_s=0.05)  # tells who is gone
    running.client.post("/generate", json={"prompt": "load", "max_tokens": 1})
    running.engine.go = Steps(3)
    page = new_page(running.url)
    ask(page, "count")
    page.wait_for_selector(".running .reply p")
    assert page.locator("#send").is_hidden()
    page.keyboard.press("Escape")
    wait_done(page)
    assert last_reply(page).locator(".reply").inner_text().startswith("one")
    assert last_reply(page).locator(".notice").inner_text() == "Stopped."
    assert "≈" in last_reply(page).locator(".stats").inner_text()
    wait_until(lambda: running.engine.aborted)
    assert running.engine.num_running == 0
    running.engine.go.set()


def test_retry_and_edit_ask_without_what_came_after(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    for text in ("first question", "second question"):
        ask(page, text)
        wait_done(page)
    page.keyboard.press("Alt+r")
    wait_done(page)
    assert prompts(running)[-1] == prompts(running)[-2]
    assert page.locator(".message").count() == 4
    page.locator(".user").first.get_by_label("Edit and send again").click()
    area = page.get_by_label("Edit the message")
    assert area.input_value() == "first question"
    area.fill("another question")
    page.keyboard.press("Enter")
    wait_done(page)
    assert page.locator(".message").count() == 2
    assert "another question" in prompts(running)[-1]
    assert "second question" not in prompts(running)[-1]


def test_models_can_be_switched(saying, new_page) -> None:
    running = saying("I am the first.", "I am the second.")
    page = new_page(running.url)
    ask(page, "who?")
    wait_done(page)
    page.select_option("#model", "model-1")
    ask(page, "and now?")
    wait_done(page)
    texts = page.locator(".assistant .reply").all_inner_texts()
    assert texts == ["I am the first.", "I am the second."]
    page.reload()
    page.locator("#model option").nth(1).wait_for(state="attached")
    assert page.locator("#model").input_value() == "model-1"


def test_the_chosen_model_stays_where_the_models_cannot_be_listed(saying, new_page) -> None:
    running = saying("I am the first.", "I am the second.")
    page = new_page(running.url)
    page.locator("#model option").nth(1).wait_for(state="attached")
    page.select_option("#model", "model-1")
    page.route("**/v1/models", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    page.keyboard.press("Alt+s")
    page.click("#set-key")
    page.fill("#key", "a key")
    page.keyboard.press("Enter")  # which lists the models again
    page.get_by_text("busy").wait_for()
    assert page.locator("#model").input_value() == "model-1"
    ask(page, "who?")
    wait_done(page)
    assert last_reply(page).locator(".reply").inner_text() == "I am the second."
    page.complaints.clear()  # the browser notes each 503


def test_settings_reach_the_request(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    page.keyboard.press("Alt+s")
    page.fill("#system", "You are a cat.")
    page.fill("#n-temperature", "0.25")
    page.fill("#n-seed", "7")
    page.fill("#n-top_p", "9")  # not a probability: it is not sent
    page.fill("#stop-strings", "END\nFIN")
    page.keyboard.press("Escape")
    ask(page, "hi")
    wait_done(page)
    sent = running.engine.submitted[-1]
    assert (sent.params.temperature, sent.params.seed, sent.params.top_p) == (0.25, 7, 0.9)
    assert "You are a cat." in prompts(running)[-1]


def test_settings_are_forgotten_with_everything(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    page.on("dialog", lambda dialog: dialog.accept())
    ask(page, "one")
    wait_done(page)
    page.keyboard.press("Alt+s")
    page.fill("#system", "You are a cat.")
    page.fill("#n-seed", "7")
    page.click("#forget")
    page.wait_for_selector("#settings", state="hidden")
    assert page.evaluate("Object.keys(localStorage)") == []
    assert page.locator("#chats li").count() == 0
    assert page.locator("#system").input_value() == page.locator("#n-seed").input_value() == ""
    ask(page, "two")
    wait_done(page)
    assert "You are a cat." not in prompts(running)[-1]
    assert running.engine.submitted[-1].params.seed is None


def test_thoughts_are_folded(saying, new_page) -> None:
    page = new_page(saying("<think>\nHm, a *cat*.\n</think>\n\nA cat.").url)
    ask(page, "what?")
    wait_done(page)
    details = last_reply(page).locator("details.thinking")
    assert details.get_attribute("open") is None
    assert last_reply(page).locator(".reply").inner_text() == "A cat."
    details.locator("summary").press("Enter")
    assert details.locator(".markdown em").inner_text() == "cat"


def test_calls_of_tools_are_shown_and_answered(saying, new_page) -> None:
    running = saying(CALL)
    page = new_page(running.url)
    page.keyboard.press("Alt+s")
    page.fill("#tools", json.dumps([TOOL]))
    page.keyboard.press("Escape")
    ask(page, "weather in Rome?")
    wait_done(page)
    card = page.locator(".call")
    assert card.locator("strong").inner_text() == "weather"
    assert json.loads(card.locator("pre").inner_text()) == {"city": "Rome", "days": 2}
    card.locator("textarea").fill("sunny, 24 °C")
    page.get_by_text("Send results").click()
    page.wait_for_selector(".call .result")
    wait_done(page)
    assert "sunny, 24 °C" in prompts(running)[-1]


def test_nothing_that_a_model_says_can_run(saying, new_page) -> None:
    page = new_page(saying(f"<think>{HOSTILE}</think>\n{HOSTILE}").url)
    ask(page, HOSTILE)
    wait_done(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#log :is(script, img, iframe, object, [onerror], [onload])").count() == 0
    links = page.evaluate("[...document.querySelectorAll('#log a')].map((a) => a.protocol)")
    assert set(links) <= {"https:", "http:"}
    policy = page.request.get(page.url).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_the_browser_refuses_markup_even_from_our_own_code(saying, new_page) -> None:
    page = new_page(saying(STORY).url)
    tried = page.evaluate("""() => {
        try { document.body.innerHTML = "<b>x</b>"; return "ran"; } catch (e) { return e.name; }
    }""")
    assert tried == "TypeError"
    page.complaints.clear()


def test_a_key_is_asked_for_and_used(saying, new_page) -> None:
    running = saying(STORY, api_keys=("secret",))
    page = new_page(running.url)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    page.locator("#model option").wait_for(state="attached")
    ask(page, "hi")
    wait_done(page)
    assert "brave" in last_reply(page).inner_text()
    assert page.evaluate("localStorage.getItem('blazr.key')") is None
    page.complaints.clear()  # the browser notes each 401


def test_errors_are_told_and_can_be_tried_again(saying, new_page) -> None:
    running = saying(STORY)
    running.client.post("/generate", json={"prompt": "load", "max_tokens": 1})
    running.engine.fails_with = "out of luck"
    page = new_page(running.url)
    ask(page, "hi")
    wait_done(page)
    assert "out of luck" in last_reply(page).get_by_role("alert").inner_text()
    running.engine.fails_with = ""
    last_reply(page).get_by_label("Try again").click()
    page.wait_for_selector(".assistant strong")
    page.complaints.clear()  # the browser notes the 500


def test_everything_works_from_the_keyboard(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    wait_done(page)
    page.keyboard.press("ArrowUp")
    assert page.get_by_label("Edit the message").input_value() == "hello"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "box"
    page.keyboard.press("Alt+n")
    assert page.locator("#empty").is_visible()
    for _ in range(4):  # from the box backwards to the chats, past what is in between
        page.keyboard.press("Alt+c")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator(".message").count() == 2
    page.locator("body").press("Tab")
    page.keyboard.press("?")
    page.wait_for_selector("#shortcuts[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "box"
    # a ring shows where the focus is
    page.keyboard.press("Tab")
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"


def test_light_and_dark_follow_the_system_and_the_button(saying, new_page) -> None:
    url = saying(STORY).url
    shade = "getComputedStyle(document.body).backgroundColor"
    dark = new_page(url, color_scheme="dark").evaluate(shade)
    page = new_page(url, color_scheme="light")
    light = page.evaluate(shade)
    assert light != dark
    page.keyboard.press("Alt+t")  # light
    page.keyboard.press("Alt+t")  # dark
    assert page.evaluate(shade) == dark
    page.reload()
    assert page.evaluate(shade) == dark


def test_it_works_where_nothing_may_be_kept(saying, new_page) -> None:
    page = new_page("about:blank")
    page.add_init_script("""for (const name of ["localStorage", "sessionStorage"]) {
        const get = () => { throw new DOMException("forbidden", "SecurityError"); };
        Object.defineProperty(window, name, { get });
    }""")
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(saying(STORY).url)
    themes = []
    for _ in range(3):
        page.click("#theme")
        themes.append(page.evaluate("document.documentElement.dataset.theme"))
    assert themes == ["light", "dark", "auto"]
    ask(page, "hi")
    wait_done(page)
    assert "cannot be kept" in page.locator("#status").inner_text()
    page.get_by_label("Delete “hi”").click()
    assert page.locator("#chats li").count() == 0


def test_it_fits_a_phone(saying, new_page) -> None:
    wide = "word " * 40 + "\n\n```\n" + "x" * 400 + "\n```\n\n" + "y" * 300
    page = new_page(
        saying(wide).url, viewport={"width": 360, "height": 640}, is_mobile=True, has_touch=True
    )
    ask(page, "z" * 300)
    wait_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.querySelector('#scroller').scrollWidth") <= 360
    assert page.locator("#sidebar").is_hidden()
    page.tap("#menu")
    page.locator("#sidebar").wait_for(state="visible")
    page.tap("#chats .open")
    page.locator("#sidebar").wait_for(state="hidden")
    small = page.evaluate("""[...document.querySelectorAll("button, select, textarea")]
        .filter((each) => each.checkVisibility({ visibilityProperty: true }))
        .map((each) => each.getBoundingClientRect())
        .filter(({ height }) => height < 32).length""")
    assert small == 0


def test_nothing_comes_from_elsewhere(saying, new_page) -> None:
    running = saying("![pixel](https://example.com/x.png) <https://example.com>")
    page = new_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(running.url)
    ask(page, "hi")
    wait_done(page)
    assert len(asked) > 5
    assert [url for url in asked if not url.startswith(running.url)] == []


def test_it_works_below_the_path_of_a_proxy(saying, new_page) -> None:
    running = saying(STORY, root_path="/some/where")
    page = new_page(f"{running.url}/some/where/")
    ask(page, "hi")
    wait_done(page)
    assert "brave" in last_reply(page).inner_text()
    page.click("text=API")
    page.wait_for_selector(".operation")
