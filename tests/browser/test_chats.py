"""What a chat is made of besides asking: its files, versions, name, and ways in and out."""

from __future__ import annotations

import json

import pytest

from tests.browser.conftest import Steps
from tests.browser.test_chat_page import STORY, ask, last_reply, prompts, wait_done

pytestmark = pytest.mark.browser

NOTES = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"```\nremember the milk\n"}
HANDED = """([kind, target, files]) => {
    const data = new DataTransfer();
    for (const [name, text] of files) data.items.add(new File([text], name));
    const how = { bubbles: true, cancelable: true };
    const event = kind === "paste" ? new ClipboardEvent(kind, { ...how, clipboardData: data })
        : new DragEvent(kind, { ...how, dataTransfer: data });
    document.querySelector(target).dispatchEvent(event);
    return event.defaultPrevented;
}"""


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def versions(page) -> list[str]:
    return texts(page, ".versions > span")


def test_text_files_go_with_a_message(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    page.set_input_files("#choose-files", [NOTES])
    assert page.evaluate(HANDED, ["drop", "#log", [["dropped.py", "print(1)"]]])
    assert page.evaluate(HANDED, ["paste", "#box", [["pasted.md", "# Title"], ["gone.txt", "x"]]])
    page.get_by_label("Remove gone.txt").click()
    assert texts(page, "#files .chip") == ["notes.txt", "dropped.py", "pasted.md"]
    ask(page, "what?")
    wait_done(page)
    assert texts(page, ".user .chip") == ["notes.txt", "dropped.py", "pasted.md"]
    assert page.locator(".user .said").inner_text() == "what?"
    assert page.locator("#files").is_hidden()
    sent = prompts(running)[-1]
    assert "notes.txt\n````\n```\nremember the milk\n````\n\ndropped.py\n```\nprint(1)\n```" in sent
    assert sent.index("# Title") < sent.index("what?")
    page.keyboard.press("ArrowUp")  # what is edited keeps its files
    page.get_by_label("Edit the message").fill("why?")
    page.keyboard.press("Enter")
    wait_done(page)
    assert "remember the milk" in prompts(running)[-1]
    assert "why?" in prompts(running)[-1]


def test_files_that_are_no_text_or_too_long_are_refused(saying, new_page) -> None:
    page = new_page(saying(STORY).url)
    page.set_input_files(
        "#choose-files", [{"name": "a.bin", "mimeType": "", "buffer": b"\x89PNG\xff\x00"}]
    )
    page.get_by_text("a.bin is no text file in UTF-8.").wait_for()
    page.set_input_files(
        "#choose-files", [{"name": "b.txt", "mimeType": "", "buffer": b"x" * 262_145}]
    )
    page.get_by_text("b.txt is too long: files may have 256 KiB together.").wait_for()
    assert page.locator("#files .chip").count() == 0


def test_a_file_is_a_message_of_its_own(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    page.set_input_files("#choose-files", [NOTES])
    page.locator("#files .chip").wait_for()
    page.focus("#box")
    page.keyboard.press("Enter")
    wait_done(page)
    assert "remember the milk" in prompts(running)[-1]
    assert page.locator("#chats .open").inner_text() == "notes.txt"


def test_versions_are_kept_by_retry_and_edit(saying, new_page) -> None:
    running = saying("I am the first.", "I am the second.")
    page = new_page(running.url)
    for text in ("question one", "question two"):
        ask(page, text)
        wait_done(page)
    assert versions(page) == []
    page.select_option("#model", "model-1")
    page.keyboard.press("Alt+r")
    wait_done(page)
    assert versions(page) == ["2/2"]
    assert last_reply(page).locator(".reply").inner_text() == "I am the second."
    last_reply(page).get_by_label("Previous version").click()
    assert last_reply(page).locator(".reply").inner_text() == "I am the first."
    # the first message is edited: what followed it stays with its other version
    page.locator(".user").first.get_by_label("Edit and send again").click()
    page.get_by_label("Edit the message").fill("another question")
    page.keyboard.press("Enter")
    wait_done(page)
    assert (versions(page), page.locator(".message").count()) == (["2/2"], 2)
    page.locator(".user").get_by_label("Edit and send again").click()
    page.get_by_label("Edit the message").fill("a third question")
    page.keyboard.press("Enter")
    wait_done(page)
    assert versions(page) == ["3/3"]
    page.reload()
    page.click("#chats .open")
    assert versions(page) == ["3/3"]
    assert page.get_by_label("Next version").is_disabled()
    page.get_by_label("Previous version").press("Enter")
    assert texts(page, ".said") == ["another question"]
    page.keyboard.press("Enter")  # the focus stays with the buttons
    assert texts(page, ".said") == ["question one", "question two"]
    assert versions(page) == ["1/3", "1/2"]
    last_reply(page).get_by_label("Next version").click()
    assert last_reply(page).locator(".reply").inner_text() == "I am the second."
    # what is asked next goes on from the version that is shown
    ask(page, "question three")
    wait_done(page)
    assert "question two" in prompts(running, 1)[-1]
    assert "another question" not in prompts(running, 1)[-1]


def test_a_reply_that_failed_is_no_version(saying, new_page) -> None:
    running = saying(STORY)
    running.client.post("/generate", json={"prompt": "load", "max_tokens": 1})
    running.engine.fails_with = "out of luck"
    page = new_page(running.url)
    ask(page, "hi")
    last_reply(page).locator(".notice.error").wait_for()
    running.engine.fails_with = ""
    page.keyboard.press("Alt+r")
    page.wait_for_selector(".assistant strong")
    assert versions(page) == []
    page.complaints.clear()  # the browser notes the 500


def test_a_stopped_reply_can_be_continued(saying, new_page) -> None:
    running = saying("one two three four five six")
    running.client.post("/generate", json={"prompt": "load", "max_tokens": 1})
    running.engine.go = Steps(3)
    page = new_page(running.url)
    ask(page, "count")
    page.wait_for_selector(".running .reply p")
    page.keyboard.press("Escape")
    wait_done(page)
    before = last_reply(page).locator(".reply").inner_text()
    running.engine.go.set()
    last_reply(page).get_by_role("button", name="Continue").click()
    page.wait_for_selector(".assistant .notice", state="hidden")
    wait_done(page)
    assert prompts(running)[-1].endswith(before)
    after = last_reply(page).locator(".reply").inner_text()
    assert after.startswith(before)
    assert after.endswith("six")
    assert len(after) > len(before)
    assert page.get_by_role("button", name="Continue").is_hidden()
    assert page.locator(".message").count() == 2


def test_only_a_limit_that_was_set_cuts_a_reply(saying, new_page) -> None:
    running = saying("one two three four five six")
    page = new_page(running.url)
    page.keyboard.press("Alt+s")
    assert page.get_by_label("Max tokens").input_value() == ""
    page.keyboard.press("Escape")
    bodies = []
    page.on("request", lambda each: each.method == "POST" and bodies.append(each.post_data_json))
    ask(page, "count")
    wait_done(page)
    assert "max_tokens" not in bodies[-1]
    page.keyboard.press("Alt+s")
    page.fill("#n-max_tokens", "2")
    page.keyboard.press("Escape")
    ask(page, "count")
    wait_done(page)
    assert bodies[-1]["max_tokens"] == 2
    assert "Cut off" in last_reply(page).locator(".notice").inner_text()
    last_reply(page).get_by_role("button", name="Continue").click()
    wait_done(page)
    assert bodies[-1]["continue_final_message"] is True
    assert bodies[-1]["messages"][-1]["role"] == "assistant"


def test_a_long_chat_goes_on_without_its_oldest_turns(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    for number in range(4):
        ask(page, f"turn-{number} " + "word " * 900)
        wait_done(page)
    assert "left out" in last_reply(page).locator(".stats").inner_text()
    assert "turn-0" not in prompts(running)[-1]
    assert "turn-3" in prompts(running)[-1]
    assert page.locator(".message .notice.error").count() == 0


def test_chats_are_renamed_and_found(saying, new_page) -> None:
    page = new_page(saying(STORY).url)
    for text in ("about cats", "about dogs"):
        page.click("#new")
        ask(page, text)
        wait_done(page)
    page.get_by_label("Rename or export “about cats”").click()
    page.fill("#chat-name", "Felines <b>")
    page.keyboard.press("Enter")
    page.locator("#chats .open", has_text="Felines").wait_for()
    assert texts(page, "#chats .open") == ["about dogs", "Felines <b>"]
    page.reload()
    assert texts(page, "#chats .open") == ["about dogs", "Felines <b>"]
    page.fill("#search", "FELINES")
    assert texts(page, "#chats .open") == ["Felines <b>"]
    page.fill("#search", "about cats")
    assert texts(page, "#chats .open") == ["Felines <b>"]
    page.fill("#search", "brave")
    assert len(texts(page, "#chats .open")) == 2
    page.fill("#search", "neither")
    assert texts(page, "#chats .open") == []


def exported(page, button: str) -> tuple[str, str]:
    page.locator("#chats li").first.get_by_label("Rename or export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    page.keyboard.press("Escape")
    return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")


def test_two_tabs_go_on_with_one_chat(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    ask(page, "one")
    wait_done(page)
    other = page.context.new_page()
    other.goto(running.url)
    other.click("#chats .open")
    ask(other, "two")
    wait_done(other)
    page.locator(".message").nth(3).wait_for()
    ask(page, "three")
    wait_done(page)
    other.locator(".message").nth(5).wait_for()
    assert texts(other, ".said") == texts(page, ".said") == ["one", "two", "three"]
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("Delete “one”").click()
    other.locator("#chats li").wait_for(state="detached")
    page.reload()
    assert page.locator("#chats li").count() == 0


def test_chats_leave_and_come_back_as_files(saying, new_page) -> None:
    running = saying(f"<think>\nHm.\n</think>\n\n{STORY}")
    page = new_page(running.url)
    page.set_input_files("#choose-files", [NOTES])
    page.locator("#files .chip").wait_for()
    ask(page, "what is it?")
    wait_done(page)
    page.keyboard.press("Alt+r")
    wait_done(page)
    name, text = exported(page, "Export as Markdown")
    assert name == "what-is-it.md"
    assert text.startswith("# what is it?\n\n## You\n\nnotes.txt\n````\n```\nremember the milk\n")
    assert text.endswith(f"## model-0\n\n> Hm.\n\n{STORY}\n")
    name, text = exported(page, "Export as JSON")
    assert name == "what-is-it.json"
    other = new_page(running.url)
    other.set_input_files(
        "#choose-chats", [{"name": name, "mimeType": "", "buffer": text.encode()}]
    )
    other.locator(".message").nth(1).wait_for()
    assert texts(other, ".user .chip") == ["notes.txt"]
    assert versions(other) == ["2/2"]
    other.reload()
    assert texts(other, "#chats .open") == ["what is it?"]
    assert exported(other, "Export as Markdown") == exported(page, "Export as Markdown")


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"chats": [1]}',
        '{"messages": [{"role": "user", "content": 1}]}',
        '{"messages": [{"role": "root", "content": "a"}]}',
        '{"messages": [null]}',
        '{"messages": [{"role": "user", "content": "a", "fork": {"others": 5}}]}',
    ],
)
def test_what_is_no_chat_is_not_imported(saying, new_page, text) -> None:
    page = new_page(saying(STORY).url)
    page.set_input_files(
        "#choose-chats", [{"name": "x.json", "mimeType": "", "buffer": text.encode()}]
    )
    page.get_by_text("Nothing is imported.").wait_for()
    assert page.locator("#chats li").count() == 0


def test_messages_of_the_api_can_be_imported(saying, new_page) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<img src=x onerror=alert(1)>"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "It is **42**."},
    ]
    page = new_page(saying(STORY).url)
    data = json.dumps({"messages": messages}).encode()
    page.set_input_files("#choose-chats", [{"name": "m.json", "mimeType": "", "buffer": data}])
    assert last_reply(page).locator("strong").inner_text() == "42"
    assert texts(page, ".said") == ["<img src=x onerror=alert(1)>"]
    assert page.locator(".call .result").inner_text() == "42"


def test_one_reply_begins_at_a_time_while_pictures_are_read(saying, new_page) -> None:
    running = saying(STORY)
    page = new_page(running.url)
    asked = {"role": "user", "content": "what is it?"}
    asked["media"] = [{"kind": "picture", "name": "cat.png"}]  # which is not kept here
    messages = [asked, {"role": "assistant", "content": "A cat."}]
    data = json.dumps({"messages": messages}).encode()
    page.set_input_files("#choose-chats", [{"name": "m.json", "mimeType": "", "buffer": data}])
    page.locator(".assistant").wait_for()
    page.evaluate("""() => {
        const again = document.querySelector(".assistant [aria-label^='Try again']");
        again.click();
        again.click();
    }""")
    page.locator(".versions").wait_for()
    wait_done(page)
    assert len(running.engine.submitted) == 1
    assert versions(page) == ["2/2"]
    page.evaluate("""() => {
        document.getElementById("box").value = "and now?";
        document.getElementById("composer").requestSubmit();
        document.getElementById("new").click();
    }""")
    page.reload()
    page.click("#chats .open")
    assert texts(page, ".said") == ["what is it?", "and now?"]


def test_the_page_has_a_heading(saying, new_page) -> None:
    page = new_page(saying(STORY).url)
    heading = page.get_by_role("heading", level=1)
    assert heading.all_inner_texts() == ["New chat"]
    ask(page, "about cats")
    wait_done(page)
    assert heading.all_inner_texts() == ["about cats"]
