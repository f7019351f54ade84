"""Models of one language write down what transformers writes down, window by window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from blazr.core.errors import RequestError
from blazr.pipelines.audio.transcriber import Transcriber
from blazr.pipelines.audio.transcript import Transcript, TranscriptEvent, TranscriptionRequest
from tests.support import audio_models
from tests.support.pipelines import load_pipeline

pytestmark = audio_models.NEEDS_AUDIO
RATE = audio_models.RATE
SAVE: dict[str, Callable[[Path], None]] = {
    "wav2vec2": audio_models.save_ctc,
    "wav2vec2-bert": audio_models.save_wav2vec2_bert,
    "wav2vec2-conformer": partial(audio_models.save_ctc, kind="Wav2Vec2Conformer"),
    "hubert": partial(audio_models.save_ctc, kind="Hubert"),
    "wavlm": partial(audio_models.save_ctc, kind="WavLM", num_buckets=8),
    "parakeet_ctc": audio_models.save_parakeet,
    "moonshine": audio_models.save_moonshine,
}


class Heard(Transcript):
    def emit(self, item: TranscriptEvent) -> None:
        self.push(item)

    def check(self) -> None:
        """Nobody leaves."""


@pytest.fixture(scope="module", params=SAVE)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / request.param
    SAVE[request.param](path)
    return path


@pytest.fixture(scope="module")
def model(place: Path) -> Transcriber:
    return load_pipeline(place, Transcriber)


def hear(model: Transcriber, data: bytes, **more: object) -> Heard:
    heard = Heard()
    asked: dict[str, Any] = {"data": data, **more}
    model.transcribe(TranscriptionRequest(**asked), heard)
    return heard


def test_the_text_is_that_of_transformers(model: Transcriber, place: Path) -> None:
    import transformers

    (segment,) = hear(model, audio_models.sound_file(audio_models.speech(0, 8))).segments
    first = round(segment.start * RATE)
    samples = audio_models.speech(0, 8)[first : first + round((segment.end - segment.start) * RATE)]
    processor = transformers.AutoProcessor.from_pretrained(place)
    inputs = processor.feature_extractor(samples, sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        if place.name == "moonshine":
            network = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(place)
            most = int(len(samples) / RATE * 6.5)
            ids = network.generate(**inputs, max_new_tokens=most, do_sample=False)[0]
            text = processor.tokenizer.decode(ids, skip_special_tokens=True)
        else:
            network = transformers.AutoModelForCTC.from_pretrained(place)
            text = processor.decode(network(**inputs).logits[0].argmax(-1))
    assert segment.text == text.strip()
    assert text.strip()


def test_a_minute_in_windows(model: Transcriber) -> None:
    heard = hear(model, audio_models.sound_file(audio_models.speech()), has_segments=True)
    assert heard.duration_s == pytest.approx(60, abs=0.01)
    assert len(heard.segments) > 1
    assert heard.text.split() == [word for each in heard.segments for word in each.text.split()]
    ends = [0.0, *(each.end for each in heard.segments)]
    assert all(end <= each.start for end, each in zip(ends, heard.segments, strict=False))


def test_words_have_times_where_there_are_frames(model: Transcriber, place: Path) -> None:
    data = audio_models.sound_file(audio_models.speech(0, 8))
    if place.name in {"moonshine", "parakeet_ctc"}:
        with pytest.raises(RequestError, match="times of words"):
            hear(model, data, has_words=True)
        return
    (segment,) = hear(model, data, has_words=True).segments
    assert [each.text for each in segment.words] == segment.text.split()
    times = [time for each in segment.words for time in (each.start, each.end)]
    assert times == sorted(times)
    assert segment.start <= times[0]
    assert times[-1] <= segment.end + 0.05


@pytest.mark.parametrize(
    "more",
    [{"task": "translate"}, {"language": "en"}, {"prompt": "Hello"}, {"temperature": 0.5}],
)
def test_what_it_cannot_do_is_refused(model: Transcriber, more: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="this model"):
        hear(model, b"", **more)
