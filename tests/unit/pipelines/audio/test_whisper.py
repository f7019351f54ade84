"""Whisper writes what transformers' own `generate` does, with its times, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.core.errors import CheckpointError, RequestError
from blazr.models.checkpoint.open import ModelFiles
from blazr.nn.device import resolve_device
from blazr.pipelines.audio.transcript import (
    LanguageFound,
    SoundRead,
    TextHeard,
    Transcript,
    TranscriptEvent,
    TranscriptionRequest,
    Word,
)
from blazr.pipelines.audio.whisper import Whisper, words_of
from blazr.pipelines.kinds import kind_of
from tests.support import audio_models

pytestmark = [pytest.mark.filterwarnings("ignore:std\\(\\)"), audio_models.NEEDS_AUDIO]


class Heard:
    def __init__(self) -> None:
        self.events: list[TranscriptEvent] = []
        self.transcript = Transcript()
        self.num_checks = 0

    def emit(self, item: TranscriptEvent) -> None:
        self.events.append(item)
        self.transcript.push(item)

    def check(self) -> None:
        self.num_checks += 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whisper"
    audio_models.save_whisper(path)
    return path


@pytest.fixture(scope="module")
def whisper(directory: Path) -> Iterator[Whisper]:
    kind = kind_of(directory)
    assert kind is not None
    files = ModelFiles("ears", directory)
    loaded = kind.load(files, device=resolve_device("cpu"), dtype="auto")
    assert isinstance(loaded, Whisper)
    yield loaded
    loaded.close()


def transcribe(whisper: Whisper, samples: np.ndarray, **options: Any) -> Heard:
    heard = Heard()
    request = TranscriptionRequest(data=audio_models.sound_file(samples), **options)
    whisper.transcribe(request, heard)
    return heard


@pytest.fixture(scope="module")
def reference(directory: Path) -> tuple:
    import transformers

    network = transformers.WhisperForConditionalGeneration.from_pretrained(directory)
    return network, transformers.AutoProcessor.from_pretrained(directory)


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("language", [None, "de"])
def test_text_is_that_of_generate(
    whisper: Whisper, reference: tuple, language: str | None, task: str
) -> None:
    samples = audio_models.speech(3.5, 12.0)
    network, processor = reference
    # what the file holds: 16 bits
    samples = np.round(samples * 32768) / 32768
    features = processor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        ids = network.generate(features, language=language, task=task)
    heard = transcribe(whisper, samples, language=language, task=task)
    expected = processor.batch_decode(ids, skip_special_tokens=True)[0]
    assert expected
    assert heard.transcript.text == expected.lstrip()
    (segment,) = heard.transcript.segments
    special = processor.tokenizer.all_special_ids
    kept = [each for each in segment.token_ids if each not in special]
    assert kept == [each for each in ids[0].tolist() if each not in special]
    assert heard.num_checks > len(kept)


def test_times_are_those_of_generate(whisper: Whisper, reference: tuple) -> None:
    samples = np.round(audio_models.speech(3.5, 12.0) * 32768) / 32768
    network, processor = reference
    features = processor(
        samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True
    )
    with torch.inference_mode():
        found = network.generate(
            **features,
            language="en",
            return_timestamps=True,
            return_segments=True,
            return_token_timestamps=True,
        )
    heard = transcribe(whisper, samples, language="en", has_segments=True, has_words=True)
    segments = heard.transcript.segments
    assert segments
    theirs = [
        (round(min(float(x["start"]), 8.5), 2), round(min(float(x["end"]), 8.5), 2))
        for x in found["segments"][0]
    ]
    assert [(each.start, each.end) for each in segments] == theirs
    assert [list(each.token_ids) for each in segments] == [
        each["tokens"].tolist() for each in found["segments"][0]
    ]
    for segment in segments:
        words = "".join(each.text for each in segment.words)
        assert words == "".join(segment.text.split())


def test_a_minute_goes_through_windows_without_gaps_or_overlaps(whisper: Whisper) -> None:
    heard = transcribe(whisper, audio_models.speech(), language="en")
    assert heard.events[:2] == [SoundRead(60.0), LanguageFound("english")]
    segments = heard.transcript.segments
    assert [each.seek for each in segments] == [each.start for each in segments]
    assert len(segments) == 3
    assert all(each.end - each.start <= 30 for each in segments)
    assert all(one.end <= other.start for one, other in pairwise(segments))
    deltas = [each.text for each in heard.events if isinstance(each, TextHeard)]
    assert len(deltas) > len(segments)
    assert "".join(deltas) == "".join(each.text for each in segments).lstrip()
    # each window is heard as if it were a recording of its own
    for segment in segments:
        part = transcribe(whisper, audio_models.speech(segment.start, segment.end), language="en")
        assert part.transcript.segments[0].token_ids == segment.token_ids


def test_silence_is_not_given_to_the_model(whisper: Whisper) -> None:
    heard = transcribe(whisper, np.zeros(16_000, np.float32))
    assert heard.events == [SoundRead(1.0)]


def test_a_prompt_and_sampling_change_the_text(whisper: Whisper) -> None:
    samples = audio_models.speech(3.5, 12.0)
    plain = transcribe(whisper, samples, language="en").transcript.text
    after = transcribe(whisper, samples, language="en", prompt="Hello. " * 100).transcript.text
    drawn = transcribe(whisper, samples, language="en", temperature=1.0).transcript.text
    assert plain
    assert "Hello" not in after
    assert len({plain, after, drawn}) > 1


@pytest.mark.parametrize("language", ["xx", "klingon", "fr"])
def test_an_unknown_language_is_refused(whisper: Whisper, language: str) -> None:
    with pytest.raises(RequestError, match="language"):
        transcribe(whisper, audio_models.speech(0, 1), language=language)


@pytest.mark.parametrize("language", ["de", "German", "de-AT", " DE "])
def test_languages_have_codes_and_names(whisper: Whisper, language: str) -> None:
    heard = transcribe(whisper, audio_models.speech(0, 2), language=language)
    assert heard.transcript.language == "german"


def test_work_ends_where_it_is_told_to(whisper: Whisper) -> None:
    class End(Exception):
        pass

    class Leaving(Heard):
        def check(self) -> None:
            super().check()
            if self.num_checks > 10:
                raise End

    heard = Leaving()
    request = TranscriptionRequest(data=audio_models.sound_file(audio_models.speech(0, 20)))
    with pytest.raises(End):
        whisper.transcribe(request, heard)
    assert heard.num_checks == 11


def test_pieces_become_words() -> None:
    pieces = [Word(" He", 0, 1), Word("llo", 1, 2), Word(",", 2, 2), Word(" you", 3, 4)]
    assert list(words_of(pieces, has_spaces=True)) == [Word("Hello,", 0, 2), Word("you", 3, 4)]
    pieces = [Word("\u4f60", 0, 1), Word("\u597d", 1, 2), Word("\u3002", 2, 3)]
    assert list(words_of(pieces, has_spaces=False)) == [
        Word("\u4f60", 0, 1),
        Word("\u597d\u3002", 1, 3),
    ]
    assert list(words_of([Word(" ", 0, 1)], has_spaces=True)) == []


def test_missing_tensors_and_files_are_named(directory: Path, tmp_path: Path) -> None:
    kind = kind_of(directory)
    assert kind is not None
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        kind.load(ModelFiles("ears", tmp_path), device=resolve_device("cpu"), dtype="auto")


def test_language_models_are_no_pipelines(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None
    for text in ('{"model_type": "llama"}', "[]", "{", '{"model_type": 3}'):
        (tmp_path / "config.json").write_text(text)
        assert kind_of(tmp_path) is None


@pytest.mark.parametrize("words", [["generate", "-p", "hi"], ["info"]], ids=str)
def test_it_is_no_language_model(directory: Path, words: list[str]) -> None:
    command, *flags = words
    done = CliRunner().invoke(app, [command, str(directory), *flags])
    assert isinstance(done.exception, CheckpointError)
    assert "a model for transcription" in str(done.exception)
    assert "blazr transcribe" in str(done.exception)
