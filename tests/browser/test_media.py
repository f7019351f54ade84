"""Pictures and sounds on the chat page: sent, made and played, and the calls that a server runs."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from wave import open as open_wave

import pytest

from blazr.cli.model_plans import ModelPlan, plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.browser.test_chat_page import STORY, ask, last_reply, prompts, wait_done
from tests.support import mcp_servers
from tests.support.loopback import Loopback, serving, serving_models
from tests.support.scripted import thinking_core, wait_until
from tests.support.scripted_calls import calling, calling_core

pytestmark = [
    pytest.mark.browser,
    # of diffusers itself
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]

NEEDS = ("accelerate", "diffusers", "PIL", "soundfile", "transformers")
HANDED = """([kind, target, name, type, data]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const files = new DataTransfer();
    files.items.add(new File([bytes], name, { type }));
    const how = { bubbles: true, cancelable: true };
    const event = kind === "paste" ? new ClipboardEvent(kind, { ...how, clipboardData: files })
        : new DragEvent(kind, { ...how, dataTransfer: files });
    document.querySelector(target).dispatchEvent(event);
}"""
SETTINGS = {"temperature": 0, "max_tokens": 6, "seed": 5}
DRAWN = "(image) => image.complete && image.naturalWidth > 0"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[ModelPlan]:
    """Small random models: one sees, one hears, one makes pictures, one speaks, one writes down."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    from tests.support import audio_models, diffusion_pipelines, vision_models

    folder = tmp_path_factory.mktemp("models")
    vision_models.save("llava", folder / "eye")
    vision_models.save("qwen2_audio", folder / "ear")
    diffusion_pipelines.save_stable_diffusion(folder / "brush")
    audio_models.save_vits(folder / "voice")
    audio_models.save_whisper(folder / "scribe")
    names = [f"{each.name}={each}" for each in sorted(folder.iterdir())]
    flags = ServeFlags(device="cpu", dtype="float32", memory="64MiB")
    return plan_models(names, None, flags, default="nano")


@pytest.fixture(scope="module")
def server(plans) -> Iterator[Loopback]:
    config = ServerConfig(host="127.0.0.1", port=0)
    with serving_models(open_models(plans, config)) as running:
        yield running


@pytest.fixture
def opened(new_page):
    """Open the page with a model chosen; `page.bodies` are the requests that it sends."""

    def start(running: Loopback, model: str, **settings: object):
        page = new_page(running.url, **settings)
        kept = json.dumps({**SETTINGS, "model": model})
        page.evaluate("(kept) => localStorage.setItem('blazr.settings', kept)", kept)
        page.bodies = []
        page.on("request", lambda sent: sent.method == "POST" and page.bodies.append(sent))
        page.reload()
        page.locator("#model option").first.wait_for(state="attached")
        assert page.locator("#model").input_value() == model
        return page

    return start


def hand(page, how: str, name: str, kind: str, data: bytes) -> None:
    target = "#box" if how == "paste" else "#log"
    page.evaluate(HANDED, [how, target, name, kind, b64encode(data).decode()])


def sent_parts(page) -> list[dict]:
    """The parts of the last message that was sent."""
    return page.bodies[-1].post_data_json["messages"][-1]["content"]


def asked_again(running: Loopback, page) -> str:
    """What the server says to the page's last request, without the page."""
    body = {**page.bodies[-1].post_data_json, "stream": False}
    del body["stream_options"]
    reply = running.client.post("/v1/chat/completions", json=body)
    assert reply.is_success, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def test_a_picture_is_dropped_and_answered_about(server, opened) -> None:
    from tests.support import vision_models

    page = opened(server, "eye")
    picture = vision_models.picture(37, 21, 5)
    hand(page, "drop", "cat.png", "image/png", picture)
    page.locator("#files img[alt='cat.png']").wait_for()
    ask(page, "What is it?")
    wait_done(page)
    url = f"data:image/png;base64,{b64encode(picture).decode()}"
    assert sent_parts(page) == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]
    assert page.locator(".user img").evaluate(DRAWN)
    assert page.locator("#files").is_hidden()
    # the answer is that to this picture
    said = last_reply(page).locator(".reply").inner_text()
    assert " ".join(said.split()) == " ".join(asked_again(server, page).split())
    # it is kept for after a reload, and goes with the next question, too
    page.reload()
    page.click("#chats .open")
    page.locator(".user img").wait_for()
    assert page.locator(".user img").evaluate(DRAWN)
    ask(page, "And now?")
    wait_done(page)
    first = page.bodies[-1].post_data_json["messages"][0]["content"]
    assert first[0] == {"type": "image_url", "image_url": {"url": url}}
    assert "image" not in page.evaluate("JSON.stringify(localStorage)")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("Delete “What is it?”").click()
    count = """() => new Promise((resolve) => {
        indexedDB.open("blazr").onsuccess = ({ target }) => {
            const files = target.result.transaction("files").objectStore("files");
            files.count().onsuccess = (event) => resolve(event.target.result);
        };
    })"""
    assert page.evaluate(count) == 0


def test_a_large_picture_is_made_smaller(server, opened) -> None:
    from PIL import Image

    page = opened(server, "eye")
    file = io.BytesIO()
    Image.radial_gradient("L").resize((3000, 2000)).convert("RGBA").save(file, "PNG")
    hand(page, "paste", "large.png", "image/png", file.getvalue())
    page.locator("#files img").wait_for()
    page.focus("#box")
    page.keyboard.press("Enter")
    wait_done(page)
    head, _, data = sent_parts(page)[0]["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(b64decode(data)), formats=["JPEG"]) as image:
        assert image.size == (1536, 1024)
    assert page.locator("#chats .open").inner_text() == "large.png"


def test_what_a_model_does_not_take_is_refused(server, opened, saying, new_page) -> None:
    from tests.support import vision_models

    page = opened(server, "brush")
    hand(page, "drop", "cat.png", "image/png", vision_models.picture(9, 9))
    page.get_by_text("brush takes no pictures.").wait_for()
    # what a model takes is known once it was in memory; before that the server says it
    running = saying(STORY)
    page = new_page(running.url)
    hand(page, "drop", "cat.png", "image/png", vision_models.picture(9, 9))
    page.locator("#files img").wait_for()
    ask(page, "what?")
    wait_done(page)
    assert "image" in last_reply(page).get_by_role("alert").inner_text()
    page.click("#new")
    hand(page, "drop", "cat.png", "image/png", vision_models.picture(9, 9))
    page.get_by_text("model-0 takes no pictures.").wait_for()
    hand(page, "drop", "cat.png", "image/png", b"no picture")
    assert page.locator("#files").is_hidden()
    page.complaints.clear()  # the browser notes the 400


def test_a_picture_is_made(server, opened) -> None:
    from PIL import Image

    page = opened(server, "brush")
    assert page.get_by_placeholder("Describe a picture").is_visible()
    ask(page, "a red ball")
    page.locator(".assistant img").wait_for()
    wait_done(page)
    assert page.locator(".assistant img").evaluate(DRAWN)
    assert page.locator(".assistant img").get_attribute("alt") == "a red ball"
    body = page.bodies[-1].post_data_json
    assert (body["prompt"], body["seed"]) == ("a red ball", 5)
    made = server.client.post("/v1/images/generations", json=body).json()["data"][0]["b64_json"]
    drawn = """(image) => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        canvas.getContext("2d").drawImage(image, 0, 0);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.width, canvas.height, [...data]];
    }"""
    with Image.open(io.BytesIO(b64decode(made)), formats=["PNG"]) as image:
        expected = [*image.size, list(image.convert("RGBA").tobytes())]
    assert page.locator(".assistant img").evaluate(drawn) == expected
    gap = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert page.locator("#scroller").evaluate(gap) < 2, "the picture is in view"
    assert "made in" in last_reply(page).locator(".stats").inner_text()
    page.reload()
    page.click("#chats .open")
    page.locator(".assistant img").wait_for()
    # another model reads that there is a picture
    page.select_option("#model", "eye")
    ask(page, "and now?")
    wait_done(page)
    told = page.bodies[-1].post_data_json["messages"]
    assert told[1] == {"role": "assistant", "content": "(a picture)"}


def wav(rate: int, seconds: float) -> bytes:
    file = io.BytesIO()
    with open_wave(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"\x10\x20\x10\x20\xf0\xdf\xf0\xdf" * int(rate * seconds / 2))
    return file.getvalue()


def sent_sound(page):
    return open_wave(io.BytesIO(b64decode(sent_parts(page)[0]["input_audio"]["data"])))


def test_a_sound_is_attached_and_answered_about(server, opened) -> None:
    page = opened(server, "ear")
    sound = {"name": "beep.wav", "mimeType": "audio/wav", "buffer": wav(44_100, 0.5)}
    page.set_input_files("#choose-files", [sound])
    page.locator("#files audio[aria-label='beep.wav']").wait_for()
    ask(page, "What do you hear?")
    wait_done(page)
    with sent_sound(page) as sent:
        assert (sent.getnchannels(), sent.getframerate(), sent.getsampwidth()) == (1, 16_000, 2)
        assert abs(sent.getnframes() - 8000) <= 2
    said = last_reply(page).locator(".reply").inner_text()
    assert " ".join(said.split()) == " ".join(asked_again(server, page).split())
    assert page.locator(".user audio").count() == 1


def test_the_microphone_is_recorded(server, opened) -> None:
    page = opened(server, "ear", permissions=["microphone"])
    page.click("#microphone")
    page.get_by_text("Recording…").wait_for()
    assert page.locator("#microphone").get_attribute("aria-pressed") == "true"
    page.wait_for_timeout(500)  # what is recorded has to have a length
    page.click("#microphone")
    page.locator("#files audio").wait_for()
    page.focus("#box")
    page.keyboard.press("Enter")
    wait_done(page)
    with sent_sound(page) as sent:
        assert sent.getnframes() > 1000
    assert page.locator(".assistant .notice.error").count() == 0


def test_two_clicks_start_one_recording(server, opened) -> None:
    page = opened(server, "ear", permissions=["microphone"])
    page.evaluate(
        """() => {
          const devices = navigator.mediaDevices;
          const ask = devices.getUserMedia.bind(devices);
          window.numAsked = 0;
          devices.getUserMedia = async (what) => {
            window.numAsked += 1;
            await new Promise((go) => setTimeout(go, 300));
            return ask(what);
          };
          const button = document.getElementById("microphone");
          button.click();
          button.click();
        }"""
    )
    page.get_by_text("Recording…").wait_for()
    assert page.evaluate("window.numAsked") == 1
    page.wait_for_timeout(500)
    page.click("#microphone")
    page.locator("#files audio").wait_for()
    assert page.locator("#files audio").count() == 1


def test_a_sound_is_written_down_for_a_model_that_does_not_hear(server, opened) -> None:
    from tests.support import audio_models

    page = opened(server, "eye")
    ask(page, "hi")  # what it takes is known once it was in memory
    wait_done(page)
    page.get_by_label("Add text files, pictures and sounds").wait_for()
    page.fill("#box", "They said:")
    with page.expect_response("**/v1/audio/transcriptions") as heard:
        talk = audio_models.sound_file(audio_models.speech(0, 4))
        hand(page, "drop", "talk.wav", "audio/wav", talk)
    text = heard.value.json()["text"].strip()
    wait_until(lambda: page.locator("#status").inner_text() == "")
    assert page.locator("#box").input_value() == f"They said: {text}".strip()
    assert page.locator("#files").is_hidden()


def test_a_reply_is_read_aloud(plans, opened) -> None:
    (voice,) = (plan for plan in plans if plan.name == "voice")
    core = thinking_core("a **cat**", name="text", max_seq_len=4096)
    sources = [
        ModelSource(name="text", open=lambda: AsyncLLM.of(core)),
        ModelSource(name="voice", open=voice.open, capabilities=voice.capabilities),
    ]
    config = ServerConfig(host="127.0.0.1", port=0)
    with serving_models(Models(sources, config)) as running:
        page = opened(running, "text")
        assert page.locator("#model option").all_inner_texts() == ["text"]
        ask(page, "hi")
        wait_done(page)
        with page.expect_response("**/v1/audio/speech") as spoken:
            last_reply(page).get_by_label("Read aloud").click()
        assert spoken.value.request.post_data_json == {
            "model": "voice",
            "input": "a cat",
            "response_format": "wav",
        }
        player = page.locator("#player")
        wait_until(lambda: player.evaluate("(player) => player.currentTime") > 0)
        assert player.evaluate("(player) => player.duration") > 0.01
        core.engine.script_of = lambda _: core.tokenizer.encode("\u4f60")
        ask(page, "again")
        wait_done(page)
        last_reply(page).get_by_label("Read aloud").click()
        wait_until(lambda: "text" in page.locator("#status").inner_text())
        page.complaints.clear()  # the browser notes the 400


def test_calls_that_the_server_runs_are_shown_and_allowed(tmp_path, new_page) -> None:
    pytest.importorskip("mcp")
    replies = [
        calling(("add", {"a": 20, "b": 22}), ("fail", {}), say="Let me see."),
        calling(("write", {"name": "done"})),
        "It is **42**.",
    ]
    marks = tmp_path / "marks"
    marks.mkdir()
    with mcp_servers.on_http(marks) as url:
        entry = {"url": url, "policy": "auto", "tools": {"write": "ask"}}
        config = mcp_servers.write_config(tmp_path, tried=entry)
        with serving(calling_core(replies), mcp_config=config) as running:
            page = new_page(running.url)
            page.keyboard.press("Alt+s")
            page.select_option("#agent", "on")
            page.keyboard.press("Escape")
            ask(page, "what is it?")
            wait_done(page)
            steps = page.locator(".step")
            told = [" ".join(text.split()) for text in steps.locator("summary").all_inner_texts()]
            assert told == ["add tried · done", "fail tried · failed"]
            steps.first.locator("summary").press("Enter")
            assert steps.first.locator(".result").inner_text() == "42"
            # the last call asks: without leave it is refused, and with it the server runs it
            assert not (marks / "done").exists()
            page.get_by_label("Let the server run this call").check()
            page.get_by_role("button", name="Send results").click()
            page.locator(".assistant strong", has_text="42").wait_for()
            wait_done(page)
            assert (marks / "done").exists()
            page.reload()
            page.click("#chats .open")
            assert page.locator(".step").count() == 3
            ask(page, "thanks")
            wait_done(page)
            last = prompts(running)[-1]
            assert last.index("42") < last.index("written") < last.index("thanks")
