"""Voice activity is marked as by its reference, and windows neither lose nor repeat speech."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.pipelines.audio.voice_activity import (
    FRAME,
    RATE,
    Span,
    VoiceActivity,
    speech_marks,
)
from blazr.pipelines.audio.windows import windows
from tests.support import audio_models

pytestmark = audio_models.NEEDS_AUDIO
MINUTE = 60 * RATE


@pytest.fixture(scope="module")
def golden() -> dict[str, list]:
    return json.loads((audio_models.SPEECH / "marks.json").read_text())


@pytest.fixture(scope="module")
def heard() -> np.ndarray:
    return VoiceActivity().probabilities(audio_models.speech())


def test_a_minute_of_speech_is_heard_as_by_the_reference(
    golden: dict[str, list], heard: np.ndarray
) -> None:
    np.testing.assert_allclose(heard, golden["probabilities"], atol=1e-4)


def test_marks_are_the_reference_s(golden: dict[str, list], heard: np.ndarray) -> None:
    assert [list(each) for each in speech_marks(heard, MINUTE)] == golden["marks"]
    found = speech_marks(heard, MINUTE, threshold=0.3, min_silence_s=0.5, pad_s=0.1)
    assert [list(each) for each in found] == golden["marks_2"]


def test_parts_are_heard_as_the_whole(heard: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blazr.pipelines.audio.voice_activity._FRAMES_AT_ONCE", 100)
    parts = VoiceActivity().probabilities(audio_models.speech())
    np.testing.assert_allclose(parts, heard, atol=1e-5)


@pytest.mark.parametrize("length", [1, FRAME - 1, FRAME, FRAME + 1])
def test_short_sounds_have_a_probability_for_each_frame(length: int) -> None:
    found = VoiceActivity().probabilities(np.zeros(length, np.float32))
    assert len(found) == -(-length // FRAME)
    assert found.max() < 0.5
    assert speech_marks(found, length) == []


@pytest.mark.parametrize("longest_s", [3, 5, 10, 30])
def test_windows_of_real_speech_hold_all_of_it_once(heard: np.ndarray, longest_s: int) -> None:
    marks = speech_marks(heard, MINUTE)
    found = windows(marks, heard, MINUTE, longest=longest_s * RATE)
    check_windows(found, marks, longest_s * RATE, MINUTE)
    cuts = [each.end for each in found] + [each.start for each in found]
    inside = [cut for cut in cuts if any(mark.start < cut < mark.end for mark in marks)]
    # speech without a pause is cut only where it is longer than a window
    long = [mark for mark in marks if mark.end - mark.start > longest_s * RATE - RATE // 2]
    assert all(any(mark.start < cut < mark.end for mark in long) for cut in inside)
    if longest_s == 30:
        assert len(found) == 3
        assert not inside


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=400),
    st.integers(20, 200),
)
def test_windows_of_anything_hold_all_speech_once(likely: list[float], num_frames: int) -> None:
    probabilities = np.array(likely, np.float32)
    num_samples = len(likely) * FRAME - 7
    longest = num_frames * FRAME
    marks = speech_marks(probabilities, num_samples)
    found = windows(marks, probabilities, num_samples, longest=longest)
    check_windows(found, marks, longest, num_samples)


def check_windows(found: list[Span], marks: list[Span], longest: int, num_samples: int) -> None:
    assert bool(found) == bool(marks)
    assert all(0 <= each.start < each.end <= num_samples for each in found)
    assert all(each.end - each.start <= longest for each in found)
    assert all(one.end <= other.start for one, other in pairwise(found))
    is_heard = np.zeros(num_samples, int)
    for each in found:
        is_heard[each.start : each.end] += 1
    for mark in marks:
        assert (is_heard[mark.start : mark.end] == 1).all()
