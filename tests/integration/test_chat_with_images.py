"""Images and sounds in a conversation of the terminal, with a model here and with a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blazr import LLM
from blazr.cli.conversation import Conversation
from blazr.cli.options import LoadFlags
from blazr.cli.partners import LocalPartner, RemotePartner
from blazr.core.errors import ConfigError, RequestError
from blazr.text.images import Image, Sound
from tests.support import vision_models
from tests.support.loopback import serving
from tests.support.scripted import scripted_core

PICTURES = [vision_models.picture(31, 17, 1), vision_models.picture(90, 33, 2)]
GIVEN = {"temperature": 0.0, "max_tokens": 5}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("llava")
    vision_models.save("llava", path)
    with LLM(str(path), device="cpu", dtype="float32", memory="64MiB", max_seq_len=640) as opened:
        yield opened


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"picture {number}.png" for number in range(2)]
    for path, data in zip(paths, PICTURES, strict=True):
        path.write_bytes(data)
    return paths


def talk(conversation: Conversation, files: list[Path]) -> None:
    conversation.obey(f"/image {files[1]}")
    conversation.obey("/image")
    for path in files:
        conversation.obey(f"/image {path}")
    conversation.say("What is it?")
    conversation.say("And now?")


def test_images_go_with_the_next_message(llm: LLM, files: list[Path], tmp_path: Path) -> None:
    here = Conversation(LocalPartner(llm, LoadFlags()), GIVEN)
    talk(here, files)
    assert [len(each.images) for each in here.history] == [2, 0, 0, 0]
    assert here.history[0].images == tuple(Image(0, each) for each in PICTURES)
    assert llm.core.engine.stats()["num_running"] == 0
    here.obey(f"/save {tmp_path / 'chat.json'}")
    loaded = Conversation(LocalPartner(llm, LoadFlags()))
    loaded.obey(f"/load {tmp_path / 'chat.json'}")
    assert loaded.history == here.history
    del here.history[2:]
    here.obey("/retry")
    assert here.history == loaded.history[:2]
    with serving(llm.core) as running:
        there = Conversation(RemotePartner(running.url, None), GIVEN)
        talk(there, files)
        there.close()
    assert there.history == loaded.history


def test_what_cannot_be_attached(tmp_path: Path) -> None:
    with LLM.of(scripted_core()) as llm:
        conversation = Conversation(LocalPartner(llm, LoadFlags()))
        with pytest.raises(RequestError, match="cannot be read"):
            conversation.obey(f"/image {tmp_path / 'nothing.png'}")
        sound = tmp_path / "a.wav"
        sound.write_bytes(b"RIFF")
        conversation.obey(f"/audio {sound}")
        assert conversation.attached == [Sound(b"RIFF")]
        with pytest.raises(RequestError, match="reads only text"):
            conversation.say("What do you hear?")
        assert conversation.say("hi") is not None, "the sound was left out"
        with pytest.raises(ConfigError, match="no command"):
            conversation.obey("/imag x")
