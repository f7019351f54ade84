"""The viewer of the API, and the pages' Markdown."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.browser

RENDERED = """async (texts) => {
  const { renderMarkdown, LiveMarkdown } = await import("/ui/markdown.js");
  const live = document.createElement("div");
  const follower = new LiveMarkdown(live);
  return texts.map((text) => {
    const root = document.createElement("div");
    root.append(renderMarkdown(text));
    for (let end = 0; end <= text.length; end += 7) follower.update(text.slice(0, end));
    follower.update(text);
    const names = [...root.querySelectorAll("*")].flatMap((each) =>
      [each.tagName, ...each.getAttributeNames().map((name) => `${each.tagName} ${name}`)]);
    const links = [...root.querySelectorAll("a")].map((each) => each.protocol);
    return { html: root.innerHTML, live: live.innerHTML, names, links };
  });
}"""
PIECES = [
    *"*_~`#>|-+!()[]<>\\\"'&=: \n\n\t",
    *("a", "word", "1. ", "- ", "```", "~~~", "**", "---", "|--|--|", "| a | b |", "    "),
    *("[x](", "](javascript:alert(1))", "<script>", "<img src=x onerror=alert(1)>", "</div>"),
    *("https://example.com", "<https://a.b>", "data:text/html,x", "é", "🙂", "\u202e", "- [x] "),
]
TAGS = """
P H1 H2 H3 H4 H5 H6 HR BR UL OL LI PRE CODE DIV SPAN BUTTON BLOCKQUOTE TABLE THEAD TBODY TR
TH TD STRONG EM DEL A INPUT svg use"""
ALLOWED = {
    *TAGS.split(),
    *("A href", "A target", "A rel", "SPAN class", "SPAN title", "DIV class", "DIV tabindex"),
    *("BUTTON type", "BUTTON class", "BUTTON title", "BUTTON aria-label", "OL start", "LI class"),
    *("INPUT type", "INPUT disabled", "PRE tabindex", "TH class", "TD class"),
    *("svg class", "svg aria-hidden", "use href"),
}
EXAMPLES = {
    "a *b* **c** ***d*** ~~e~~ `f`": "<p>a <em>b</em> <strong>c</strong> "
    "<strong><em>d</em></strong> <del>e</del> <code>f</code></p>",
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "a\nb\\\nc": "<p>a<br>b<br>c</p>",
    "# One #\n## Two": "<h1>One</h1><h2>Two</h2>",
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "\\*a\\* &amp; <b>": "<p>*a* &amp;amp; &lt;b&gt;</p>",
    "``a ` b``": "<p><code>a ` b</code></p>",
    "[a](https://x.y/z_(1))": '<p><a href="https://x.y/z_(1)" target="_blank" '
    'rel="noopener noreferrer nofollow">a</a></p>',
    "*a _b* c_ **d*": "<p><em>a _b</em> c_ **d*</p>",
    "***a* b** and ~~*c*~~": "<p><strong><em>a</em> b</strong> and <del><em>c</em></del></p>",
    "[![a](https://b.c/)](https://d.e/)": '<p><a href="https://d.e/" target="_blank" '
    'rel="noopener noreferrer nofollow"><span class="no-link" title="https://b.c/">a</span></a></p>',
    "[a [b](mailto:c) d](mailto:e)": '<p>[a <a href="mailto:c" target="_blank" '
    'rel="noopener noreferrer nofollow">b</a> d](mailto:e)</p>',
    "[a](javascript:b)": '<p><span class="no-link" title="javascript:b">a</span></p>',
}


@pytest.fixture(scope="module")
def page(chromium):
    from tests.browser.conftest import models_saying
    from tests.support.loopback import serving_models

    with serving_models(models_saying("x")) as running:
        page = chromium.new_page()
        page.goto(f"{running.url}/docs")
        yield page
        page.close()


def test_markdown_is_what_people_expect(page) -> None:
    found = page.evaluate(RENDERED, list(EXAMPLES))
    assert {text: each["html"] for text, each in zip(EXAMPLES, found, strict=True)} == EXAMPLES


def test_markdown_is_the_same_however_it_arrives_and_only_known_elements(page) -> None:
    rng = random.Random(3)
    texts = ["".join(rng.choices(PIECES, k=rng.randint(1, 40))) for _ in range(600)]
    for text, found in zip(texts, page.evaluate(RENDERED, texts), strict=True):
        assert set(found["names"]) <= ALLOWED, text
        assert set(found["links"]) <= {"http:", "https:", "mailto:"}, text
        assert found["live"] == found["html"], text


LONG = {
    "quotes": "> " * 5000 + "x",
    "lists": "- " * 5000 + "x",
    "stars": "*" * 200_000,
    "brackets": "[" * 200_000,
    "closing brackets": "]" * 200_000,
    "links begun": "[a](" * 50_000,
    "pictures begun": "![" * 100_000 + "[a](b)" * 10_000,
    "bold begun": "**a " * 50_000,
    "bold ended": "a** " * 50_000,
    "emphasis in emphasis": "*a **b _c " * 10_000 + "c_ b** a* " * 10_000,
    "snakes": "a_" * 100_000,
    "backticks": "`" * 199_999 + "a",
    "more backticks": " ".join("`" * length for length in range(600)),
    "code": "`a`" * 60_000,
    "angles": "<" * 200_000 + ">",
    "addresses": "<https://" * 20_000,
    "address": "https://a" + "!" * 200_000,
    "h": "h" * 200_000,
    "fence": "```" + "x" * 200_000 + "`",
    "cells": "|" * 20_000 + "\n|--|",
    "rows": "|a|\n|-|\n" + "|b|\n" * 50_000,
    "spaces": "|\n|" + " " * 200_000 + "x",
    "title": "# " + "#" * 200_000,
    "lines": "x\n" * 100_000,
    "blocks": "x\n\n" * 60_000,
    "dollars": "$" * 200_000,
    "prices": "$5 " * 60_000,
    "formulas begun": "\\(a \\[b $$c " * 15_000,
    "formulas in lines": "\\[\n" * 60_000 + "\n" + "$$\n\\[a\n" * 30_000,
    "formulas in sentences": "\\[\n" * 60_000 + "\\] and so on",
}


@pytest.mark.parametrize("name", LONG)
def test_the_time_for_markdown_is_linear(page, name) -> None:
    """It only has to end: most of these would take minutes if it were quadratic or worse."""
    whole = """async (text) => {
        const { renderMarkdown } = await import("/ui/markdown.js");
        const root = document.createElement("div");
        root.append(renderMarkdown(text));
        return root.childNodes.length;
    }"""
    assert page.evaluate(whole, LONG[name]) > 0


def test_the_api_is_shown_and_tried(page) -> None:
    page.fill("#filter", "POST tokenize")
    visible = page.locator("details.operation:visible summary code").all_inner_texts()
    assert visible == ["/tokenize", "/detokenize"]
    row = page.locator("details.operation:visible").first
    row.locator("summary").click()
    assert "add_special_tokens" in row.locator("table").first.inner_text()
    row.locator("textarea").fill('{"prompt": "one two"}')
    row.get_by_role("button", name="Send").click()
    page.wait_for_selector(".answer span")
    assert '"count": 2' in row.locator(".answer").inner_text()


def test_forms_and_parameters_are_shown_and_sent(page) -> None:
    page.fill("#filter", "GET /tokenizer_info")
    row = page.locator("details.operation:visible").first
    row.locator("summary").click()
    row.get_by_label("model").fill("no such model")
    with page.expect_request(lambda request: "tokenizer_info" in request.url) as asked:
        row.get_by_role("button", name="Send").click()
    assert asked.value.url.endswith("/tokenizer_info?model=no+such+model")
    page.fill("#filter", "POST /v1/audio/transcriptions")
    row = page.locator("details.operation:visible").first
    row.locator("summary").click()
    assert "timestamp_granularities" in row.locator("table").first.inner_text()
    sound = {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF"}
    row.get_by_label("file").set_input_files([sound])
    row.get_by_label("language").fill("en")
    with page.expect_request(lambda request: "transcriptions" in request.url) as asked:
        row.get_by_role("button", name="Send").click()
    assert asked.value.headers["content-type"].startswith("multipart/form-data")
    row.locator(".answer", has_text="501").wait_for()  # no model here can hear


def test_types_lead_to_their_schemas(page) -> None:
    page.fill("#filter", "")
    row = page.locator(
        "details.operation", has=page.get_by_text("/v1/chat/completions", exact=True)
    )
    row.locator("summary").click()
    row.get_by_role("link", name="ChatChunk").click()
    schema = page.locator("#schema-ChatChunk[open]")  # the page hears of the new address later
    schema.wait_for()
    assert "choices" in schema.inner_text()
