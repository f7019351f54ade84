"""LLM and AsyncLLM of an encoder: its numbers are those of transformers."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from blazr import LLM, AsyncLLM
from blazr.core.errors import EngineError, RequestError
from blazr.llm.results import Embedding
from blazr.pipelines.encoders import encoder as encoders
from blazr.pipelines.encoders.embedder import Embedder
from blazr.pipelines.encoders.encoder import Encoder
from tests.support import encoder_models
from tests.support.encoder_models import save_classifier, save_encoder
from tests.support.scripted import wait_until

pytestmark = encoder_models.NEEDS_TRANSFORMERS
TEXTS = ["a cat", "The quick brown fox jumps.", "Dogs bark"]
LONG = "abc" * 30
PROMPTS = {"query": "find: ", "document": "text: "}
TOLERANCE = 1e-5
T = TypeVar("T")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network alone, whose vectors are means and have any length."""
    path = tmp_path_factory.mktemp("models") / "bert"
    save_encoder(path, "bert")
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def normalizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model of sentence-transformers with prompts, whose vectors have length 1."""
    path = tmp_path_factory.mktemp("models") / "qwen3"
    save_encoder(path, "qwen3", pooling="lasttoken", prompts=PROMPTS)
    with LLM(str(path), device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def reranker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "ranks"
    save_classifier(path, "xlm-roberta", num_labels=1)
    return path


@pytest.fixture(scope="module")
def reranker(reranker_folder: Path) -> Iterator[LLM]:
    with LLM(str(reranker_folder), device="cpu") as llm:
        yield llm


def _by_transformers(path: Path, auto: str, *texts: str) -> Any:
    import transformers

    network = getattr(transformers, auto).from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with torch.inference_mode():
        return network(**tokenizer(*texts, return_tensors="pt"))


def _vectors_of(llm: LLM, *texts: str, **more: Any) -> np.ndarray:
    return np.array([each.embedding for each in llm.embed(texts, **more)], np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_vectors_are_those_of_transformers(encoder: LLM, folder: Path) -> None:
    states = [_by_transformers(folder, "AutoModel", each).last_hidden_state[0] for each in TEXTS]
    expected = np.stack([each.mean(0).numpy() for each in states])
    np.testing.assert_allclose(_vectors_of(encoder, *TEXTS), expected, atol=TOLERANCE)
    found = _vectors_of(encoder, *TEXTS, normalize=True)
    np.testing.assert_allclose(found, unit(expected), atol=TOLERANCE)
    assert [each.prompt_tokens for each in encoder.embed(TEXTS)] == [len(each) for each in states]


def test_what_embed_takes(encoder: LLM) -> None:
    (alone,) = encoder.embed("a cat")
    (listed,) = encoder.embed([{"prompt": "a cat"}])
    assert alone == listed == alone.outputs
    assert encoder.embed([]) == []
    with pytest.raises(RequestError, match="text alone"):
        encoder.embed([1, 2, 3])


def test_dimensions_are_the_first_numbers(encoder: LLM, normalizing: LLM) -> None:
    whole = _vectors_of(encoder, *TEXTS)
    np.testing.assert_array_equal(_vectors_of(encoder, *TEXTS, dimensions=5), whole[:, :5])
    whole = _vectors_of(normalizing, *TEXTS)
    found = _vectors_of(normalizing, *TEXTS, dimensions=5)
    np.testing.assert_allclose(found, unit(whole[:, :5]), atol=TOLERANCE)
    with pytest.raises(RequestError, match="dimensions"):
        encoder.embed(TEXTS, dimensions=17)


def test_prompts_have_names(encoder: LLM, normalizing: LLM) -> None:
    found = _vectors_of(normalizing, "a cat", prompt_name="query")
    expected = _vectors_of(normalizing, "find: a cat")
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    for llm in (encoder, normalizing):
        with pytest.raises(RequestError, match="prompt"):
            llm.embed("a cat", prompt_name="other")


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"truncate_prompt_tokens": -1}, LONG[-46:]),
        ({"truncate_prompt_tokens": -1, "truncation_side": "right"}, LONG[:46]),
        ({"truncate_prompt_tokens": 10}, LONG[-8:]),
    ],
)
def test_texts_that_are_too_long(how: Mapping[str, object], kept: str, normalizing: LLM) -> None:
    expected = _vectors_of(normalizing, kept)
    np.testing.assert_allclose(_vectors_of(normalizing, LONG, **how), expected, atol=TOLERANCE)


def test_texts_that_are_too_long_are_refused(normalizing: LLM, reranker: LLM) -> None:
    for call in (lambda: normalizing.embed(LONG), lambda: reranker.score("a", LONG)):
        with pytest.raises(RequestError, match="too long") as caught:
            call()
        assert "truncate_prompt_tokens=-1" in caught.value.hint
    assert len(reranker.score("a", ["b", LONG], truncate_prompt_tokens=-1)) == 2
    with pytest.raises(RequestError, match="truncate_prompt_tokens"):
        normalizing.embed("a", truncate_prompt_tokens=0)


def test_an_embedding_model_scores_by_cosines(encoder: LLM) -> None:
    query, *others = unit(_vectors_of(encoder, *TEXTS))
    found = [each.score for each in encoder.score(TEXTS[0], TEXTS[1:])]
    np.testing.assert_allclose(found, np.stack(others) @ query, atol=TOLERANCE)


def test_a_cross_encoder_scores_as_transformers_does(reranker: LLM, reranker_folder: Path) -> None:
    auto = "AutoModelForSequenceClassification"
    pairs = [(TEXTS[0], each) for each in TEXTS[1:]]
    expected = [
        float(_by_transformers(reranker_folder, auto, *pair).logits[0, 0].sigmoid())
        for pair in pairs
    ]
    found = [each.outputs.score for each in reranker.score(TEXTS[0], TEXTS[1:])]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate("a"),
        lambda llm: llm.chat([{"role": "user", "content": "a"}]),
        lambda llm: next(llm.stream("a")),
        lambda llm: llm.logits([1]),
        lambda llm: llm.get_tokenizer(),
    ],
)
def test_an_encoder_says_that_it_generates_no_text(
    call: Callable[[LLM], object], encoder: LLM
) -> None:
    with pytest.raises(RequestError, match="cannot generate text") as caught:
        call(encoder)
    assert "embed or score" in caught.value.hint
    assert "bert" in str(caught.value.found)


def test_a_cross_encoder_says_that_it_makes_no_vectors(reranker: LLM) -> None:
    with pytest.raises(RequestError, match="cannot embed") as caught:
        reranker.embed("a cat")
    assert "score" in caught.value.hint


@pytest.mark.parametrize("num_labels", [1, 3])
def test_classifiers_label_as_transformers_does(num_labels: int, tmp_path: Path) -> None:
    save_classifier(tmp_path, "bert", num_labels=num_labels)
    auto = "AutoModelForSequenceClassification"
    with LLM(str(tmp_path), device="cpu") as llm:
        found = llm.classify(TEXTS)
        assert llm.classify([]) == []
        assert len(llm.classify(LONG, truncate_prompt_tokens=-1)) == 1
        with pytest.raises(RequestError, match="too long"):
            llm.classify(LONG)
        with pytest.raises(RequestError, match="cannot embed") as caught:
            llm.embed("a cat")
    assert "classify" in caught.value.hint
    for text, row in zip(TEXTS, found, strict=True):
        logits = _by_transformers(tmp_path, auto, text).logits[0]
        expected = logits.softmax(-1) if num_labels > 1 else logits.sigmoid()
        np.testing.assert_allclose(row.outputs.probs, expected, atol=TOLERANCE)
        assert row.label == row.labels[int(expected.argmax())] == f"label {expected.argmax()}"
        assert row.num_classes == num_labels


def test_threads_get_what_each_asked_for(normalizing: LLM) -> None:
    """The tokenizer keeps the side on which it cuts."""
    sides = ["left", "right"] * 8

    def embed(side: str) -> np.ndarray:
        return _vectors_of(normalizing, LONG, truncate_prompt_tokens=10, truncation_side=side)

    expected = {side: embed(side) for side in sides[:2]}
    with ThreadPoolExecutor(4) as pool:
        for side, found in zip(sides, pool.map(embed, sides), strict=True):
            np.testing.assert_allclose(found, expected[side], atol=TOLERANCE)


def _asked(folder: Path, ask: Callable[[AsyncLLM], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with AsyncLLM(str(folder), device="cpu") as llm:
            return await ask(llm)

    return asyncio.run(main())


def test_the_asynchronous_face_gives_the_same(
    encoder: LLM, folder: Path, reranker: LLM, reranker_folder: Path
) -> None:
    async def of_encoder(llm: AsyncLLM) -> None:
        assert repr(llm) == repr(encoder).replace("LLM", "AsyncLLM")
        assert await llm.embed(TEXTS) == encoder.embed(TEXTS)
        options: dict[str, Any] = {"truncate_prompt_tokens": 5, "truncation_side": "right"}
        options |= {"dimensions": 4, "normalize": True}
        assert await llm.encode(LONG, **options) == encoder.embed(LONG, **options)
        assert await llm.embed([]) == []
        assert await llm.score(TEXTS[0], TEXTS) == encoder.score(TEXTS[0], TEXTS)

    async def of_reranker(llm: AsyncLLM) -> None:
        assert await llm.score(TEXTS[0], TEXTS) == reranker.score(TEXTS[0], TEXTS)
        assert await llm.classify(TEXTS) == reranker.classify(TEXTS)

    _asked(folder, of_encoder)
    _asked(reranker_folder, of_reranker)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.embed("a" * 99),
        lambda llm: llm.embed("a", prompt_name="query"),
        lambda llm: llm.embed("a", dimensions=99),
        lambda llm: llm.embed([1, 2]),
        lambda llm: llm.score("a", [5]),
        lambda llm: llm.score("a", "b", truncate_prompt_tokens=0),
        lambda llm: llm.classify("a"),
        lambda llm: llm.generate("a"),
        lambda llm: llm.chat([{"role": "user", "content": "a"}]),
        lambda llm: llm.logits([1]),
    ],
)
def test_both_faces_raise_the_same(
    call: Callable[[LLM | AsyncLLM], Awaitable[object]], encoder: LLM, folder: Path
) -> None:
    with pytest.raises(RequestError) as expected:
        call(encoder)

    async def ask(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError) as caught:
            await call(llm)
        assert str(caught.value) == str(expected.value)
        assert caught.value.param == expected.value.param

    _asked(folder, ask)


def test_many_tasks_ask_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedder, "max_waiting", 2)

    async def ask(llm: AsyncLLM) -> list[list[Embedding]]:
        return await asyncio.gather(*(llm.embed(each) for each in TEXTS * 4))

    found = _asked(folder, ask)
    assert len({tuple(each.embedding) for (each,) in found}) == len(TEXTS)
    assert [each for (each,) in found[: len(TEXTS)]] == [each for (each,) in found[-len(TEXTS) :]]


def test_a_cancelled_task_ends_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call need not wait until all texts of the cancelled one are read."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    read: list[list[int]] = []
    pad = Embedder._pad

    def pad_slowly(self: Embedder, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        read.append([len(row["input_ids"]) for row in rows])
        has_begun.set()
        may_go_on.wait(10)
        return pad(self, rows)

    monkeypatch.setattr(Embedder, "_pad", pad_slowly)
    monkeypatch.setattr(encoders, "MAX_BATCH_TOKENS", 1)

    async def ask(llm: AsyncLLM) -> None:
        task = asyncio.create_task(llm.embed(["a"] * 9))
        await asyncio.to_thread(has_begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        assert len(await llm.embed("abc")) == 1

    _asked(folder, ask)
    assert read == [[3], [5]]


def test_closing_ends_what_is_asked(folder: Path) -> None:
    async def ask() -> None:
        llm = AsyncLLM(str(folder), device="cpu")
        await llm.close()
        with pytest.raises(EngineError, match="closed"):
            await llm.embed("a")

    asyncio.run(ask())


@pytest.mark.parametrize("name", ["max_model_len", "max_seq_len"])
def test_the_longest_text_may_be_chosen(name: str, folder: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", name: 10}
    with LLM(str(folder), **options) as llm:
        (whole,) = llm.embed("a" * 8)
        (cut,) = llm.embed("b" * 9 + "a" * 8, truncate_prompt_tokens=-1)
        assert whole.prompt_tokens == cut.prompt_tokens == 10
        assert cut.embedding == whole.embedding
        with pytest.raises(RequestError, match="too long") as caught:
            llm.embed("a" * 9)
        assert (caught.value.found, caught.value.expected) == ("11 tokens", "1 to 10")
        with pytest.raises(RequestError, match="too long"):
            llm.score("a", "a" * 9)


def test_no_text_is_longer_than_the_model_can_read(folder: Path) -> None:
    with LLM(str(folder), device="cpu", max_model_len=10**6) as llm:
        with pytest.raises(RequestError, match="too long") as caught:
            llm.embed("a" * 200)
        assert caught.value.expected == "1 to 64"


def test_a_language_model_embeds_and_scores_on_an_event_loop() -> None:
    async def ask(llm: AsyncLLM, same: LLM) -> None:
        options: dict[str, Any] = {"dimensions": 8, "truncate_prompt_tokens": 2}
        assert await llm.embed(TEXTS, **options) == same.embed(TEXTS, **options)
        assert await llm.score(TEXTS[0], TEXTS) == same.score(TEXTS[0], TEXTS)
        with pytest.raises(RequestError, match="cannot classify"):
            await llm.classify("a")

    with LLM(memory="16MiB", device="cpu") as same:
        asyncio.run(ask(AsyncLLM.of(same.core), same))


def test_a_language_model_takes_the_same_options() -> None:
    with LLM(memory="16MiB") as llm:
        assert llm.embed([]) == []
        (whole,) = _vectors_of(llm, "Once upon a time")
        (short,) = _vectors_of(llm, "Once upon a time", dimensions=8)
        np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)
        ids = llm.tokenizer.encode("Once upon a time")
        (cut,) = llm.embed([ids], truncate_prompt_tokens=2)
        assert cut.prompt_tokens == 2
        (cut,) = llm.score("Once upon a time", "a time", truncate_prompt_tokens=1)
        assert -1 <= cut.score <= 1.001
        with pytest.raises(RequestError, match="no prompts"):
            llm.embed("a", prompt_name="query")
        with pytest.raises(RequestError, match="cannot classify"):
            llm.classify("a")


def test_closing_frees_the_weights_and_ends_what_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(str(folder), device="cpu")
    calls = llm._encoder
    assert calls is not None
    network = weakref.ref(calls._able_to("embedding").network)
    has_begun, may_go_on = threading.Event(), threading.Event()
    real = Encoder._tokenize

    def wait(*args: Any) -> Mapping[str, list[int]]:
        has_begun.set()
        may_go_on.wait(10)
        return real(*args)

    monkeypatch.setattr(Encoder, "_tokenize", wait)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(llm.embed, TEXTS)
        has_begun.wait(10)
        closing = pool.submit(llm.close)
        wait_until(lambda: calls._encoder is None)
        may_go_on.set()
        closing.result()
        with pytest.raises(EngineError, match="not running"):
            running.result()
    del running, closing
    llm.close()
    gc.collect()
    assert network() is None
    assert "bert" in repr(llm)
    for call in (llm.embed, llm.classify, llm.generate, lambda text: llm.score(text, text)):
        with pytest.raises((EngineError, RequestError)) as caught:
            call("a cat")
        is_able = call not in (llm.classify, llm.generate)
        assert isinstance(caught.value, EngineError) == is_able
