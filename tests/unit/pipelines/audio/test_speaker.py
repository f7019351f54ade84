"""A text is said sentence by sentence; the same seed gives the same sound, in every form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from blazr.core.errors import RequestError
from blazr.pipelines.audio.encoder import MEDIA_TYPES, PCM_RATE, SoundEncoder
from blazr.pipelines.audio.sound import read_sound
from blazr.pipelines.audio.speaker import MAX_SENTENCE, Speaker, sentences
from tests.support import audio_models
from tests.support.speech_models import load_speaker, say

pytestmark = audio_models.NEEDS_AUDIO
TEXT = "hello there. how are you"
RATE = audio_models.RATE


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "voice"
    audio_models.save_vits(path, num_speakers=3)
    return path


@pytest.fixture(scope="module")
def vits(place: Path) -> Iterator[Speaker]:
    found = load_speaker(place)
    yield found
    found.close()


def test_the_sound_is_that_of_transformers(vits: Speaker, place: Path) -> None:
    import transformers

    network = transformers.VitsModel.from_pretrained(place)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    torch.manual_seed(3)
    with torch.inference_mode():
        found = network(**tokenizer("hello there.", return_tensors="pt"), speaker_id=1).waveform
    (one,) = say(vits, "hello there.", voice="1").parts
    assert one.rate == RATE
    np.testing.assert_allclose(one.samples, found[0].numpy(), atol=1e-5)


def test_seeds_voices_and_speed(vits: Speaker) -> None:
    state = torch.get_rng_state()
    saids = (say(vits), say(vits), say(vits, seed=4), say(vits, voice="1"))
    sounds = [said.sound for said in saids]
    assert np.array_equal(sounds[0], sounds[1])
    assert not np.array_equal(sounds[0], sounds[2])
    assert not np.array_equal(sounds[0], sounds[3])
    fast = say(vits, speed=3.0)
    assert len(fast.sound) < len(sounds[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert len(say(vits).parts) == 2
    assert say(vits).num_checks >= 2


@pytest.mark.parametrize("text", ["\u4f60\u597d", "123", " ", "..\n"])
def test_what_cannot_be_said_is_refused(vits: Speaker, text: str) -> None:
    if text == "..\n":  # a point is in its vocabulary
        assert say(vits, text).parts
        return
    with pytest.raises(RequestError, match="pronounce"):
        say(vits, text)


def test_voices_there_are_not(vits: Speaker) -> None:
    with pytest.raises(RequestError, match="voice"):
        say(vits, voice="3")
    assert say(vits, voice="alloy").parts  # as clients say where they do not care


def test_texts_become_sentences() -> None:
    assert list(sentences("Hi. It costs 3.50 now! ok\n\na: b")) == [
        "Hi.",
        "It costs 3.50 now!",
        "ok",
        "a:",
        "b",
    ]
    assert list(sentences("\u4f60\u597d\u3002\u518d\u89c1\u3002")) == [
        "\u4f60\u597d\u3002",
        "\u518d\u89c1\u3002",
    ]
    for text in ("a" * 1000, "word " * 200, "one, two " * 100):
        found = list(sentences(text))
        assert all(0 < len(each) <= MAX_SENTENCE for each in found)
        assert "".join(found).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("form", MEDIA_TYPES)
@pytest.mark.parametrize("rate", [16_000, 22_050])
def test_every_form_is_read_back(form: str, rate: int) -> None:
    tone = (np.sin(np.arange(rate, dtype=np.float32) * (2 * np.pi * 440 / rate)) * 0.5).astype("f4")
    whole = SoundEncoder(form, rate).whole(tone)
    parts = SoundEncoder(form, rate)
    pieces = [parts.push(part) for part in np.array_split(tone, 5)]
    streamed = b"".join([*pieces, parts.push(tone[:0], is_last=True)])
    for data in (whole, streamed):
        if form == "pcm":
            assert abs(len(data) - 2 * PCM_RATE) <= 4
            found = np.frombuffer(data, "<i2") / 32768
            expected = np.sin(np.arange(len(found)) * (2 * np.pi * 440 / PCM_RATE)) * 0.5
            np.testing.assert_allclose(found[2000:-2000], expected[2000:-2000], atol=5e-3)
            continue
        found = read_sound(data, rate=rate)
        assert abs(len(found) - rate) < 0.2 * rate
        assert 0.3 < np.abs(found[rate // 4 : -rate // 4]).max() < 0.7
        if form in {"wav", "flac"}:
            np.testing.assert_allclose(found, tone, atol=1e-4)


def test_loud_sound_keeps_its_sign_where_it_is_resampled() -> None:
    square = np.repeat(np.array([1, -1] * 40, np.float32), 200)
    found = np.frombuffer(SoundEncoder("pcm", 16_000).whole(square), "<i2")
    signs = np.sign(found[: len(square) * 3 // 2]).reshape(-1, 300)
    middle = signs[:, 10:-10]  # where the sign changes is not to the sample
    assert (middle == np.array([[1], [-1]] * 40)).all()
