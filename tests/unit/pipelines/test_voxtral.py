"""Voxtral's processor gives the spectrograms of the library's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from blazr.pipelines.voxtral import VoxtralProcessor
from tests.support import audio_models

pytestmark = audio_models.NEEDS_AUDIO


@pytest.mark.parametrize("seconds", [0.3, 2, 4.7])
def test_chunks_are_those_of_the_library(seconds: float, tmp_path: Path) -> None:
    import transformers

    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=2)
    extractor.save_pretrained(tmp_path)
    tower = SimpleNamespace(intermediate_size=64, hidden_size=16)
    config = SimpleNamespace(audio_config=tower, audio_token_id=24)
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, int(seconds * 16_000))
    found = VoxtralProcessor(tmp_path, config)(audio=[samples.astype(np.float32)])
    wanted = transformers.VoxtralProcessor._retrieve_input_features(
        SimpleNamespace(feature_extractor=extractor),
        [samples.astype(np.float32)],
        200,
        sampling_rate=16_000,
        padding=True,
        truncation=False,
        pad_to_multiple_of=32_000,
        return_tensors="pt",
    )
    assert torch.equal(found["input_features"], wanted)
    assert found["input_ids"].tolist() == [[24] * (25 * len(wanted))]
