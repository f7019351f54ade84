"""``GET /openapi.json``: the endpoints, what they take and what they answer.

It is made of the rows of ROUTES and the annotations of their handlers: a body's Struct, the Struct
that is answered, those that are streamed [OpenAPI 3.2, https://spec.openapis.org/oas/v3.2.0]. A
Struct may say more in two class variables: ``schema_extra``, JSON schema that its fields cannot
say, and ``example``, a body to try.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec.inspect import CustomType, StructType, Type, multi_type_info
from starlette.responses import Response

import blazr
from blazr.engine.sampling_params import RANGES, SamplingParams
from blazr.server.endpoint import Route
from blazr.server.foreign_fields import ALIASES
from blazr.server.schema import Schema

_REFERENCE = "#/components/schemas/"
_PARAMETER = re.compile(r"{(\w+)(?::name)?}")
_DIALECTS = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    "native": "blazr",
}
_NUMBERS = {"integer", "number"}
# Sampling parameters by what dialects call them.
_NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
# What each sampling parameter does, from where that is written.
_ARGS = (inspect.getdoc(SamplingParams) or "").partition("Args:\n")[2].partition("\n\n")[0]
_ABOUT = {
    name: " ".join(words.replace("``", "`").split())
    for name, words in re.findall(r"^ {4}(\w+): ((?:.|\n {6,})+)", _ARGS, re.MULTILINE)
}
# Where dialects have a meaning for what is below the least: all of it, or to the end.
_LOWEST: Mapping[str, int | None] = {
    "top_k": -1,
    "max_tokens": -1,
    "max_completion_tokens": -1,
    "max_output_tokens": -1,
    "max_new_tokens": -1,
    "n_predict": -2,
    "num_predict": None,
}


def describe(routes: Iterable[Route]) -> dict[str, object]:
    """The OpenAPI document of some routes, without pages and refusals.

    Raises:
        ValueError: Two types have the same name.
    """
    rows = [row for row in routes if not row.is_page]
    schemas = _Schemas(rows)
    paths: dict[str, dict[str, object]] = {}
    for row in rows:
        path = _PARAMETER.sub(r"{\1}", row.path)
        operation = _operation(row, schemas)
        # what can be done next with what was made: the operations whose paths have its id
        followers = [x for x in rows if x.path.startswith(f"{row.path}/{{id}}")]
        if row.method == "POST" and followers:
            given = {"id": "$response.body#/id"}
            operation["responses"]["200"]["links"] = {
                _name(x): {"operationId": _name(x), "parameters": given} for x in followers
            }
        paths.setdefault(path, {})[row.method.lower()] = operation
    return {
        "openapi": "3.2.0",
        "info": {"title": "blazr", "version": blazr.__version__},
        "tags": [{"name": name} for name in _DIALECTS.values()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of all types that some routes take and answer."""

    def __init__(self, rows: Iterable[Route]) -> None:
        bodies: dict[str, Any] = {}
        answers: dict[str, Any] = {}
        for row in rows:
            for kind in (row.reply, row.event, _error_of(row)):
                if kind is not None and not _is_text(kind):
                    answers[repr(kind)] = kind
            if row.body is not None:
                bodies[repr(row.body)] = row.body
        # asking msgspec takes most of the time, so once for all
        infos = multi_type_info([*bodies.values(), *answers.values()])
        read = _structs_in(infos[: len(bodies)])
        structs = {**read, **_structs_in(infos[len(bodies) :])}
        kinds = {**bodies, **answers, **{repr(each): each for each in structs.values()}}
        found, self.components = msgspec.json.schema_components(
            kinds.values(), schema_hook=_one_of, ref_template=_REFERENCE + "{name}"
        )
        self._by_type = dict(zip(kinds, found, strict=True))
        for name, schema in self.components.items():
            if name not in structs:
                raise ValueError(f"two types are called {name.rpartition('.')[2]}")
            struct = structs[name]
            fields = schema.get("properties", {})
            schema.update(getattr(struct, "schema_extra", {}))
            if name in read:
                for field, about in fields.items():
                    _explain(field, about)
                continue
            # of a Struct that is sent everything is always there that is not UNSET
            unset = {x.name for x in msgspec.structs.fields(struct) if x.default is msgspec.UNSET}
            schema["required"] = [field for field in fields if field not in unset]
            for about in fields.values():
                about.pop("default", None)

    def of(self, kind: object) -> Schema:
        """The schema of a type."""
        return {"type": "string"} if _is_text(kind) else self._by_type[repr(kind)]


def _is_text(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Response)


def _error_of(row: Route) -> object:
    return get_type_hints(row.error)["return"]


def _structs_in(kinds: Iterable[Type]) -> dict[str, type[msgspec.Struct]]:
    """Every Struct in some types, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    pending = list(kinds)
    unions = set()
    while pending:
        kind = pending.pop()
        if isinstance(kind, StructType):
            if kind.cls.__name__ not in found:
                found[kind.cls.__name__] = kind.cls
                pending += [field.type for field in kind.fields]
        elif isinstance(kind, CustomType):  # a `OneOf`
            if kind.cls not in unions:
                unions.add(kind.cls)
                pending += multi_type_info(getattr(kind.cls, "kinds", ()))
        else:  # a union, a container or a constrained type
            for part in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
                inner = getattr(kind, part, ())
                pending += inner if isinstance(inner, tuple) else (inner,)
    return found


def _one_of(kind: Any) -> Schema:
    """The schema of a `OneOf`: by the field ``type`` where the Structs have one."""
    refs: dict[Any, str] = {}

    def schema_of(part: type) -> Schema:
        if inner := get_args(part):
            return {"type": "array", "items": schema_of(*inner)}
        if part is float:
            return {"type": "number"}
        refs[part] = _REFERENCE + part.__name__
        return {"$ref": refs[part]}

    schema: Schema = {"anyOf": [schema_of(each) for each in kind.kinds]}
    if all("type" in each.__struct_fields__ for each in refs):
        by_type = {
            field.default: ref
            for each, ref in refs.items()
            for field in msgspec.structs.fields(each)
            if field.name == "type"
        }
        schema["discriminator"] = {"propertyName": "type", "mapping": by_type}
    return schema


def _name(row: Route) -> str:
    return re.sub(r"\W+", "_", f"{row.method} {row.path}".lower()).strip("_")


def _operation(row: Route, schemas: _Schemas) -> Schema:
    module = row.handler.__module__.split(".")
    operation: Schema = {
        "operationId": _name(row),
        "tags": [_DIALECTS.get(module[2] if len(module) > 2 else "", "blazr")],
        "summary": (inspect.getdoc(row.handler) or "").partition("\n")[0],
        "parameters": _parameters(row),
        "responses": _responses(row, schemas),
        "security": [] if row.is_open else [{}, {"key": []}],
    }
    if row.body is not None and row.method == "POST":
        media = {"schema": schemas.of(row.body), "example": getattr(row.body, "example", {})}
        content = {"multipart/form-data" if row.is_form else "application/json": media}
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


def _responses(row: Route, schemas: _Schemas) -> dict[str, object]:
    content: dict[str, object] = {}
    for media_type in row.media_types:
        content[media_type] = {"schema": {"type": "string"}}
    if row.reply is not None and not _is_text(row.reply):
        content["application/json"] = {"schema": schemas.of(row.reply)}
    if row.event is not None:
        item = schemas.of(row.event)
        if row.framing.media_type == "text/event-stream":
            data: Schema = {"contentMediaType": "application/json", "contentSchema": item}
            if row.framing.end:
                data = {"anyOf": [{"const": "[DONE]"}, data]}
            fields = {"event": {"type": "string"}, "data": {"type": "string", **data}}
            item = {"type": "object", "properties": fields, "required": ["data"]}
        content[row.framing.media_type] = {"itemSchema": item}
    error = {"application/json": {"schema": schemas.of(_error_of(row))}}
    return {
        "200": {"description": "the answer", "content": content},
        "default": {"description": "an error", "content": error},
    }


def _explain(field: str, schema: Schema) -> None:
    """Say what a sampling parameter does and within which bounds, where a field is one."""
    name = _NAMES.get(field, field)
    if name not in _ABOUT or schema.get("description") or "default" not in schema:
        return
    schema["description"] = _ABOUT[name]
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") not in _NUMBERS:
            continue
        low, high = RANGES.get(name, (None, None))
        bounds = {"minimum": _LOWEST.get(field, low), "maximum": high}
        for key, bound in bounds.items():
            if bound is not None:
                choice.setdefault(key, bound)
