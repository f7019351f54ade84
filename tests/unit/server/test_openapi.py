"""The OpenAPI document says what the routes are."""

from __future__ import annotations

import json
import re

import pytest
from tests.loopback import Loopback

from blazr.server.routes import ROUTES


@pytest.fixture
def document(loopback: Loopback) -> dict:
    return loopback.client.get("/openapi.json").json()


def test_every_route_is_there_with_its_body(document: dict) -> None:
    for row in ROUTES.values():
        path = row.path.replace(":path", "")
        operation = document["paths"][path][row.method.lower()]
        assert operation["summary"]
        assert ("requestBody" in operation) is (row.body is not None)
        assert [each["name"] for each in operation["parameters"]] == re.findall(r"{(\w+)}", path)
        assert operation["security"] == ([] if row.is_open else [{}, {"key": []}])


def test_every_reference_leads_somewhere(document: dict) -> None:
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert len(names) > 30
    assert set(names) <= set(document["components"]["schemas"])


def test_bodies_name_their_fields(document: dict) -> None:
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    assert schema["required"] == ["messages"]
    assert {"tools", "response_format", "continue_final_message"} <= set(schema["properties"])
