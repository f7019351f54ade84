"""The OpenAPI document says what the endpoints take, and what they answer: no more, no less."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from blazr.pipelines.kinds import LANGUAGE_MODEL
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import thinking_core, wait_until

TEXT = (
    "<think>\nHm.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object"}}
LONG = {"max_tokens": 100}
CHAT = {"messages": HELLO, "tools": [TOOL], **LONG}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
MESSAGES = {"messages": HELLO, "tools": [{"name": "look", "input_schema": {}}], **LONG}
QUESTIONS = [
    {"type": "predicate", "instructions": "?", "name": "a"},
    {"type": "choice", "choices": [{"value": "a"}, {"value": True}]},
    {"type": "score", "levels": [{"label": "a"}, {"label": "b"}]},
]
# Bodies by endpoint; those that nothing is said of here get none.
TGI = {"details": True, "decoder_input_details": True, "top_n_tokens": 2}
BODIES: dict[str, list[dict]] = {
    "/v1/completions": [
        {"prompt": "a", "echo": True, "logprobs": 2, "prompt_logprobs": 1},
        {"prompt": ["a", "b"], "n": 2, "stop": "five"},
        {"prompt": "a", "logprobs": 1, "max_tokens": 3, **USAGE},
        {"prompt": "a", "stream": True},
    ],
    "/v1/chat/completions": [
        {**CHAT, "logprobs": True, "top_logprobs": 2},
        {"messages": HELLO, "max_tokens": 2},
        {**CHAT, "logprobs": True, **USAGE},
        {**CHAT, "stream": True},
    ],
    "/v1/chat/completions/input_tokens": [{"messages": HELLO}],
    "/v1/responses": [
        {"input": "a", "tools": [FLAT], "top_logprobs": 1},
        {"input": "a", "max_output_tokens": 3, "text": {"verbosity": "low"}},
        {"input": "a", "tools": [FLAT], "top_logprobs": 1, "stream": True},
        {"input": "a", "max_output_tokens": 3, "stream": True},
    ],
    "/v1/responses/input_tokens": [{"input": "a"}],
    "/v1/embeddings": [{"input": ["a", "b"]}, {"input": "a", "encoding_format": "base64"}],
    "/embedding": [{"content": ["a", "b"]}, {"input": "a"}],
    "/embeddings": [{"content": "a"}, {"input": ["a", "b"]}],
    "/embed": [{"inputs": ["a", "b"]}, {"inputs": "a", "truncate": True}],
    "/similarity": [{"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}],
    "/v1/embed": [{"texts": ["a", "b"]}, {"texts": ["a"], "embedding_types": ["binary"]}],
    "/v2/embed": [{"texts": ["a", "b"]}, {"texts": ["a"], "embedding_types": ["float", "base64"]}],
    "/v1/decisions": [{"input": "a", "questions": QUESTIONS}],
    "/v1/score": [{"text_1": "a", "text_2": ["b", "c"]}],
    "/v1/rerank": [
        {"query": "a", "documents": ["b", "c"]},
        {"query": "a", "documents": ["b"], "return_documents": False, "method": "embedding"},
    ],
    "/rerank": [
        {"query": "a", "documents": ["b", "c"]},
        {"query": "a", "texts": ["b", "c"], "return_text": True, "method": "embedding"},
    ],
    "/v1/messages": [MESSAGES, {**MESSAGES, "stream": True}, {"messages": HELLO, "max_tokens": 2}],
    "/v1/messages/count_tokens": [{"messages": HELLO}],
    "/generate": [
        {"text": "a", "sampling_params": {"max_new_tokens": 2}},
        {"prompt": "a"},
        {"inputs": "a", "parameters": TGI},
    ],
    "/": [
        {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
        {"query": "a", "texts": ["b", "c"]},
        {"inputs": "a", "parameters": TGI},
        {"inputs": "a", "stream": True, "parameters": {"details": True, "top_n_tokens": 2}},
    ],
    "/generate_stream": [{"inputs": "a"}, {"inputs": "a", "parameters": {"details": None}}],
    "/completion": [
        {"prompt": ["a", "b"], "n_predict": 2, "n_probs": 2, "return_tokens": True},
        {"prompt": "a", "n_predict": 2, "n_probs": 1, "stream": True},
    ],
    "/infill": [
        {"input_prefix": "a", "input_suffix": "b"},
        {"input_prefix": "a", "n_predict": 2, "stream": True},
    ],
    "/tokenize": [
        {"prompt": "a b", "return_token_strs": True},
        {"content": "a b", "with_pieces": True},
    ],
    "/detokenize": [{"tokens": [1, 2]}],
    "/apply-template": [{"messages": HELLO}],
    "/api/show": [{"model": "scripted"}],
    "/api/pull": [{"model": "scripted"}, {"model": "scripted", "stream": False}],
    "/api/generate": [
        {"prompt": "a"},
        {"prompt": "a", "stream": False, "options": {"num_predict": 2}},
        {"model": "scripted"},
    ],
    "/api/chat": [
        {"messages": HELLO, "tools": [TOOL]},
        {"messages": HELLO, "tools": [TOOL], "stream": False},
    ],
    "/api/embed": [{"input": "a"}],
    "/api/embeddings": [{"prompt": "a"}],
}
for one, other in {
    "/score": "/v1/score",
    "/v2/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/completions": "/completion",
    "/responses": "/v1/responses",
    "/v1/infill": "/infill",
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
}.items():
    BODIES[one] = BODIES[other]


# Bodies that are refused, and of which the document says so.
WRONG: list[tuple[str, dict]] = [
    ("/v1/completions", {"prompt": "a", "stop": [""]}),
    ("/v1/completions", {"prompt": "a", "stop": ["a"] * 17}),
    ("/v1/completions", {"prompt": "a", "guided_choice": []}),
    ("/v1/completions", {"prompt": "a", "samplers": ["top"]}),
    ("/v1/completions", {"prompt": "a", "samplers": "z"}),
    ("/v1/completions", {"prompt": "a", "repetition_penalty": 0}),
    ("/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 0}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema"}}),
    ("/v1/completions", {"prompt": "a", "response_format": {}}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": HELLO, "tool_choice": ""}),
    ("/v1/chat/completions", {"messages": HELLO, "tool_choice": {"type": "tool"}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "refusal"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("/v1/responses", {"input": [{"content": "a"}]}),
    ("/v1/responses", {"input": [{"type": "function_call", "name": ""}]}),
    ("/v1/responses", {"input": [{"type": "picture", "role": "user"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("/v1/responses/input_tokens", {"input": "a", "text": {"format": {}}}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}),
    (
        "/v1/decisions",
        {"input": "a", "questions": [{"type": "score", "levels": [{"label": ""}] * 2}]},
    ),
    ("/embedding", {}),
    ("/embedding", {"content": "a", "embd_normalize": -1}),
    ("/embeddings", {"input": []}),
    ("/embed", {"inputs": []}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
    ("/v2/embed", {"texts": []}),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}),
    ("/rerank", {"query": "a"}),
    ("/rerank", {"query": "a", "texts": []}),
    ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}),
    ("/v1/score", {"text_1": "a", "text_2": []}),
    ("/v1/rerank", {"query": "a", "documents": []}),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}),
    ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "required"}}),
    ("/v1/messages", {**MESSAGES, "output_config": {"format": {}}}),
    ("/completion", {"prompt": "a", "n_probs": 21}),
    ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["b"]}}),
    ("/tokenize", {}),
    ("/tokenize", {"prompt": "a", "messages": HELLO}),
    ("/apply-template", {"messages": None}),
    ("/detokenize", {"tokens": [-1]}),
    ("/api/embed", {"input": "a", "keep_alive": "soon"}),
    ("/generate", {}),
    ("/generate", {"prompt": None}),
    ("/generate", {"prompt": "a", "text": "b"}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"prompt": "a", "inputs": "b"}),
    ("/", {"inputs": "a", "parameters": {"best_of": 2}}),
    ("/", {"inputs": "a", "parameters": {"watermark": True}}),
    ("/", {"inputs": "a", "parameters": {"max_new_tokens": 0}}),
    ("/generate_stream", {"inputs": "a", "parameters": {"truncate": 0}}),
    ("/", {"inputs": "a", "parameters": {"grammar": {"type": "json_schema", "value": {}}}}),
    ("/v1/completions", {"prompt": []}),
    ("/v1/completions", {"prompt": [[]]}),
    ("/v1/completions", {"prompt": [-1]}),
    ("/v1/embeddings", {"input": [[1], []]}),
    ("/completion", {"prompt": []}),
    ("/completion", {"prompt": [[-1]]}),
    ("/v1/completions", {"prompt": "a", "best_of": -1}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 101}}),
    ("/completion", {"prompt": "a", "logit_bias": {"a": -101}}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object", "schema": 1}}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object", "value": 1}}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json"}}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "regex", "value": 1}}),
    (
        "/v1/completions",
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
    ),
    (
        "/v1/completions",
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": 1, "schema": {}}},
    ),
    ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 3}),
    ("/v1/chat/completions", {"messages": HELLO, "chat_template": ""}),
    ("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {"a": []}}),
    ("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {"tools": 1}}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "mcp"}]}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "custom"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": []}]}]},
    ),
    ("/v1/responses", {"input": "a", "tools": [{"type": "mcp"}]}),
    ("/v1/responses", {"input": "a", "tools": [{"name": "f"}]}),
    ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"messages": 1}}),
    ("/v1/messages", {**MESSAGES, "system": [{"type": "image"}]}),
    ("/v1/messages", {**MESSAGES, "context_management": {"edits": [{"type": "clear"}]}}),
    ("/v1/messages", {**MESSAGES, "context_management": {"edits": [{}]}}),
    ("/v1/messages", {**MESSAGES, "context_management": {"edits": [{"type": {}}]}}),
]
# Bodies that mean something, at the edge of what does.
TAKEN: list[tuple[str, dict]] = [
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
    ),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "text", "schema": 1}}),
    (
        "/v1/messages/count_tokens",
        {"messages": [{"role": "user", "content": [{"type": "text", "content": [{"type": "x"}]}]}]},
    ),
    ("/api/generate", {"format": "yaml"}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": -1}),
    ("/v1/chat/completions", {"messages": HELLO, "max_completion_tokens": -1}),
    ("/v1/responses", {"input": "a", "max_output_tokens": -1}),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": -1}}),
    ("/completion", {"prompt": "a", "n_predict": -2}),
    ("/api/chat", {"messages": HELLO, "options": {"num_predict": -2}}),
    ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 3, "logprobs": True}),
    ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": None, "chat_template": None}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [{"function": {"name": "f"}}]}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "custom", "name": "f"}]}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "tools": [{"type": "custom", "custom": {"name": "f"}}]},
    ),
    ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}}),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "regex", "value": "a"}}),
    ("/generate", {"prompt": "a", "text": None}),
    ("/generate", {"input_ids": [1]}),
    ("/", {"inputs": "a", "parameters": {"watermark": False, "best_of": 1, "stop": []}}),
    ("/api/chat", {"messages": HELLO, "format": ""}),
    ("/api/chat", {"messages": HELLO, "format": '{"type": "object"}'}),
]
ENDLESS = {"/models/sse", "/cache_events"}
OF_ENCODERS = {"/info"}  # others are refused
# Commands come from operators; they are tried where what they do is tested.
COMMANDS = {row.path for row in ROUTES.values() if row.is_command}
# What other models do is tried with them; what files are for, with OpenAI's client.
OTHERS = {row.path for row in ROUTES.values() if row.capability not in {*LANGUAGE_MODEL, None}}
OTHERS |= {"/v1/files", "/v1/batches", "/embed_all"}
CANCELS = {"/v1/responses/{id}/cancel", "/v1/batches/{id}/cancel"}
ROUTER = {"/models/load", "/models/unload"}
ROUTER |= {"/kv_cache/export"}  # of a real engine's files


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A model that thinks, talks and calls a tool."""
    with serving(thinking_core(TEXT), files_dir=tmp_path_factory.mktemp("files")) as running:
        yield running


@pytest.fixture(scope="module")
def document(speaking: Loopback) -> dict:
    return speaking.client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def closed(document: dict) -> dict:
    """The schemas, where what is not said may not be there."""
    components = json.loads(json.dumps(document["components"]))
    for schema in components["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return components


def problems(closed: dict, schema: dict, value: object) -> list[str]:
    whole = {"components": closed, **schema}
    validator = jsonschema.Draft202012Validator(whole)
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]


def stream_of(reply, item: dict) -> Iterator[tuple[dict, object]]:
    """What a stream consists of, each with its schema."""
    if "ndjson" in reply.headers["content-type"]:
        yield from ((item, json.loads(line)) for line in reply.text.splitlines())
        return
    data = item["properties"]["data"]
    ends = [each for each in data.get("anyOf", []) if "const" in each]
    inner = [each for each in data.get("anyOf", [data]) if "contentSchema" in each]
    for event in reply.text.strip().split("\n\n"):
        text = event.rpartition("data: ")[2]
        if ends and text == ends[0]["const"]:
            continue
        yield inner[0]["contentSchema"], json.loads(text)


def test_every_endpoint_is_there_with_its_body(document: dict) -> None:
    shown = [row for row in ROUTES.values() if not row.is_page]
    assert len(shown) == sum(len(operations) for operations in document["paths"].values())
    for row in shown:
        operation = document["paths"][row.path.replace(":name", "")][row.method.lower()]
        assert operation["summary"]
        assert operation["tags"]
        is_post = row.method == "POST"
        assert ("requestBody" in operation) is (row.body is not None and is_post)
        in_query = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
        is_asked = row.body is not None and (row.is_command or not is_post)
        fields = set(row.body.__struct_fields__) if is_asked else set()
        assert in_query == fields | ({"model"} if row.needs_model else set())
        in_path = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)(?::name)?}", row.path)
        assert operation["security"] == ([] if row.is_open else [{}, {"key": []}])
        assert {"200", "default"} == set(operation["responses"])


def test_names_are_unique_and_every_reference_leads_somewhere(document: dict) -> None:
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert len(names) > 100
    assert set(names) <= set(document["components"]["schemas"])
    assert not [name for name in names if "." in name]
    ids = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(ids) == len(set(ids))
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_fields_are_explained_and_bounded(document: dict) -> None:
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    assert schema["required"] == ["messages"]
    assert {"tools", "response_format", "continue_final_message"} <= set(schema["properties"])
    temperature = schema["properties"]["temperature"]
    assert "greedy" in temperature["description"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature["anyOf"]


@pytest.mark.parametrize(("path", "body"), WRONG, ids=str)
def test_what_is_refused_is_said(speaking: Loopback, document: dict, path: str, body: dict) -> None:
    assert speaking.client.post(path, json=body).status_code == 400
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert problems(document["components"], content["schema"], body)


@pytest.mark.parametrize(("path", "body"), TAKEN, ids=str)
def test_what_is_taken_is_said(speaking: Loopback, document: dict, path: str, body: dict) -> None:
    reply = speaking.client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert problems(document["components"], content["schema"], body) == []


@pytest.mark.parametrize("path", BODIES)
def test_what_is_answered_is_what_is_said(
    speaking: Loopback, document: dict, closed: dict, path: str
) -> None:
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    for body in BODIES[path]:
        assert problems(document["components"], asked["schema"], body) == []
        reply = speaking.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        kind = reply.headers["content-type"].partition(";")[0]
        if "schema" in content[kind]:
            assert problems(closed, content[kind]["schema"], reply.json()) == []
            continue
        told = list(stream_of(reply, content[kind]["itemSchema"]))
        assert told
        assert [problems(closed, *each) for each in told] == [[]] * len(told)


def begin_batch(server: Loopback) -> dict[str, str]:
    """The ids of a file, and of a batch of it that has ended."""
    line = b'{"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a"}}'
    form = {"files": {"file": ("a.jsonl", line)}, "data": {"purpose": "batch"}}
    file = server.client.post("/v1/files", **form).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = server.client.post("/v1/batches", json=body).json()["id"]
    path = f"/v1/batches/{batch}"
    wait_until(lambda: server.client.get(path).json()["status"] == "completed")
    return {"files": file, "batches": batch}


def test_what_is_looked_up_is_what_is_said(
    speaking: Loopback, document: dict, closed: dict
) -> None:
    made = speaking.client.post("/v1/responses", json={"input": "a", "max_output_tokens": 1}).json()
    ids = {"responses": made["id"], **begin_batch(speaking)}
    lookups = [
        (method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method != "post" and path not in ENDLESS | OF_ENCODERS
    ]
    assert len(lookups) >= 15
    for method, path, operation in sorted(lookups, key=lambda each: each[0] == "delete"):
        filled = path.replace("{model}", "default")
        if "{id}" in path:
            filled = path.replace("{id}", ids[path.split("/")[2]])
        reply = speaking.client.request(method, filled)
        content = operation["responses"]["200"]["content"]
        kind = reply.headers["content-type"].partition(";")[0]
        value = reply.json() if kind == "application/json" else reply.text
        assert problems(closed, content[kind]["schema"], value) == [], path


@pytest.mark.parametrize("path", [*BODIES, *sorted(CANCELS | COMMANDS | ROUTER)])
def test_errors_are_what_is_said(
    speaking: Loopback, document: dict, closed: dict, path: str
) -> None:
    reply = speaking.client.post(path, content=b"[", headers={"Content-Type": "application/json"})
    assert 400 <= reply.status_code < 500
    said = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]
    assert problems(closed, said["schema"], reply.json()) == []


def test_every_endpoint_with_a_body_is_tried(document: dict) -> None:
    with_body = {path for path, each in document["paths"].items() if "post" in each}
    assert with_body - set(BODIES) == CANCELS | COMMANDS | ROUTER | OTHERS


def test_examples_work(speaking: Loopback, document: dict) -> None:
    for path, operations in document["paths"].items():
        if "requestBody" in operations.get("post", {}) and path not in COMMANDS | ROUTER | OTHERS:
            example = operations["post"]["requestBody"]["content"]["application/json"]["example"]
            reply = speaking.client.post(path, json=example)
            assert reply.status_code == 200, (path, reply.text)
