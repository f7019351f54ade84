"""Sound files become samples of one channel at the wanted rate, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blazr.core.errors import RequestError
from blazr.pipelines.audio.sound import read_sound
from tests.support.audio_models import NEEDS_AUDIO, RATE, sound_file

pytestmark = NEEDS_AUDIO
TONE = np.sin(np.arange(RATE, dtype=np.float32) * (2 * np.pi * 440 / RATE)) * 0.5


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
def test_what_is_not_compressed_comes_back(form: str) -> None:
    np.testing.assert_allclose(read_sound(sound_file(TONE, form=form), rate=RATE), TONE, atol=1e-4)


def test_a_flac_that_tells_no_length_is_read() -> None:
    data = bytearray(sound_file(TONE, form="FLAC"))
    data[21] &= 0xF0  # the number of samples, 36 bits [RFC 9639, 8.2]
    data[22:26] = bytes(4)
    np.testing.assert_allclose(read_sound(bytes(data), rate=RATE), TONE, atol=1e-4)


@pytest.mark.parametrize(("form", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)])
def test_compressed_sound_is_read(form: str, subtype: str | None) -> None:
    found = read_sound(sound_file(TONE, form=form, subtype=subtype), rate=RATE)
    assert abs(len(found) - len(TONE)) < 0.1 * RATE
    assert 0.3 < np.abs(found[RATE // 2 : -RATE // 4]).max() < 0.7


@pytest.mark.parametrize("rate", [8000, 44_100, 48_000])
def test_other_rates_are_resampled(rate: int) -> None:
    length = 12 * rate + 5  # more than one block
    tone = np.sin(np.arange(length, dtype=np.float32) * (2 * np.pi * 440 / rate)) * 0.5
    found = read_sound(sound_file(tone, rate=rate), rate=RATE)
    expected = np.sin(np.arange(len(found)) * (2 * np.pi * 440 / RATE)) * 0.5
    assert abs(len(found) - length * RATE / rate) <= 2
    np.testing.assert_allclose(found[RATE:-RATE], expected[RATE:-RATE], atol=5e-3)


def test_channels_are_mixed_and_odd_samples_tamed() -> None:
    both = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    np.testing.assert_allclose(read_sound(sound_file(both), rate=RATE), TONE / 2, atol=1e-4)
    odd = np.array([np.nan, np.inf, -np.inf, 3.0, 0.25], np.float32)
    found = read_sound(sound_file(odd, subtype="FLOAT"), rate=RATE)
    np.testing.assert_allclose(found, [0, 1, -1, 1, 0.25])


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"",
        lambda: b"not a sound",
        lambda: b"RIFF\x24\x00\x00\x00WAVEfmt ",
        lambda: sound_file(TONE)[:40],
        lambda: sound_file(TONE, form="FLAC")[:60],
        lambda: sound_file(TONE, form="AU"),
        lambda: sound_file(np.zeros((10, 17), np.float32)),
        lambda: sound_file(TONE[:10], rate=999),
        lambda: sound_file(TONE[:0]),
    ],
)
def test_what_is_no_sound_is_refused(make: Callable[[], bytes]) -> None:
    data = make()
    with pytest.raises(RequestError) as caught:
        read_sound(data, rate=RATE)
    assert caught.value.param == "file"


def test_too_long_a_sound_is_refused_before_it_is_read() -> None:
    calls: list[None] = []
    silence = sound_file(np.zeros(1000 * 100, np.float32), form="FLAC", rate=1000)
    with pytest.raises(RequestError, match="too long"):
        read_sound(silence, rate=RATE, check=lambda: calls.append(None), max_s=5)
    assert len(calls) == 1  # of ten blocks


def test_damaged_sound_never_does_worse_than_being_refused() -> None:
    random = np.random.default_rng(0)
    for form in ("WAV", "FLAC", "OGG", "MP3"):
        whole = bytearray(sound_file(TONE[: RATE // 4], form=form))
        for _ in range(20):
            data = bytearray(whole)
            for place in random.integers(0, len(data), 10):
                data[place] = random.integers(0, 256)
            try:
                found = read_sound(bytes(data), rate=RATE)
            except RequestError:
                continue
            assert np.isfinite(found).all()
            assert np.abs(found).max(initial=0) <= 1.1
