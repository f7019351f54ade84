"""Encoders of media are used by one thread at a time, and say where they make no numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier
from time import sleep
from types import SimpleNamespace

import pytest
import torch
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.models.checkpoint.base import Checkpoint
from blazr.pipelines import tower_encoder
from blazr.pipelines.image_encoder import ImageEncoder
from blazr.pipelines.media import MediaTokens
from blazr.pipelines.tower_encoder import EncoderParts

MARK, LINE_FEED = 5, 6
LANGUAGE_MODEL = SimpleNamespace(
    dtype=torch.float32, config=SimpleNamespace(hidden_size=4), device=torch.device("cpu")
)


class SlowEncoder(ImageEncoder):
    """An encoder that remembers what was done while it was busy.

    Attributes:
        num_builds: How often it was loaded.
        overlaps: What began while something else went on.
    """

    def __init__(self) -> None:
        super().__init__(Path("model"), "gemma3", LANGUAGE_MODEL)  # type: ignore[arg-type]
        self.num_builds = 0
        self.overlaps: list[str] = []
        self._is_busy = False

    def _work(self, what: str) -> None:
        if self._is_busy:
            self.overlaps.append(what)
        self._is_busy = True
        sleep(0.05)
        self._is_busy = False

    @override
    def _build(self, checkpoint: Checkpoint) -> EncoderParts:
        self._work("load")
        self.num_builds += 1

        def tokenize(text: str, **_: object) -> dict[str, list[int]]:
            self._work("tokenize")
            return {"input_ids": [LINE_FEED] * len(text)}

        return EncoderParts(
            processor=SimpleNamespace(tokenizer=tokenize),
            tower=None,
            marker=MARK,
            token_id=7,
            scale=1.0,
            seed=b"",
            is_bidirectional=False,
            line_feeds={LINE_FEED: 1},
        )

    @override
    def _encode(self, digest: bytes, data: bytes, num_copies: int) -> MediaTokens:
        self._load()
        self._work("encode")
        return MediaTokens((LINE_FEED, 7), (), MARK)


def at_once(*works: Callable[[], object]) -> None:
    """Begin with all of them at the same time, and wait for their ends."""
    barrier = Barrier(len(works), timeout=60)

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(len(works)) as threads:
        for _ in threads.map(run, works):
            pass


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> SlowEncoder:
    opened = SimpleNamespace(path=Path("model"))
    monkeypatch.setattr(tower_encoder, "open_checkpoint", lambda _: opened)
    monkeypatch.setattr(tower_encoder, "check_packages", lambda *_: None)
    return SlowEncoder()


def prompt_of(encoder: SlowEncoder) -> Sequence[int]:
    """A line feed, an image that begins with one, and a token."""
    image = MediaTokens((LINE_FEED, 7), (), MARK)
    return encoder.insert([1, LINE_FEED, MARK, 2], [image]).token_ids


def test_prompts_of_two_threads_load_an_unloaded_encoder_once(encoder: SlowEncoder) -> None:
    at_once(lambda: prompt_of(encoder), lambda: prompt_of(encoder))
    assert encoder.num_builds == 1
    assert not encoder.overlaps
    encoder.unload()
    assert prompt_of(encoder) == [1, LINE_FEED, LINE_FEED, 7, 2]
    assert encoder.num_builds == 2


def test_a_prompt_is_not_joined_while_an_image_is_encoded(encoder: SlowEncoder) -> None:
    """Tokenizers cannot be used by one thread while another changes their options."""
    names = count()
    at_once(
        *[lambda: encoder.encode([b"%d" % next(names)])] * 2,
        *[lambda: prompt_of(encoder)] * 2,
    )
    assert encoder.num_builds == 1
    assert not encoder.overlaps


def test_vectors_that_are_not_finite_are_told(encoder: SlowEncoder) -> None:
    """Each reply would end with scores that are not finite, and nobody would know why."""
    parts = encoder._load()
    for bad in (float("nan"), float("inf"), 1e39):
        vectors = torch.tensor([[[1.0, 2.0, 3.0, bad]]], dtype=torch.float64)
        with pytest.raises(RequestError, match="no finite numbers of an image") as caught:
            encoder._tokens_of(parts, [7], vectors, b"")
        assert "float32" in caught.value.found
    assert encoder._tokens_of(parts, [7], torch.ones(1, 1, 4), b"").embeddings


def test_another_processor_makes_other_vectors_to_the_prefix_cache(tmp_path: Path) -> None:
    """Else what a server has kept on disk would go on with pixels that are scaled otherwise."""
    vision_models = pytest.importorskip("tests.support.vision_models")
    vision_models.save("gemma3", tmp_path)
    model = SimpleNamespace(
        dtype=torch.float32, config=SimpleNamespace(hidden_size=24), device=torch.device("cpu")
    )

    def digests() -> list[bytes]:
        encoder = ImageEncoder(tmp_path, "gemma3", model)  # type: ignore[arg-type]
        (image,) = encoder.encode([vision_models.picture(8, 8)])
        return [each.digest for each in image.embeddings]

    before = digests()
    assert digests() == before
    files = [file for file in tmp_path.glob("*.json") if "image_mean" in file.read_text()]
    for file in files:
        file.write_text(file.read_text().replace("0.5", "0.25"))
    assert files
    assert digests() != before
