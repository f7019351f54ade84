"""Embeddings, scores, rankings and decisions over a script's engine.

Its vector for a prompt of T tokens is (3, 4, T); even tokens score -0.25, odd ones -2.5.
"""

from __future__ import annotations

import base64
import math
import struct

import pytest

from blazr.server.openai import labels
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core


def post(loopback: Loopback, path: str, **body: object):
    return loopback.client.post(path, json=body)


def embed(loopback: Loopback, **body: object):
    return post(loopback, "/v1/embeddings", **body)


def test_embeddings_have_the_documented_shape_and_length_one(loopback: Loopback) -> None:
    reply = embed(loopback, model="default", input=["a", "b c d"]).json()
    assert reply["object"] == "list"
    assert reply["model"] == "scripted"
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert [(each["object"], each["index"]) for each in reply["data"]] == [
        ("embedding", 0), ("embedding", 1),
    ]  # fmt: skip
    length = math.sqrt(9 + 16 + 9)
    assert reply["data"][1]["embedding"] == pytest.approx([3 / length, 4 / length, 3 / length])
    (asked,) = {each.pooling for each in loopback.engine.submitted[-2:]}
    assert asked == "mean"


def test_base64_holds_the_same_numbers(loopback: Loopback) -> None:
    plain = embed(loopback, input="a").json()["data"][0]["embedding"]
    packed = embed(loopback, input="a", encoding_format="base64").json()["data"][0]["embedding"]
    assert struct.unpack("<3f", base64.b64decode(packed)) == pytest.approx(plain)


def test_fewer_dimensions_are_of_length_one_too(loopback: Loopback) -> None:
    reply = embed(loopback, input="a", dimensions=2, pooling="last").json()
    assert reply["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert loopback.engine.submitted[-1].pooling == "last"


@pytest.mark.parametrize("given", ["a b", [5, 6], ["a b", "c"], [[5, 6], [7]], ["a", [7]]])
def test_inputs_of_every_shape(loopback: Loopback, given: object) -> None:
    assert embed(loopback, input=given).is_success


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": None}, "input"),
    ],
)
def test_refusals_name_the_field(loopback: Loopback, body: dict, param: str) -> None:
    reply = embed(loopback, **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_value_that_there_is_not_is_answered_with_those_there_are(loopback: Loopback) -> None:
    message = embed(loopback, input="a", encoding_format="hex").json()["error"]["message"]
    assert message.endswith("Expected: one of 'float', 'base64'.")
    message = embed(loopback, input="a", encoding_format="h" * 5000).json()["error"]["message"]
    assert message.endswith("Expected: one of 'float', 'base64'.")
    assert message.count("h") < 100
    reply = post(loopback, "/v2/embed", texts=["a"], embedding_types=["int8"])
    assert "'int8' - at `$.embedding_types[0]`. Expected: one of 'float', 'base64', " in reply.text


def test_a_body_may_begin_with_a_byte_order_mark(loopback: Loopback) -> None:
    for body, status in ((b'{"prompt": "a"}', 200), (b'{"prompt": "a", "top_a": 2}', 400)):
        reply = loopback.client.post("/v1/completions", content=b"\xef\xbb\xbf" + body)
        assert reply.status_code == status, reply.text
    assert "top_a" in reply.text


def test_an_empty_body_is_called_that(loopback: Loopback) -> None:
    for path in ("/v1/embeddings", "/api/embed", "/v1/messages", "/embed"):
        reply = loopback.client.post(path, content=b"")
        assert reply.status_code == 400
        assert "the body is empty: send JSON." in reply.text


def cosine(a: int, b: int) -> float:
    """Of the script's vectors for prompts of so many tokens."""
    return (25 + a * b) / math.sqrt((25 + a * a) * (25 + b * b))


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_scores_are_cosines(loopback: Loopback, path: str) -> None:
    reply = post(loopback, path, text_1="a", text_2=["a", "b c d"]).json()
    assert [each["score"] for each in reply["data"]] == pytest.approx([1, cosine(1, 3)])
    pairs = post(loopback, path, text_1=["a", "b c"], text_2=["d e", "f"]).json()["data"]
    assert [each["score"] for each in pairs] == pytest.approx([cosine(1, 2)] * 2)


def test_scores_by_labels_are_probabilities(loopback: Loopback) -> None:
    reply = post(loopback, "/v1/score", text_1="a", text_2="b", method="labels").json()
    assert 0 < reply["data"][0]["score"] < 1


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_order(loopback: Loopback, path: str) -> None:
    documents = ["a b c d e f", {"text": "a"}, "a b"]
    body = {"query": "q", "documents": documents, "method": "embedding"}
    results = post(loopback, path, **body).json()["results"]
    assert [each["index"] for each in results] == [1, 2, 0]
    assert results[0]["document"] == {"text": "a"}
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    top = post(loopback, path, **body, top_n=1, return_documents=False).json()["results"]
    assert top == [{"index": 1, "relevance_score": scores[0]}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": []}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -(2**70)}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
def test_rerank_names_what_is_wrong(loopback: Loopback, body: dict, param: str) -> None:
    reply = loopback.client.post("/v1/rerank", json={"query": "q", "documents": ["a"], **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("method", ["labels", "embedding"])
def test_documents_may_be_cut_to_a_number_of_tokens(loopback: Loopback, method: str) -> None:
    """As Cohere's clients have it; the answer has them whole."""
    body = {"query": "q", "method": method, "max_tokens_per_doc": 5}
    documents = ["一二三四五六七", "one", LONG]
    reply = post(loopback, "/v2/rerank", **body, documents=documents)
    assert reply.status_code == 200, reply.text
    results = sorted(reply.json()["results"], key=lambda each: each["index"])
    assert [each["document"]["text"] for each in results] == documents
    tokenizer = loopback.core.tokenizer
    short = [tokenizer.decode(tokenizer.encode(each)[:5]).rstrip("\ufffd") for each in documents]
    assert documents[0].startswith(short[0])
    again = post(loopback, "/v2/rerank", query="q", method=method, documents=short).json()
    scores = {each["index"]: each["relevance_score"] for each in again["results"]}
    assert [each["relevance_score"] for each in results] == [scores[at] for at in range(3)]


def test_how_long_documents_can_be_kept_is_told(loopback: Loopback) -> None:
    reply = post(loopback, "/v1/rerank", query="q", documents=[LONG])
    assert "max_tokens_per_doc" in reply.json()["error"]["message"]
    reply = post(loopback, "/v1/rerank", query=LONG, documents=["a"])
    assert "max_tokens_per_doc" not in reply.json()["error"]["message"]


def test_too_many_documents_are_counted_as_they_were_sent(loopback: Loopback) -> None:
    reply = post(loopback, "/v1/rerank", query="q", documents=["a"] * 513)
    assert reply.status_code == 400
    assert "Found: 513. Expected: at most 512." in reply.json()["error"]["message"]


def test_rerank_asks_the_model_whether_a_document_fits(loopback: Loopback) -> None:
    reply = post(loopback, "/v1/rerank", query="the query", documents=["one", "two"]).json()
    assert all(0 < each["relevance_score"] < 1 for each in reply["results"])
    tokenizer = loopback.core.tokenizer
    asked = [tokenizer.decode(each.prompt_ids) for each in loopback.engine.submitted[-4:]]
    assert [each[-3:].strip() for each in asked] == ["yes", "no", "yes", "no"]
    assert all("<Query>: the query" in each for each in asked)
    assert "<Document>: two" in asked[3]


TWICE = [{"value": "yes"}, {"value": "no"}, {"value": "yes"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}),
        ("/v1/score", {"text_1": "a", "text_2": []}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 600}),
        ("/v1/decisions", {"input": "a", "questions": []}),
        ("/v1/decisions", {"input": "a", "questions": [{"type": "riddle"}]}),
        ("/v1/decisions", {"input": "a", "questions": [{"type": "choice", "choices": []}]}),
        ("/v1/decisions", {"input": "a", "questions": [{"type": "choice", "choices": TWICE}]}),
        (
            "/v1/decisions",
            {"input": [{"type": "image"}], "questions": [{"type": "predicate"}]},
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(loopback: Loopback, path: str, body: dict) -> None:
    assert post(loopback, path, **body).status_code == 400


LONG = "a b " * 1000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": LONG, "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": LONG}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", LONG]}, "text_2"),
        ("/v1/score", {"text_1": "", "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": [str(i) for i in range(2048)]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"] * 600, "method": "labels"}, "text_2"),
        ("/v1/rerank", {"query": LONG, "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b", LONG]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 600}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 3000}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [LONG], "method": "embedding"}, "documents"),
    ],
)
def test_the_field_with_the_text_at_fault_is_named(
    loopback: Loopback, path: str, body: dict, param: str
) -> None:
    reply = post(loopback, path, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert "prompt" not in error["message"]  # no field of theirs


@pytest.mark.parametrize(
    "choices", [[{"value": ""}, {"value": "b"}], [{"value": str(i)} for i in range(255)]]
)
def test_answers_that_cannot_be_chosen_from_are_questions(
    loopback: Loopback, choices: list[dict]
) -> None:
    questions = [{"type": "choice", "choices": choices}] * 5
    reply = post(loopback, "/v1/decisions", input="a", questions=questions)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "questions")


QUESTIONS = [
    {"type": "predicate", "instructions": "It is about money.", "name": "money"},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Which team?"}],
        "choices": [{"value": "billing", "description": "bills"}, {"value": True}, {"value": "x"}],
    },
    {"type": "score", "instructions": "How angry?", "levels": [{"label": "a"}, {"label": "b"}]},
]


def test_decisions_answer_in_order_and_add_up(loopback: Loopback) -> None:
    items = [
        {"role": "developer", "content": "be fair"},
        {"role": "user", "content": [{"type": "input_text", "text": "I was charged twice"}]},
    ]
    reply = post(loopback, "/v1/decisions", input=items, questions=QUESTIONS).json()
    predicate, choice, rating = reply["answers"]
    assert predicate["name"] == "money"
    assert 0 < predicate["probability"] < 1
    shares = {str(each["value"]): each["probability"] for each in choice["probabilities"]}
    assert set(shares) == {"billing", "True", "x"}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[str(choice["choice"])] == choice["confidence"] == max(shares.values())
    assert choice["name"] is None
    levels = rating["probabilities"]
    assert rating["score"] == pytest.approx(levels[1]["probability"])
    assert [each["value"] for each in levels] == [0, 1]
    assert reply["usage"]["total_tokens"] == reply["usage"]["input_tokens"] > 0


def test_probabilities_are_those_of_the_labels_tokens(loopback: Loopback) -> None:
    question = {"type": "choice", "choices": [{"value": "yes"}, {"value": "no"}]}
    reply = post(loopback, "/v1/decisions", input="a", questions=[question]).json()
    encode = loopback.core.tokenizer.encode
    weights = [
        math.exp(sum(-0.25 if each % 2 == 0 else -2.5 for each in encode(label)))
        for label in ("yes", "no")
    ]
    (answer,) = reply["answers"]
    found = [each["probability"] for each in answer["probabilities"]]
    assert found == pytest.approx([weight / sum(weights) for weight in weights])


def test_many_questions_take_no_longer_than_a_request_may() -> None:
    """The time runs while they are read, too, which each of them is with its whole input."""
    with serving(scripted_core(), request_timeout_s=1e-9) as running:
        reply = post(running, "/v1/decisions", input="a", questions=QUESTIONS)
        assert reply.status_code == 408
        assert reply.json()["error"]["code"] == "generation_timeout"
        assert not running.engine.submitted


def test_questions_about_too_long_an_input_are_refused(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"input": "a b c d", "questions": QUESTIONS}
    before = len(loopback.engine.submitted)
    assert post(loopback, "/v1/decisions", **asked).is_success
    num_tokens = sum(len(each.prompt_ids) for each in loopback.engine.submitted[before:])
    monkeypatch.setattr(labels, "MAX_TOKENS", num_tokens)
    assert post(loopback, "/v1/decisions", **asked).is_success
    monkeypatch.setattr(labels, "MAX_TOKENS", num_tokens - 1)
    reply = post(loopback, "/v1/decisions", **asked)
    assert reply.status_code == 400
    assert "too long" in reply.json()["error"]["message"]


def test_ids_of_another_vocabulary_are_refused_with_advice(loopback: Loopback) -> None:
    reply = loopback.client.post("/v1/embeddings", json={"input": [[1, 2], [10**6]]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "input")
    assert error["message"].startswith("a token id of the input is out of range.")
    assert "check_embedding_ctx_length=False" in error["message"]
