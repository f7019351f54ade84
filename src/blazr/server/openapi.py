"""``GET /openapi.json``: the endpoints, what they take and what they answer.

It is made of the ROUTES table, of the types that bodies are decoded to, and of those that say what
handlers answer [OpenAPI 3.2, https://spec.openapis.org/oas/v3.2.0].
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import blazr
from blazr.engine.sampling_params import RANGES, SamplingParams
from blazr.server.answers import ANSWERS, Answer
from blazr.server.anthropic.rendering import error_object as anthropic_error
from blazr.server.anthropic.replies import AnthropicError
from blazr.server.endpoint import Route
from blazr.server.errors import Shape
from blazr.server.ollama.models import error_object as ollama_error
from blazr.server.ollama.replies import OllamaError
from blazr.server.openai.replies import ErrorReply

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_DIALECTS = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    "native": "blazr",
}
_ERRORS: Mapping[Shape | None, type[msgspec.Struct]] = {
    None: ErrorReply,
    anthropic_error: AnthropicError,
    ollama_error: OllamaError,
}
_NUMBERS = {"integer", "number"}
_BOUNDS = {name: (low, high) for name, low, high in RANGES}
# What dialects call sampling parameters that have other names here.
_SYNONYMS = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_probs": "logprobs",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}
# Where dialects have a meaning for what is below the least: all of it, or to the end.
_LOWEST: Mapping[str, int | None] = {"top_k": -1, "n_predict": -1, "num_predict": None}


def _given(*names: str, least: int = 0) -> Schema:
    """There is one of these fields, it is not null, and so many characters long."""
    kinds = {"type": ["string", "array"], "minLength": least}
    return {"anyOf": [{"required": [name], "properties": {name: kinds}} for name in names]}


def _of_type(*types: str, **more: object) -> Schema:
    return {"properties": {"type": {"enum": types}}, "required": ["type"], **more}


# Which fields of a body go together, by the body's type.
_TOGETHER: Mapping[str, Schema] = {
    "ChatTextBody": _given("messages"),
    "TokenizeBody": {"oneOf": [_given("messages"), _given("prompt", "content")]},
    "Part": _given("text"),
    "Item": {
        "anyOf": [
            {"properties": {"type": {"const": "message"}}, **_given("role", least=1)},
            _of_type("function_call", "custom_tool_call", **_given("name", least=1)),
            _of_type("function_call_output", "custom_tool_call_output", "reasoning"),
        ]
    },
}
# What a request may be tried with, by field.
_EXAMPLES: Mapping[str, object] = {
    "messages": [{"role": "user", "content": "Tell me of a cat."}],
    "prompt": "Once upon a time",
    "input": "Once upon a time",
    "max_tokens": 32,
    "max_output_tokens": 32,
    "options": {"num_predict": 32},
    "tokens": [1, 2, 3],
    "query": "a cat",
    "documents": ["The cat sat.", "The sun rose."],
    "text_1": "a cat",
    "text_2": "a dog",
    "questions": [{"type": "predicate", "instructions": "It is about a cat."}],
    "input_prefix": "def add(a, b):\n    return ",
    "input_suffix": "\n",
}


def _documented() -> dict[str, str]:
    """What each sampling parameter does, from where that is written."""
    text = (inspect.getdoc(SamplingParams) or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): ((?:.|\n {6,})+)", text, re.MULTILINE)
    about = {name: " ".join(words.replace("``", "`").split()) for name, words in found}
    return about | {name: about[same] for name, same in _SYNONYMS.items()}


_ABOUT = _documented()


def describe(routes: Iterable[Route]) -> dict[str, object]:
    """The OpenAPI document of some routes, without pages and refusals.

    Raises:
        KeyError: Of a handler nothing says what it answers.
    """
    rows = [row for row in routes if not ANSWERS[row.handler].is_hidden]
    types = _types_of(rows)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE + "{name}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    for schema in components.values():
        for name, field in schema.get("properties", {}).items():
            _explain(name, field)
    for name, schema in _TOGETHER.items():
        components[name] |= schema
    paths: dict[str, dict[str, object]] = {}
    for row in rows:
        path = _PARAMETER.sub(r"{\1}", row.path)
        operation = _operation(row, by_type)
        links = _links(row, rows)
        if links:
            operation["responses"]["200"]["links"] = links
        paths.setdefault(path, {})[row.method.lower()] = operation
    document = {
        "openapi": "3.2.0",
        "info": {"title": "blazr", "version": blazr.__version__},
        "tags": [{"name": name} for name in _DIALECTS.values()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return _with_short_names(document)


def _types_of(rows: Sequence[Route]) -> list[Any]:
    """Every type that is taken or answered, once."""
    found: dict[str, object] = {repr(each): each for each in _ERRORS.values()}
    for row in rows:
        answer = ANSWERS[row.handler]
        for each in (row.body, answer.whole, answer.events):
            if each is not None:
                found[repr(each)] = each
    return list(found.values())


def _links(row: Route, rows: Iterable[Route]) -> Schema:
    """What can be done next with what was made: the operations whose paths have its id."""
    made = f"{row.path}/{{id}}"
    names = [_name(each) for each in rows if each.path.startswith(made) and row.method == "POST"]
    given = {"id": "$response.body#/id"}
    return {name: {"operationId": name, "parameters": given} for name in names}


def _name(row: Route) -> str:
    return re.sub(r"\W+", "_", f"{row.method} {row.path}".lower()).strip("_")


def _operation(row: Route, schemas: Mapping[str, Schema]) -> Schema:
    summary = (inspect.getdoc(row.handler) or "").partition("\n")[0]
    operation: Schema = {
        "operationId": _name(row),
        "tags": [_DIALECTS[row.handler.__module__.split(".")[2]]],
        "summary": summary,
        "parameters": _parameters(row),
        "responses": _responses(row, schemas),
        "security": [] if row.is_open else [{}, {"key": []}],
    }
    if row.body is not None and row.method == "POST":
        example = {
            name: _EXAMPLES[name] for name in row.body.__struct_fields__ if name in _EXAMPLES
        }
        # some take a prompt or messages, or what is before it
        for name, instead in (
            ("messages", "prompt"),
            ("prompt", "input_prefix"),
            ("prompt", "input"),
        ):
            if instead in example:
                example.pop(name, None)
        media = {"schema": schemas[repr(row.body)], "example": example}
        content = {"application/json": media}
        operation["requestBody"] = {"required": not row.is_command, "content": content}
    return operation


def _parameters(row: Route) -> list[dict[str, object]]:
    text = {"type": "string"}
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in _PARAMETER.findall(row.path)
    ]
    if row.body is not None and (row.method != "POST" or row.is_command):
        fields = msgspec.json.schema(row.body)["$defs"][row.body.__name__]["properties"]
        parameters += [
            {"name": name, "in": "query", "schema": each} for name, each in fields.items()
        ]
    if row.needs_model and row.method != "POST":
        about = "Which model; left out it is the first."
        parameters.append({"name": "model", "in": "query", "schema": text, "description": about})
    return parameters


def _responses(row: Route, schemas: Mapping[str, Schema]) -> dict[str, object]:
    answer = ANSWERS[row.handler]
    error = {"application/json": {"schema": schemas[repr(_ERRORS[row.shape])]}}
    responses: dict[str, object] = {"default": {"description": "an error", "content": error}}
    whole = {"type": "string"} if answer.whole is None else schemas[repr(answer.whole)]
    content: dict[str, object] = {answer.media_type: {"schema": whole}}
    if answer.events is not None:
        item = _item(answer, schemas[repr(answer.events)])
        content[answer.framing.media_type] = {"itemSchema": item}
    return {"200": {"description": "the answer", "content": content}} | responses


def _item(answer: Answer, schema: Schema) -> Schema:
    """One line, or one server-sent event."""
    if answer.framing.media_type != "text/event-stream":
        return schema
    data: Schema = {"contentMediaType": "application/json", "contentSchema": schema}
    if answer.framing.end:
        data = {"anyOf": [{"const": "[DONE]"}, data]}
    fields = {"event": {"type": "string"}, "data": {"type": "string", **data}}
    return {"type": "object", "properties": fields, "required": ["data"]}


def _explain(name: str, field: Schema) -> None:
    """Say what a sampling parameter does and within which bounds, where a field is one."""
    about = _ABOUT.get(name)
    choices = [each for each in field.get("anyOf", [field]) if each.get("type") in _NUMBERS]
    if about is None or field.get("description") or "default" not in field:
        return
    field["description"] = about
    for choice in choices:
        low, high = _BOUNDS.get(_SYNONYMS.get(name, name), (None, None))
        bounds = {"minimum": _LOWEST.get(name, low), "maximum": high}
        choice |= {key: bound for key, bound in bounds.items() if bound is not None}
        if _SYNONYMS.get(name, name) == "repetition_penalty":  # it divides
            choice["exclusiveMinimum"] = choice.pop("minimum")


def _with_short_names(document: dict[str, Any]) -> dict[str, object]:
    """Types of the same name are told apart by their modules: in fewer words."""
    names = {
        name: "".join(part.title() for part in name.split(".")[2:-1]) + name.rpartition(".")[2]
        for name in document["components"]["schemas"]
        if "." in name
    }
    text = json.dumps(document)
    for long, short in names.items():
        text = text.replace(f'"{long}"', f'"{short}"').replace(
            f'"{_REFERENCE}{long}"', f'"{_REFERENCE}{short}"'
        )
    found: dict[str, object] = json.loads(text)
    return found
