"""``GET /openapi.json``: the endpoints and their bodies, from the ROUTES table itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

import blazr
from blazr.server.endpoint import Route

_SCHEMAS = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": ["object", "string"]}},
    "required": ["error"],
}


def describe(routes: Iterable[Route]) -> dict[str, object]:
    """The OpenAPI 3.1 document of some routes."""
    rows = list(routes)
    bodies = list(dict.fromkeys(row.body for row in rows if row.body is not None))
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_SCHEMAS)
    by_body = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for row in rows:
        path = _PARAMETER.sub(r"{\1}", row.path)
        schema = by_body[row.body] if row.body is not None else None
        paths.setdefault(path, {})[row.method.lower()] = _operation(row, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "blazr", "version": blazr.__version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Route, schema: dict[str, Any] | None) -> dict[str, object]:
    error = {"schema": {"$ref": _SCHEMAS.format(name="Error")}}
    operation: dict[str, object] = {
        "summary": (inspect.getdoc(row.handler) or "").partition("\n")[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(row.path)
        ],
        "responses": {
            "200": {"description": "the answer"},
            "default": {"description": "an error", "content": {"application/json": error}},
        },
        "security": [] if row.is_open else [{}, {"key": []}],
    }
    if schema is not None:
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
