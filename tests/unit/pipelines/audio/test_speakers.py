"""Other models that speak: the right length and rate, the same seed the same sound, and an end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from blazr.core.errors import BlazrError, RequestError
from blazr.pipelines.audio import dia
from blazr.pipelines.audio.speaker import Speaker
from tests.support import audio_models
from tests.support.speech_models import RATES, SAVERS, LeftError, Said, load_speaker, say

pytestmark = audio_models.NEEDS_AUDIO


@pytest.fixture(scope="module", params=SAVERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def place(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(name)
    SAVERS[name](path)
    return path


@pytest.fixture(scope="module")
def speaker(place: Path) -> Iterator[Speaker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dia, "_MIN_FRAMES", 60)  # a random network talks until it is stopped
        patch.setattr(dia, "_FRAMES_PER_CHARACTER", 1)
        found = load_speaker(place)
        yield found
        found.close()


@pytest.fixture(scope="module")
def first(speaker: Speaker) -> Said:
    """What is usually said, which takes these models long."""
    return say(speaker)


@pytest.mark.sample(2)
def test_sounds_and_seeds(speaker: Speaker, first: Said, name: str) -> None:
    state = torch.get_rng_state()
    second, other = say(speaker), say(speaker, seed=4)
    assert {part.rate for part in first.parts} == {RATES[name]}
    assert first.sound.ndim == 1
    assert first.sound.dtype == np.float32
    assert len(first.sound) > 0
    assert np.array_equal(first.sound, second.sound)
    assert not np.array_equal(first.sound, other.sound)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.sample(2)
def test_voices(speaker: Speaker) -> None:
    assert len(speaker.voices) > 1
    by_name = say(speaker, "hello", voice=speaker.voices[1]).sound
    assert np.array_equal(by_name, say(speaker, "hello", voice="1").sound)
    assert not np.array_equal(by_name, say(speaker, "hello", voice="alloy").sound)
    with pytest.raises(RequestError, match="no such voice"):
        say(speaker, voice="nobody")
    with pytest.raises(RequestError, match="own speed"):
        say(speaker, speed=2.0)


@pytest.mark.sample(2)
def test_a_client_that_leaves_ends_the_work(speaker: Speaker, first: Said) -> None:
    """Within a sentence, too: the network is asked for its next step no more."""
    steps = first.num_checks
    assert steps > len(first.parts) + 1
    said = Said(leaves_after=steps - 1)
    with pytest.raises(LeftError):
        say(speaker, said=said)
    assert said.num_checks == steps - 1
    assert np.array_equal(say(speaker).sound, first.sound)


@pytest.mark.parametrize("text", [" ", "\u2581", "</s><pad>"])
def test_what_cannot_be_said(speaker: Speaker, text: str) -> None:
    if speaker.can_say(text):  # letters of marks are letters
        assert len(say(speaker, text).parts) == 1
        return
    with pytest.raises(RequestError, match="pronounce"):
        say(speaker, text)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda codes: codes.astype(np.float32),
        lambda codes: codes + 2000,
        lambda codes: -codes - 1,
        lambda codes: codes[..., None],
        lambda codes: codes[..., :0],
    ],
)
def test_spoiled_voices_of_bark(spoil: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    SAVERS["bark"](tmp_path)
    file = tmp_path / "presets" / "v2_en_speaker_1_coarse_prompt.npy"
    np.save(file, spoil(np.load(file)))
    with pytest.raises(BlazrError, match="no voice of this model"):
        load_speaker(tmp_path)


def test_voices_of_bark_lie_in_its_directory(tmp_path: Path) -> None:
    SAVERS["bark"](tmp_path)
    path = tmp_path / "speaker_embeddings_path.json"
    voices = json.loads(path.read_text())
    voices["v2/en_speaker_1"]["coarse_prompt"] = "../../etc/x.npy"
    path.write_text(json.dumps(voices))
    with pytest.raises(BlazrError, match="no voice of this model"):
        load_speaker(tmp_path)


def test_speecht5_needs_a_vocoder_and_a_voice(tmp_path: Path) -> None:
    SAVERS["speecht5"](tmp_path)
    (tmp_path / "vocoder").rename(tmp_path / "elsewhere")
    with pytest.raises(BlazrError, match="vocoder of this model is missing"):
        load_speaker(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "vocoder")
    np.save(tmp_path / "voices" / "clb.npy", np.zeros(5, np.float32))
    with pytest.raises(BlazrError, match=r"clb.npy is no voice"):
        load_speaker(tmp_path)
    for each in (tmp_path / "voices").iterdir():
        each.unlink()
    with pytest.raises(BlazrError, match="there is none"):
        load_speaker(tmp_path)
