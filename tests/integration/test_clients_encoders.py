"""Vectors, scores and labels by encoders, on the routes that language models have too."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx2
import numpy as np
import openai
import pytest
import torch

from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.llm.llm import LLM
from blazr.pipelines.pipeline import Pipeline
from blazr.server.config import ServerConfig
from blazr.server.served import ServedPipeline
from tests.support import encoder_models
from tests.support.encoder_ggufs import save_embedding_model, save_ranking_model
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import wait_until

if TYPE_CHECKING:
    from blazr.pipelines.encoders.embedder import Embedder

pytestmark = encoder_models.NEEDS_TRANSFORMERS
TEXTS = ["a cat", "a cat sat on the mat", "dogs"]
HAS_GGUF = find_spec("gguf") is not None  # which knows llama.cpp's names
LONG = "a" * 100
PROMPTS = {"query": "find: ", "document": "text: "}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders and files, by the names that the server gives them."""
    path = tmp_path_factory.mktemp("models")
    encoder_models.save_encoder(path / "vectors", "bert", pooling="mean_tokens", prompts=PROMPTS)
    encoder_models.save_classifier(path / "ranks", "bert", num_labels=1)
    encoder_models.save_classifier(path / "labels", "bert", num_labels=3)
    found = {name: path / name for name in ("vectors", "ranks", "labels")}
    if HAS_GGUF:
        model = save_embedding_model(path / "hf", "bert", "bert", "cls_token", "word pieces")
        found |= {"hf": path / "hf", "file": model.write(path / "vectors.gguf")}
        model = save_ranking_model(path / "hf-ranks", "bert", "xlm-roberta", "unigrams")
        found |= {"hf-ranks": path / "hf-ranks", "file-ranks": model.write(path / "r.gguf")}
    return found


@pytest.fixture(scope="module")
def server(places: dict[str, Path]) -> Iterator[Loopback]:
    flags = ServeFlags(device="cpu", memory="16MiB")
    names = [f"{name}={path}" for name, path in places.items()]
    plans = plan_models(["text=nano", *names], None, flags, default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A server without a language model."""
    del server  # its tests first: each takes a while to start
    path = tmp_path_factory.mktemp("alone")
    encoder_models.save_encoder(path / "vectors", "bert", pooling="mean_tokens", prompts=PROMPTS)
    encoder_models.save_classifier(path / "ranks", "xlm-roberta", num_labels=1)
    names = [f"{name}={path / name}" for name in ("vectors", "ranks")]
    plans = plan_models(names, None, ServeFlags(device="cpu"), default="nano")
    models = open_models(plans, ServerConfig(host="127.0.0.1", port=0))
    with serving_models(models) as running:
        yield running


def post(server: Loopback, path: str, **body: object) -> httpx2.Response:
    return server.client.post(path, json=body, timeout=60)


def pipeline_of(server: Loopback, name: str) -> Pipeline:
    vectors(server, "load it", model=name)
    model = server.models.find(name).model
    assert isinstance(model, ServedPipeline)
    return model.pipeline


def vectors(server: Loopback, *texts: str, **more: object) -> np.ndarray:
    reply = post(server, "/v1/embeddings", **{"model": "vectors", "input": texts, **more})
    assert reply.status_code == 200, reply.text
    return np.array([row["embedding"] for row in reply.json()["data"]])


def test_the_models_show_what_they_can_do(server: Loopback) -> None:
    cards = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    expected = {
        "text": ["completion", "embedding", "reranking"],
        "vectors": ["embedding", "reranking"],
        "ranks": ["reranking", "classification"],
        "labels": ["classification"],
    }
    if HAS_GGUF:
        expected |= dict.fromkeys(("hf", "file"), expected["vectors"])
        expected |= dict.fromkeys(("hf-ranks", "file-ranks"), expected["ranks"])
    assert {name: card["capabilities"] for name, card in cards.items()} == expected


@pytest.mark.parametrize("model", ["vectors", "ranks", "file", "file-ranks"])
def test_python_gets_the_same_numbers(
    server: Loopback, places: dict[str, Path], model: str
) -> None:
    if model not in places:
        pytest.skip("names of tensors are the gguf package's")
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1:]}
    rows = post(server, "/v1/score", model=model, **body).json()["data"]
    with LLM(str(places[model]), device="cpu") as llm:
        found = [each.score for each in llm.score(*body.values())]
        np.testing.assert_allclose(found, [row["score"] for row in rows], atol=1e-6)
        if "ranks" not in model:
            found = [each.embedding for each in llm.embed(TEXTS)]
            np.testing.assert_allclose(found, vectors(server, *TEXTS, model=model), atol=1e-6)


def test_predictions_are_those_of_text_embeddings_inference(server: Loopback) -> None:
    def _predict(inputs: object, model: str = "labels", **more: object) -> Any:
        reply = post(server, "/predict", model=model, inputs=inputs, **more)
        assert reply.status_code == 200, reply.text
        return reply.json()

    rows = post(server, "/classify", model="labels", input=TEXTS).json()["data"]
    alone = _predict(TEXTS[0])
    assert alone[0]["label"] == rows[0]["label"]
    scores = [each["score"] for each in alone]
    # of a batch with other texts; sums are rounded otherwise there
    assert scores == pytest.approx(sorted(rows[0]["probs"], reverse=True), abs=1e-6)
    for found, row in zip(_predict([[text] for text in TEXTS]), rows, strict=True):
        by_label = {each["label"]: each["score"] for each in found}
        wanted = {f"label {place}": prob for place, prob in enumerate(row["probs"])}
        assert by_label == pytest.approx(wanted, abs=1e-6)
    raw = {each["label"]: each["score"] for each in _predict(TEXTS[0], raw_scores=True)}
    numbers = np.exp([raw[f"label {n}"] for n in range(3)])
    np.testing.assert_allclose(numbers / numbers.sum(), rows[0]["probs"], atol=1e-6)
    (pair,) = _predict(TEXTS[:2], model="ranks")
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1]}
    score = post(server, "/v1/score", model="ranks", **body).json()["data"][0]["score"]
    assert pair == {"score": pytest.approx(score, abs=1e-6), "label": "label 0"}
    (again,), (alone,) = _predict([TEXTS[:2], TEXTS[:1]], model="ranks")
    assert again == {"score": pytest.approx(score, abs=1e-6), "label": "label 0"}
    assert alone["score"] != pytest.approx(score, abs=1e-6)
    assert _predict("a" * 100, truncate=True) == _predict("a" * 62)
    for wrong in (TEXTS, ["a", ["b"]], [["a"], ["a", "b", "c"]], [[]], "a" * 100):
        refused = post(server, "/predict", model="labels", inputs=wrong)
        assert refused.status_code == 400, wrong
        assert refused.json()["error_type"] == "Validation"
    assert post(server, "/predict", model="vectors", inputs="a").json()["error_type"]


def test_clients_of_text_embeddings_inference_ask_what_a_model_is(
    server: Loopback, alone: Loopback, places: dict[str, Path]
) -> None:
    told = alone.client.get("/info").json()
    assert told["model_id"] == "vectors"
    assert told["model_type"] == {"embedding": {"pooling": "mean"}}
    assert told["model_dtype"] == "float32"
    assert (told["max_input_length"], told["max_client_batch_size"]) == (48, 2048)
    labels = {f"label {place}": place for place in range(3)}
    expected: dict[str, object] = {
        "ranks": {"reranker": {"id2label": {"0": "label 0"}, "label2id": {"label 0": 0}}},
        "labels": {
            "classifier": {
                "id2label": {str(place): label for label, place in labels.items()},
                "label2id": labels,
            }
        },
    }
    if "file" in places:
        expected["file"] = {"embedding": {"pooling": "cls"}}
    for name, wanted in expected.items():
        found = server.client.get("/info", params={"model": name}).json()
        assert found["model_type"] == wanted, name
    refused = server.client.get("/info", params={"model": "text"})
    assert refused.status_code == 400
    assert "encoder" in refused.json()["error"]


@pytest.mark.skipif(not HAS_GGUF, reason="names of tensors are the gguf package's")
def test_a_gguf_file_answers_as_the_folder_it_is_made_of(server: Loopback) -> None:
    def _both(path: str, kind: str = "", **body: object) -> list[dict[str, Any]]:
        replies = [post(server, path, model=f"{each}{kind}", **body) for each in ("hf", "file")]
        assert len({each.status_code for each in replies}) == 1, replies[1].text
        return [each.json() for each in replies]

    for path, key in (("/v1/embeddings", "data"), ("/api/embed", "embeddings")):
        theirs, ours = (each[key] for each in _both(path, input=TEXTS))
        if key == "data":
            theirs, ours = ([row["embedding"] for row in each] for each in (theirs, ours))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    ranked = _both("/v1/rerank", "-ranks", query="a cat", documents=TEXTS)
    theirs, ours = ([row["relevance_score"] for row in each["results"]] for each in ranked)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert ranked[1]["usage"] == ranked[0]["usage"]
    for path in ("/v1/completions", "/api/generate"):
        theirs, ours = (each["error"] for each in _both(path, prompt="a"))
        assert str(ours).replace("'file'", "'hf'") == str(theirs)
    tags = server.client.get("/api/tags").json()["models"]
    assert {"hf:latest", "file:latest"} <= {each["name"] for each in tags}
    assert server.client.get("/props").status_code == 200
    theirs, ours = _both("/tokenize", prompt="a cat", return_token_strs=True)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["token_strs"][0] == "[CLS]"
    theirs, ours = _both("/tokenize", content="a cat")
    assert ours["tokens"] == theirs["tokens"]
    theirs, ours = (each["content"] for each in _both("/detokenize", tokens=[2, 4, 5, 3]))
    assert ours.replace(" ", "") == theirs.replace(" ", "")
    theirs, ours = (each["model_info"] for each in _both("/api/show"))
    assert ours["bert.embedding_length"] == theirs["bert.embedding_length"] == 12


@pytest.mark.parametrize("model", ["vectors", "ranks"])
def test_the_field_with_the_text_at_fault_is_named(server: Loopback, model: str) -> None:
    long = "a cat " * 100
    for path, body, param in (
        ("/v1/score", {"text_1": long, "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "", "text_2": ["a", long]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        ("/v1/rerank", {"query": long, "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["", long]}, "documents"),
        ("/v1/rerank", {"query": "a" * 40, "documents": ["b"] * 2049}, "documents"),
    ):
        reply = post(server, path, model=model, **body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), path


def test_clients_of_ollama_and_llama_cpp_can_ask_about_encoders(alone: Loopback) -> None:
    shown = post(alone, "/api/show", model="vectors:latest").json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["details"]["family"] == "bert"
    facts = {"bert.context_length": 48, "bert.embedding_length": 12}
    assert shown["model_info"].items() >= {**facts, "general.architecture": "bert"}.items()
    ranks = post(alone, "/api/show", model="ranks").json()
    assert (ranks["capabilities"], ranks["template"]) == ([], "")
    assert "xlm-roberta.embedding_length" not in ranks["model_info"]
    props = alone.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 48
    assert (props["total_slots"], props["model_alias"]) == (1, "vectors")
    assert props["modalities"] == {"vision": False, "audio": False}
    assert alone.client.get("/props", params={"model": "ranks"}).json()["model_alias"] == "ranks"
    (slot,) = alone.client.get("/slots").json()
    assert (slot["n_ctx"], slot["is_processing"]) == (48, False)
    card = alone.client.get("/v1/models/vectors").json()
    assert card["max_model_len"] == card["meta"]["n_ctx_train"] == 48
    known = alone.client.get("/server_info").json()["models"]
    assert [each["max_model_len"] for each in known] == [48, 63]
    assert alone.client.get("/debug/cache").status_code == 501


def test_an_encoder_s_texts_as_tokens_and_back(alone: Loopback) -> None:
    tokens = post(alone, "/tokenize", prompt="a cat").json()
    ids = [4 + ord(each) for each in "a cat"]
    assert tokens == {
        "count": 7,
        "max_model_len": 48,
        "tokens": [2, *ids, 3],
        "token_strs": None,
    }
    plain = post(alone, "/tokenize", content="ab", with_pieces=True).json()["tokens"]
    assert plain == [{"id": 4 + ord(each), "piece": each} for each in "ab"]
    strings = post(alone, "/tokenize", prompt="a", return_token_strs=True).json()
    assert strings["token_strs"] == ["[CLS]", "a", "[SEP]"]
    back = post(alone, "/detokenize", tokens=ids).json()["content"]
    assert back.replace(" ", "") == "acat"
    for path, body, param in (
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/tokenize", {}, "messages"),
    ):
        reply = post(alone, path, **body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), path


def test_llama_cpp_s_clients_get_vectors(alone: Loopback) -> None:
    expected = vectors(alone, *TEXTS)
    for path in ("/embedding", "/embeddings"):
        rows = post(alone, path, content=TEXTS).json()
        assert [row["index"] for row in rows] == [0, 1, 2]
        found = [row["embedding"] for row in rows]
        assert {len(each) for each in found} == {1}
        np.testing.assert_allclose(np.array(found)[:, 0], expected, atol=1e-6)
        (row,) = post(alone, path, content="a cat", embd_normalize=2, dimensions=4).json()
        assert len(row["embedding"][0]) == 4
        refused = post(alone, path, content="a" * 100)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "content")
    found = post(alone, "/embedding", input="a cat").json()
    np.testing.assert_allclose(found[0]["embedding"], expected[:1], atol=1e-5)
    with openai.OpenAI(base_url=alone.url, api_key="none", max_retries=0) as client:
        rows = client.embeddings.create(model="vectors", input=TEXTS).data
    np.testing.assert_allclose([row.embedding for row in rows], expected, atol=1e-6)


def test_clients_of_text_embeddings_inference(alone: Loopback) -> None:
    expected = vectors(alone, *TEXTS)
    found = post(alone, "/embed", inputs=TEXTS).json()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    refused = post(alone, "/embed", inputs="a" * 100)
    assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation")
    assert "1 to 48" in refused.json()["error"]
    asked = post(alone, "/embed", inputs="a cat", prompt_name="query", normalize=False).json()
    np.testing.assert_allclose(asked, vectors(alone, "find: a cat"), atol=1e-6)
    ends = "b" * 60 + "a" * 46
    cut = post(alone, "/embed", inputs=ends, truncate=True, truncation_direction="Left").json()
    np.testing.assert_allclose(cut, vectors(alone, "a" * 46), atol=1e-6)
    cut = post(alone, "/embed", inputs=ends, truncate=True).json()
    np.testing.assert_allclose(cut, vectors(alone, "b" * 46), atol=1e-6)
    theirs = post(alone, "/rerank", query="a", documents=TEXTS, model="ranks").json()["results"]
    ranked = post(alone, "/rerank", query="a", texts=TEXTS, model="ranks", raw_scores=False).json()
    assert ranked == [{"index": e["index"], "score": e["relevance_score"]} for e in theirs]
    (one,) = post(alone, "/rerank", query="a", texts=["b"], return_text=True).json()
    assert one["text"] == "b"
    long = {"query": "a", "texts": ["a" * 100], "model": "ranks"}
    refused = post(alone, "/rerank", **long)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "texts")
    assert post(alone, "/rerank", **long, truncate=True).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("/v1/embeddings", {"input": LONG}, "truncate_prompt_tokens=-1 keeps what fits"),
        ("/embed", {"inputs": LONG}, "truncate can keep what fits"),
        ("/predict", {"inputs": LONG, "model": "ranks"}, "truncate can keep what fits"),
        ("/rerank", {"query": LONG, "texts": ["a"]}, "truncate can keep what fits"),
        ("/api/embed", {"input": LONG, "truncate": False}, "truncate can keep what fits"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, "truncate can keep what fits"),
        ("/api/embeddings", {"prompt": LONG}, "send a shorter text"),
    ],
)
def test_a_long_text_is_refused_with_a_field_of_its_endpoint(
    alone: Loopback, path: str, body: dict[str, object], hint: str
) -> None:
    reply = post(alone, path, **body)
    assert reply.status_code == 400
    assert f"Try: {hint}." in reply.text


def test_a_wrong_length_of_vectors_is_named_as_cohere_does(alone: Loopback) -> None:
    reply = post(alone, "/v2/embed", texts=["a"], output_dimension=13)
    assert reply.status_code == 400
    assert "output_dimension is out of range" in reply.text


def test_an_address_names_the_model_where_the_body_does_not(server: Loopback) -> None:
    """Clients of text-embeddings-inference send no model; here the first one writes text."""
    expected = vectors(server, "a cat")
    for path, body in (
        ("/embed?model=vectors", {"inputs": "a cat"}),
        ("/embed?model=vectors", {"inputs": "a cat", "model": None}),
        ("/embed?model=text", {"inputs": "a cat", "model": "vectors"}),
    ):
        np.testing.assert_allclose(post(server, path, **body).json(), expected, atol=1e-6)
    inputs = {"source_sentence": "a", "sentences": ["b"]}
    for path, status in (("/embed_all?model=vectors", 200), ("/embed_all?model=nobody", 404)):
        assert post(server, path, inputs="a cat").status_code == status, path
    found = post(server, "/similarity?model=vectors", inputs=inputs).json()
    assert found == pytest.approx([float(vectors(server, "a")[0] @ vectors(server, "b")[0])])


def test_the_hub_s_clients_ask_at_the_address_alone(server: Loopback, alone: Loopback) -> None:
    """Bodies as `InferenceClient` and its sister for JavaScript send them."""
    found = post(alone, "/", inputs=TEXTS).json()
    np.testing.assert_allclose(found, vectors(alone, *TEXTS), atol=1e-6)
    asked = post(alone, "/", inputs="a cat", prompt_name="query", normalize=False).json()
    np.testing.assert_allclose(asked, vectors(alone, "find: a cat"), atol=1e-6)
    compared = {"inputs": {"source_sentence": "a cat", "sentences": TEXTS}}
    found = post(alone, "/", **compared, parameters={}).json()
    assert found == pytest.approx(post(alone, "/similarity", **compared).json(), abs=1e-6)

    def _labels(**parameters: object) -> Any:
        (found,) = post(server, "/?model=labels", inputs="a cat", parameters=parameters).json()
        return found

    best, *others = post(server, "/predict", inputs="a cat", model="labels").json()
    assert _labels() == [best, *others]
    assert _labels(top_k=1) == [best]
    raw = post(server, "/predict", inputs="a cat", model="labels", raw_scores=True).json()
    assert _labels(function_to_apply="none") == raw
    squashed = [each["score"] for each in _labels(function_to_apply="sigmoid")]
    assert squashed == pytest.approx([1 / (1 + np.exp(-each["score"])) for each in raw])

    ranking = {"query": "a", "texts": TEXTS}
    for name in ("vectors", "ranks"):
        ranked = post(server, "/", **ranking, model=name).json()
        assert ranked == post(server, "/rerank", **ranking, model=name).json()
    written = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
    assert post(server, "/", **written).json() == [post(server, "/generate", **written).json()]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": LONG}, "truncate can keep what fits"),
        ({"inputs": [["a", "b"]]}, "a text, or a list of texts"),
        ({"inputs": ["a"], "model": "text"}, "a text"),
        ({"inputs": "a", "model": "nobody"}, "nobody"),
        ({"inputs": ["a", "b", "c"], "model": "labels"}, "a pair [a, b]"),
        ({"inputs": "a", "model": "labels", "parameters": {"top_k": 0}}, "at least 1"),
        ({"texts": ["a"]}, "query"),
        ({"query": "a"}, "inputs"),
        ({}, "inputs"),
        ({"inputs": "a", "query": "a", "texts": ["a"]}, "one of them"),
        ({"query": "a", "texts": ["a"], "model": "labels"}, "cannot score texts"),
        ({"inputs": {"source_sentence": "a", "sentences": ["a"]}, "model": "ranks"}, "embed"),
    ],
)
def test_what_nobody_can_answer_at_the_address_alone_is_told(
    server: Loopback, body: dict[str, object], said: str
) -> None:
    reply = post(server, "/", **{"model": "vectors", **body})
    assert reply.status_code in {400, 404}
    assert reply.json()["error_type"] == "validation"
    assert said in reply.json()["error"]


def test_clients_of_text_embeddings_inference_compare_sentences(alone: Loopback) -> None:
    inputs = {"source_sentence": "a cat", "sentences": TEXTS}  # as InferenceClient sends them
    found = post(alone, "/similarity", inputs=inputs).json()
    np.testing.assert_allclose(
        found, vectors(alone, *TEXTS) @ vectors(alone, "a cat")[0], atol=1e-6
    )
    parameters = {"prompt_name": "query", "truncate": True, "truncation_direction": "Left"}
    long = {"source_sentence": "a cat", "sentences": ["b" * 60 + "a" * 46]}
    found = post(alone, "/similarity", inputs=long, parameters=parameters).json()
    expected = vectors(alone, "a" * 46)[0] @ vectors(alone, "a cat", prompt_name="query")[0]
    np.testing.assert_allclose(found, [expected], atol=1e-6)
    for wrong in (long, {"source_sentence": "a cat", "sentences": []}, {"sentences": TEXTS}):
        refused = post(alone, "/similarity", inputs=wrong)
        assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation"), wrong


def test_clients_of_text_embeddings_inference_get_the_states_of_tokens(
    alone: Loopback, server: Loopback
) -> None:
    found = post(alone, "/embed_all", inputs=TEXTS).json()
    assert [len(states) for states in found] == [len(text) + 2 for text in TEXTS]
    embedder = cast("Embedder", pipeline_of(alone, "vectors"))
    states = [torch.tensor([each]) for each in found]
    pooled = [embedder.finish(each, torch.ones(each.shape[:2]), num_hidden=0) for each in states]
    np.testing.assert_allclose(torch.cat(pooled).detach(), vectors(alone, *TEXTS), atol=1e-5)
    (one,) = post(alone, "/embed_all", inputs=TEXTS[0]).json()
    np.testing.assert_allclose(one, found[0], atol=1e-5)
    (asked,) = post(alone, "/embed_all", inputs="a cat", prompt_name="query").json()
    assert len(asked) == len("find: a cat") + 2
    (cut,) = post(alone, "/embed_all", inputs="a" * 100, truncate=True).json()
    assert len(cut) == 48
    for wrong in ([], "a" * 100, ["a" * 40] * 200):
        refused = post(alone, "/embed_all", inputs=wrong)
        assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation")
    refused = post(server, "/embed_all", inputs="a", model="text")
    assert refused.status_code == 400
    assert "embedding model" in refused.json()["error"]


def test_cohere_s_clients_get_vectors(alone: Loopback) -> None:
    reply = post(alone, "/v2/embed", texts=TEXTS, embedding_types=["float", "base64"]).json()
    expected = vectors(alone, *TEXTS)
    np.testing.assert_allclose(reply["embeddings"]["float"], expected, atol=1e-6)
    packed = [np.frombuffer(b64decode(x), "<f4") for x in reply["embeddings"]["base64"]]
    np.testing.assert_allclose(packed, expected, atol=1e-6)
    assert reply["meta"]["billed_units"]["input_tokens"] == sum(len(x) + 2 for x in TEXTS)
    for kind, prompt in (("search_query", "find: "), ("search_document", "text: ")):
        asked = post(alone, "/v2/embed", texts=["a cat"], input_type=kind).json()["embeddings"]
        assert list(asked) == ["float"]
        np.testing.assert_allclose(asked["float"], vectors(alone, f"{prompt}a cat"), atol=1e-6)
    ends = ["b" * 60 + "a" * 46]
    for side, kept in (("START", "a" * 46), ("END", "b" * 46)):
        cut = post(alone, "/v2/embed", texts=ends, truncate=side).json()["embeddings"]["float"]
        np.testing.assert_allclose(cut, vectors(alone, kept), atol=1e-6)
    refused = post(alone, "/v2/embed", texts=ends, truncate="NONE")
    assert refused.status_code == 400
    packed = post(alone, "/v2/embed", texts=TEXTS, embedding_types=["binary", "ubinary"]).json()
    bits = np.unpackbits(np.array(packed["embeddings"]["ubinary"], np.uint8), axis=1)
    assert bits.shape == (3, 16)  # the last byte's end is zeros
    np.testing.assert_array_equal(bits, np.pad(expected > 0, ((0, 0), (0, 4))))
    signed = np.array(packed["embeddings"]["binary"])
    np.testing.assert_array_equal(signed, np.array(packed["embeddings"]["ubinary"]) - 128)
    refused = post(alone, "/v2/embed", texts=TEXTS, embedding_types=["int8"])
    assert refused.status_code == 400
    assert "'ubinary'" in refused.json()["message"]
    plain = post(alone, "/v1/embed", texts=TEXTS).json()
    assert (plain["response_type"], plain["meta"]["api_version"]["version"]) == (
        "embeddings_floats",
        "1",
    )
    np.testing.assert_allclose(plain["embeddings"], expected, atol=1e-6)
    typed = post(alone, "/v1/embed", texts=TEXTS, embedding_types=["float"]).json()
    assert typed["embeddings"] == {"float": plain["embeddings"]}
    for path, status in (
        ("/v2/rerank", 400),
        ("/v2/embed", 400),
        ("/v1/embed", 400),
        ("/v2/chat", 404),
    ):
        refused = post(alone, path, model="nobody")
        assert refused.status_code == status
        assert list(refused.json()) == ["message"], path


def test_many_clients_at_once_all_wait_for_their_turn(server: Loopback) -> None:
    jobs = pipeline_of(server, "vectors").jobs
    gate = threading.Event()

    async def hold() -> None:
        jobs.start(lambda _: gate.wait(60))

    asyncio.run(hold())
    with ThreadPoolExecutor(40) as pool:
        try:
            asked = [pool.submit(vectors, server, "a cat") for _ in range(40)]
            wait_until(lambda: jobs.figures["waiting"] == len(asked))
        finally:
            gate.set()
        found = [each.result() for each in asked]
    assert all(np.array_equal(each, found[0]) for each in found)


def test_an_encoder_has_no_adapters(server: Loopback) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        reply = post(server, path, model="vectors", adapter="first", **body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "adapter"), path


def test_openai_s_client_gets_vectors(server: Loopback) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="vectors", input=TEXTS)  # as base64
        rows = np.array([each.embedding for each in found.data])
        assert found.usage.prompt_tokens == sum(len(each) + 2 for each in TEXTS)
        short = client.embeddings.create(model="vectors", input=TEXTS, dimensions=4)
    assert rows.shape == (3, 12)
    np.testing.assert_allclose(rows, vectors(server, *TEXTS), atol=1e-6)
    np.testing.assert_allclose(rows[1], vectors(server, TEXTS[1])[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    parts = rows[:, :4] / np.linalg.norm(rows[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose([each.embedding for each in short.data], parts, atol=1e-5)


def test_prompts_and_other_dialects(server: Loopback) -> None:
    asked = vectors(server, "a cat", prompt_name="query")
    np.testing.assert_allclose(asked, vectors(server, "find: a cat"), atol=1e-6)
    reply = post(server, "/api/embed", model="vectors", input=["a cat", "a" * 100]).json()
    np.testing.assert_allclose(reply["embeddings"][0], vectors(server, "a cat")[0], atol=1e-6)
    np.testing.assert_allclose(reply["embeddings"][1], vectors(server, "a" * 46)[0], atol=1e-6)
    old = post(server, "/api/embeddings", model="vectors", prompt="a cat").json()
    np.testing.assert_allclose(old["embedding"], vectors(server, "a cat")[0], atol=1e-6)


def test_language_models_go_on_as_before(server: Loopback) -> None:
    for model in ({"model": "text"}, {}):
        reply = post(server, "/v1/embeddings", input=["a", [1, 2]], **model).json()
        assert reply["model"] == "text"
        rows = np.array([row["embedding"] for row in reply["data"]])
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    said = post(server, "/v1/rerank", query="a", documents=["b"], method="embedding")
    assert said.json()["model"] == "text"
    assert post(server, "/v1/completions", prompt="a", max_tokens=1).status_code == 200


def test_documents_are_put_in_order_by_their_vectors(server: Loopback) -> None:
    reply = post(server, "/v1/rerank", model="vectors", query="a cat", documents=TEXTS).json()
    scores = {row["index"]: row["relevance_score"] for row in reply["results"]}
    asked = vectors(server, "a cat", prompt_name="query")[0]
    expected = vectors(server, *TEXTS, prompt_name="document") @ asked
    np.testing.assert_allclose([scores[x] for x in range(3)], expected, atol=1e-5)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    found = post(server, "/v1/score", model="vectors", text_1="a cat", text_2=TEXTS).json()
    plain = vectors(server, *TEXTS) @ vectors(server, "a cat")[0]
    np.testing.assert_allclose([row["score"] for row in found["data"]], plain, atol=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_cross_encoder_puts_documents_in_order(server: Loopback, path: str) -> None:
    reply = post(server, path, model="ranks", query="a cat", documents=TEXTS, top_n=2).json()
    scores = [row["relevance_score"] for row in reply["results"]]
    assert len(scores) == 2
    assert 0 < scores[1] <= scores[0] < 1
    alone = [
        post(server, "/score", model="ranks", text_1="a cat", text_2=text).json() for text in TEXTS
    ]
    expected = sorted((each["data"][0]["score"] for each in alone), reverse=True)[:2]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert reply["usage"]["prompt_tokens"] == sum(len(text) + len("a cat") + 3 for text in TEXTS)


@pytest.mark.parametrize("model", ["ranks", "vectors"])
def test_an_encoder_s_documents_may_be_cut(server: Loopback, model: str) -> None:
    body = {"model": model, "query": "a cat", "documents": ["a b c d " + LONG, "b"]}
    refused = post(server, "/v2/rerank", **body)
    assert (refused.status_code, "max_tokens_per_doc" in refused.text) == (400, True)
    found = post(server, "/v2/rerank", **body, max_tokens_per_doc=4).json()["results"]
    (short,) = (each for each in found if each["index"] == 0)
    assert short["document"]["text"] == body["documents"][0]
    cut = {**body, "documents": ["a b "]}
    expected = post(server, "/v2/rerank", **cut).json()["results"][0]["relevance_score"]
    assert short["relevance_score"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.skipif(not HAS_GGUF, reason="gguf writes the files")
def test_documents_are_cut_alike_by_the_tokenizer_of_a_file(server: Loopback) -> None:
    text = "a cat sat on the mat"
    body = {"query": "a cat", "documents": [text], "max_tokens_per_doc": 3}
    found = [
        post(server, "/v1/rerank", model=model, **body).json()["results"][0]
        for model in ("hf-ranks", "file-ranks")
    ]
    assert found[0]["relevance_score"] == pytest.approx(found[1]["relevance_score"], abs=1e-5)
    body.pop("max_tokens_per_doc")
    whole = post(server, "/v1/rerank", model="hf-ranks", **body).json()["results"][0]
    assert whole["relevance_score"] != pytest.approx(found[0]["relevance_score"], abs=1e-5)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_texts_are_labelled(server: Loopback, path: str) -> None:
    reply = post(server, path, input=TEXTS, model="labels").json()
    assert [row["index"] for row in reply["data"]] == [0, 1, 2]
    for row in reply["data"]:
        assert row["num_classes"] == len(row["probs"]) == 3
        assert sum(row["probs"]) == pytest.approx(1, abs=1e-5)
        assert row["label"] == f"label {np.argmax(row['probs'])}"
    one = post(server, path, input=TEXTS[1], model="labels").json()
    np.testing.assert_allclose(one["data"][0]["probs"], reply["data"][1]["probs"], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": [[1, 2]]}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "a" * 100}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 13}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "pooling": "last"}, "pooling"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "x"}, "prompt_name"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "x", "model": "text"}, "prompt_name"),
        ("/v1/embeddings", {"input": "a", "model": "ranks"}, "model"),
        ("/v1/completions", {"prompt": "a"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "model"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "method": "labels"}, "method"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "model": "labels"}, "model"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
        ("/classify", {"input": "a"}, "model"),
        ("/classify", {"input": [], "model": "labels"}, "input"),
    ],
)
def test_what_a_model_cannot_do_gets_a_400(
    server: Loopback, path: str, body: dict[str, object], param: str
) -> None:
    refused = post(server, path, **{"model": "vectors", **body})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param
