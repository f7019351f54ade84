"""Vectors and labels are those of transformers, for a text alone and among others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from blazr.cli.convert import convert
from blazr.cli.info import info
from blazr.cli.verify import verify
from blazr.core.errors import BlazrError, CheckpointError, RequestError
from blazr.llm.load import load_pipeline
from blazr.llm.options import LoadOptions
from blazr.pipelines.encoders.classifier import Classifier
from blazr.pipelines.encoders.embedder import Embedder
from blazr.pipelines.encoders.encoder import Encoder, Gathered, batches
from blazr.pipelines.encoders.request import Cut, ReadRequest
from blazr.pipelines.jobs import JobEndedError
from blazr.pipelines.kinds import (
    CLASSIFICATION,
    EMBEDDING,
    RERANKING,
    check_language_model,
    kind_of,
)
from tests.support import encoder_models
from tests.support.encoder_models import load_encoder, save_classifier, save_encoder

pytestmark = encoder_models.NEEDS_TRANSFORMERS
TEXTS = ("a cat", "The quick brown fox jumps.", "", "x" * 40, "a cat", "Dogs bark")
PROMPTS = {"query": "find: ", "document": "text: "}
TOLERANCE = 1e-5
POOL: dict[str, Callable[[Tensor], Tensor]] = {  # of one text, (T, C)
    "cls_token": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
    "mean_tokens": lambda states: states.mean(0),
    "max_tokens": lambda states: states.amax(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean_tokens": lambda states: (
        (torch.arange(1, len(states) + 1)[:, None] * states).sum(0)
        / (len(states) * (len(states) + 1) / 2)
    ),
}
FAMILIES = {
    "bert": "cls_token",
    "modernbert": "mean_tokens",
    "xlm-roberta": "cls_token",
    "qwen3": "lasttoken",
    "gemma3": "mean_tokens",
}


def read(encoder: Encoder, *texts: Any, **more: Any) -> NDArray[np.float32]:
    found = Gathered(len(texts))
    encoder.read_texts(ReadRequest(texts=texts, **more), found)
    return found.values


def _states_of(path: Path, text: str, auto: str = "AutoModel") -> Any:
    """What transformers says of a text, or of two, alone."""
    import transformers

    network = getattr(transformers, auto).from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    given = (text,) if isinstance(text, str) else text
    with torch.inference_mode():
        return network(**tokenizer(*given, return_tensors="pt"))


def vector_of(path: Path, text: str, pooling: str) -> Tensor:
    vector = POOL[pooling](_states_of(path, text).last_hidden_state[0])
    for name in ("2_Dense", "3_Dense"):
        vector = load_file(path / name / "model.safetensors")["linear.weight"] @ vector
    return vector / vector.norm()


@pytest.fixture(scope="module", params=FAMILIES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / request.param
    save_encoder(path, request.param, pooling=FAMILIES[request.param], prompts=PROMPTS)
    return path


@pytest.fixture(scope="module")
def embedder(place: Path) -> Iterator[Embedder]:
    found = load_encoder(place)
    assert isinstance(found, Embedder)
    yield found
    found.close()


def test_vectors_are_those_of_transformers(embedder: Embedder, place: Path) -> None:
    assert embedder.info.capabilities == (EMBEDDING, RERANKING)
    expected = np.stack([vector_of(place, text, FAMILIES[place.name]) for text in TEXTS])
    np.testing.assert_allclose(read(embedder, *TEXTS), expected, atol=TOLERANCE)
    for text, row in zip(TEXTS, expected, strict=True):
        np.testing.assert_allclose(read(embedder, text)[0], row, atol=TOLERANCE)
    assert np.abs(expected[0] - expected[1]).max() > 0.01


def test_prompts_stand_before_texts(embedder: Embedder, place: Path) -> None:
    expected = vector_of(place, "find: a cat", FAMILIES[place.name])
    for how in ({"prompt_name": "query"}, {"role": "query"}):
        found = read(embedder, "a cat", "longer than that", **how)
        np.testing.assert_allclose(found[0], expected, atol=TOLERANCE)
    with pytest.raises(RequestError, match="prompt"):
        read(embedder, "a cat", prompt_name="other")


def test_texts_that_are_too_long(embedder: Embedder, place: Path) -> None:
    long = "abc" * 30
    with pytest.raises(RequestError, match="too long") as caught:
        read(embedder, "a cat", long)
    assert "48" in str(caught.value)
    pooling = FAMILIES[place.name]
    for cut, kept in (
        (Cut(), long[:46]),
        (Cut(10), long[:8]),
        (Cut(10, "left"), long[-8:]),
        (Cut(1000), long[:46]),
    ):
        found = read(embedder, long, "a", cut=cut)[0]
        np.testing.assert_allclose(found, vector_of(place, kept, pooling), atol=TOLERANCE)


def test_fewer_dimensions_get_length_1_again(embedder: Embedder) -> None:
    whole = read(embedder, *TEXTS)
    short = embedder.shorten(whole, 5)
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    for wrong in (0, 13):
        with pytest.raises(RequestError, match="dimensions"):
            embedder.shorten(whole, wrong)


@pytest.mark.parametrize("pooling", POOL)
def test_every_pooling(pooling: str, tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", pooling=pooling)
    embedder = load_encoder(tmp_path)
    expected = np.stack([vector_of(tmp_path, text, pooling) for text in TEXTS])
    np.testing.assert_allclose(read(embedder, *TEXTS), expected, atol=TOLERANCE)
    embedder.close()


def test_a_network_alone_gives_the_mean_of_its_states(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    embedder = load_encoder(tmp_path)
    expected = _states_of(tmp_path, "a cat").last_hidden_state[0].mean(0)
    np.testing.assert_allclose(read(embedder, "a cat", "b")[0], expected, atol=TOLERANCE)
    embedder.close()


def test_prompts_may_be_left_out_of_vectors_and_be_the_default(tmp_path: Path) -> None:
    more = {"prompts": PROMPTS, "default_prompt_name": "document"}
    save_encoder(tmp_path, "bert", pooling="mean_tokens", **more)
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    for name in ("2_Dense", "3_Dense"):
        rows = json.loads((tmp_path / "modules.json").read_text())
        kept = [row for row in rows if row["path"] != name]
        (tmp_path / "modules.json").write_text(json.dumps(kept))
    embedder = load_encoder(tmp_path)
    states = _states_of(tmp_path, "text: a cat").last_hidden_state[0]
    expected = states[1 + len("text: ") :].mean(0)
    found = read(embedder, "a cat", "something else")[0]
    np.testing.assert_allclose(found, expected / expected.norm(), atol=TOLERANCE)
    embedder.close()


@pytest.mark.parametrize("family", ["bert", "modernbert", "xlm-roberta", "qwen3"])
def test_cross_encoders_score_pairs_as_transformers_does(family: str, tmp_path: Path) -> None:
    save_classifier(tmp_path, family, num_labels=1)
    classifier = load_encoder(tmp_path)
    assert isinstance(classifier, Classifier)
    assert classifier.info.capabilities == (RERANKING, CLASSIFICATION)
    pairs = [("a cat", "The cat sat."), ("a cat", "x"), ("dogs", "Dogs bark at the moon.")]
    auto = "AutoModelForSequenceClassification"
    expected = torch.stack([_states_of(tmp_path, pair, auto).logits[0] for pair in pairs])
    found = read(classifier, *pairs)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    np.testing.assert_allclose(read(classifier, pairs[0]), expected[:1], atol=TOLERANCE)
    np.testing.assert_allclose(classifier.scores(found), expected[:, 0].sigmoid(), atol=TOLERANCE)
    classifier.close()


def test_a_score_is_made_as_the_model_says(tmp_path: Path) -> None:
    own = {"activation_fn": "torch.nn.modules.linear.Identity"}
    save_classifier(tmp_path, "bert", num_labels=1, sentence_transformers=own)
    classifier = load_encoder(tmp_path)
    assert isinstance(classifier, Classifier)
    logits = read(classifier, ("a", "b"))
    assert classifier.scores(logits) == logits[:, 0].tolist()
    classifier.close()
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "os.system"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        load_encoder(tmp_path)


@pytest.mark.parametrize("is_multi", [False, True])
def test_classifiers_give_each_label_its_probability(is_multi: bool, tmp_path: Path) -> None:
    kind = "multi_label_classification" if is_multi else "single_label_classification"
    save_classifier(tmp_path, "bert", num_labels=3, problem_type=kind)
    classifier = load_encoder(tmp_path)
    assert isinstance(classifier, Classifier)
    assert classifier.info.capabilities == (CLASSIFICATION,)
    assert classifier.labels == ["label 0", "label 1", "label 2"]
    auto = "AutoModelForSequenceClassification"
    expected = torch.stack([_states_of(tmp_path, text, auto).logits[0] for text in TEXTS])
    expected = expected.sigmoid() if is_multi else expected.softmax(-1)
    logits = read(classifier, *TEXTS)
    found = classifier.probabilities(logits)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    alone = classifier.probabilities(logits, is_single_label=True)
    np.testing.assert_allclose(alone.sum(-1), 1, atol=TOLERANCE)
    classifier.close()


@pytest.mark.parametrize("num_labels", [1, 3])
def test_numbers_of_a_regression_are_no_probabilities(num_labels: int, tmp_path: Path) -> None:
    """As transformers' pipeline and vLLM give them."""
    save_classifier(tmp_path, "bert", num_labels=num_labels, problem_type="regression")
    classifier = load_encoder(tmp_path)
    assert isinstance(classifier, Classifier)
    auto = "AutoModelForSequenceClassification"
    expected = torch.stack([_states_of(tmp_path, text, auto).logits[0] for text in TEXTS])
    found = classifier.probabilities(read(classifier, *TEXTS))
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    classifier.close()


class Leaving(Gathered):
    def check(self) -> None:
        if self.num_tokens:
            raise JobEndedError


def test_who_leaves_ends_the_work_between_two_batches(embedder: Embedder) -> None:
    texts = ["a" * 40] * 500
    left = Leaving(len(texts))
    with pytest.raises(JobEndedError):
        embedder.read_texts(ReadRequest(texts=texts), left)
    assert 0 < left.num_tokens <= 8192


def test_batches_hold_every_text_once() -> None:
    lengths = [1, 9000, 3, 4000, 4000, 5000, *[7] * 2000]
    found = list(batches(lengths))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or max(lengths[x] for x in batch) * len(batch) <= 8192
    assert not list(batches([]))


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("modules.json", [{"path": "", "type": "sentence_transformers.models.CNN"}]),
        ("modules.json", [{"path": "../other", "type": "a.Pooling"}]),
        ("modules.json", [{"path": 3}]),
        ("modules.json", [1]),
        ("modules.json", {"a": 1}),
        ("1_Pooling/config.json", {}),
        ("1_Pooling/config.json", {"pooling_mode": "other"}),
        ("2_Dense/config.json", {"in_features": 16, "out_features": 25, "bias": False}),
        ("2_Dense/config.json", {"in_features": 16, "out_features": 24, "bias": True}),
        ("sentence_bert_config.json", {"max_seq_length": "many"}),
        ("sentence_bert_config.json", {"max_seq_length": -5}),
        ("config_sentence_transformers.json", [1]),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ("config_sentence_transformers.json", {"prompts": {"a": "b"}, "default_prompt_name": "c"}),
        ("config_sentence_transformers.json", {"default_prompt_name": ["query"]}),
    ],
)
def test_files_that_are_not_understood_are_refused(
    file: str, value: object, tmp_path: Path
) -> None:
    save_encoder(tmp_path, "bert", pooling="mean_tokens")
    (tmp_path / file).write_text(json.dumps(value))
    with pytest.raises(BlazrError):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("num_labels", "route"), [(0, "/v1/embeddings"), (1, "/v1/rerank"), (3, "/classify")]
)
def test_commands_for_language_models_say_what_it_is(
    num_labels: int, route: str, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    if num_labels:
        save_classifier(path, "bert", num_labels=num_labels)
    else:
        save_encoder(path, "bert")
    for refused in (
        lambda: convert(str(path), tmp_path / "out"),
        lambda: verify(str(path)),
        lambda: info(str(path), fit=True),
    ):
        with pytest.raises(CheckpointError, match="no language model") as caught:
            refused()
        assert route in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "is_encoder"),
    [("BertModel", True), ("BertForMaskedLM", True), ("BertLMHeadModel", False)],
)
def test_layers_that_look_back_are_a_language_model(
    architecture: str, is_encoder: bool, tmp_path: Path
) -> None:
    """The commands and the server agree on which models are encoders."""
    config = {"model_type": "bert", "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    kind = kind_of(tmp_path)
    assert (kind is not None) == is_encoder
    if not is_encoder:
        check_language_model(config)
        return
    with pytest.raises(CheckpointError):
        check_language_model(config)


def test_flags_that_say_nothing_to_an_encoder_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_encoder(tmp_path / "model", "bert")
    path = str(tmp_path / "model")
    options = LoadOptions(path, quantize="int8", tp=2, spec="ngram", kv_dtype="q8_0", exact=True)
    found = load_pipeline(options)
    assert found is not None
    found.close()
    assert "without --quantize, --tp, --spec, --exact, --kv-dtype" in caplog.text
