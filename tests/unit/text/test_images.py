"""Images in messages: their places, how they are written in JSON, and what templates get."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from blazr.core.errors import RequestError
from blazr.llm.generation import as_message
from blazr.text.chat_template import ChatTemplate
from blazr.text.images import (
    MAX_FRAMES,
    MAX_IMAGE_BYTES,
    Image,
    Video,
    decode_base64,
    join_parts,
    read_data_url,
    read_image,
    read_video_url,
    template_parts,
)
from blazr.text.messages import Message

IN_PARTS = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
IN_EITHER = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)


def test_images_keep_their_places() -> None:
    text, images = join_parts(["ab", b"1", b"2", "cd", b"3"])
    assert text == "abcd"
    assert images == (Image(2, b"1"), Image(2, b"2"), Image(4, b"3"))
    written = [each.get("text", "*") for each in template_parts(text, images)]
    assert written == ["ab", "*", "*", "cd", "*"]
    assert template_parts(None, (Image(0, b"1"),)) == [{"type": "image"}]


@pytest.mark.parametrize("source", [IN_PARTS, IN_EITHER])
def test_a_template_gets_parts(source: str) -> None:
    template = ChatTemplate(source, name="own")
    message = Message(role="user", content="Look:  ?", images=(Image(6, b"1"), Image(7, b"2")))
    said = [message, Message(role="assistant", content="yes"), Message(role="user", content="no")]
    assert template.render(said) == "[user]Look: <image> <image>?[assistant]yes[user]no"


def test_messages_that_are_joined_keep_their_images() -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'system' or loop.index0 > 0 and "
        "m.role == messages[loop.index0 - 1].role %}{{ raise_exception('turns') }}{% endif %}"
        "{% endfor %}" + IN_EITHER
    )
    told = Message(role="system", content="Be brief.")
    asked = Message(role="user", content="What?", images=(Image(0, b"1"),))
    assert ChatTemplate(strict, name="own").render([told, asked]) == (
        "[user]Be brief.\n\n<image>What?"
    )


def test_data_urls() -> None:
    assert read_data_url("data:image/png;base64," + base64.b64encode(b"abc").decode()) == b"abc"
    assert read_data_url("DATA:;base64,YWJj") == b"abc"
    assert read_data_url("data:image/png;base64,YWI%3D") == b"ab"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/a.png", "not in its request"),
        ("file:///etc/passwd", "not in its request"),
        ("data:image/png;base64", "not in its request"),
        ("", "not in its request"),
        ("data:image/png,abc", "not base64"),
        ("data:image/png;base64,a", "not base64"),
        ("data:image/png;base64,\N{SNOWMAN}", "not base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64," + "A" * (MAX_IMAGE_BYTES * 4 // 3 + 9), "too large"),
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_data_url(url)


def test_base64_alone() -> None:
    assert decode_base64("YWJj") == b"abc"
    with pytest.raises(RequestError, match="not base64"):
        decode_base64("not base64!", param="images")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert read_image(path) == b"abc"
    with path.open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    for wrong in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(RequestError, match=r"too large|cannot be read"):
            read_image(wrong)


def test_messages_of_python() -> None:
    url = "data:image/png;base64,YWJj"
    parts = [
        {"type": "image", "image": b"1"},
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ]
    found = as_message({"role": "user", "content": parts})
    assert found.content == "a"
    assert found.images == (Image(0, b"1"), Image(1, b"abc"), Image(1, b"abc"))


@pytest.mark.parametrize(
    "part", [{"type": "audio"}, {"type": "text"}, {"type": "image", "image": 3}, "text", None]
)
def test_other_parts_are_refused(part: object) -> None:
    with pytest.raises(RequestError, match="a part of a message"):
        as_message({"role": "user", "content": [part]})


def _video_url(*frames: bytes) -> str:
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(each).decode() for each in frames)


def test_frames_of_a_video(tmp_path: Path) -> None:
    frames = [b"one", b"2" * 300, b"three"]
    video = read_video_url(_video_url(*frames))
    assert video.frames == frames
    assert Image(0, video).kind == "video"
    path = tmp_path / "frame.jpg"
    path.write_bytes(frames[1])
    parts = [
        {"type": "video", "video": [frames[0], path, frames[2]]},
        {"type": "video_url", "video_url": {"url": _video_url(*frames)}},
    ]
    message = as_message({"role": "user", "content": parts})
    assert [each.data for each in message.images] == [video, video]
    assert template_parts("", message.images) == [{"type": "video"}, {"type": "video"}]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:video/mp4;base64,AAAA", "as frames"),
        ("data:video/jpeg,AAAA", "as frames"),
        ("https://example.com/film.mp4", "as frames"),
        ("data:video/jpeg;base64,", "is empty"),
        ("data:video/jpeg;base64,AAAA,", "is empty"),
        ("data:video/jpeg;base64,AAAA,%", "not base64"),
        ("data:video/jpeg;base64," + "AAAA," * MAX_FRAMES + "AAAA", "number of frames"),
        ("data:video/jpeg;base64," + "," * 100_000, "number of frames"),
    ],
)
def test_other_videos_are_refused(url: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_video_url(url)


def test_a_video_has_frames_and_is_not_too_large() -> None:
    with pytest.raises(RequestError, match="number of frames"):
        Video.of([])
    with pytest.raises(RequestError, match="too large"):
        Video.of([bytes(MAX_IMAGE_BYTES), b"1"])
