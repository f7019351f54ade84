"""An endpoint is one file and one row: here both are made at run time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from blazr.server.endpoint import Call, Route
from blazr.server.openapi import describe
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core


# The file.
class CountLinesBody(msgspec.Struct, kw_only=True):
    """A text."""

    text: str
    model: str | None = None


class LineCount(msgspec.Struct):
    """How many lines there are."""

    lines: int
    tokens: int


async def count_lines(call: Call[CountLinesBody]) -> LineCount:
    """Count lines."""
    ids = call.llm.tokenizer.encode(call.body.text)
    return LineCount(lines=len(call.body.text.splitlines()), tokens=len(ids))


# The row.
ROW = Route("POST", "/v1/count_lines", count_lines)


@pytest.fixture(scope="module")
def running() -> Iterator[Loopback]:
    with serving(scripted_core(), routes=[*ROUTES.values(), ROW]) as running:
        yield running


def test_it_answers(running: Loopback) -> None:
    reply = running.client.post("/v1/count_lines", json={"text": "one\ntwo\nthree"})
    assert reply.status_code == 200
    assert reply.json()["lines"] == 3
    assert reply.json()["tokens"] > 0


def test_a_wrong_body_is_refused_by_name(running: Loopback) -> None:
    reply = running.client.post("/v1/count_lines", json={"text": 5})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "text"
    assert running.client.get("/v1/count_lines").status_code == 405


def test_it_is_typed_in_the_document(running: Loopback) -> None:
    document = running.client.get("/openapi.json").json()
    operation = document["paths"]["/v1/count_lines"]["post"]
    assert operation["summary"] == "Count lines."
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    assert schemas[body["$ref"].rpartition("/")[2]]["required"] == ["text"]
    counted = schemas[answer["$ref"].rpartition("/")[2]]
    assert set(counted["properties"]) == {"lines", "tokens"}
    assert set(counted["required"]) == {"lines", "tokens"}
    assert (
        document["paths"].keys() == {"/v1/count_lines"} | describe(ROUTES.values())["paths"].keys()
    )


def test_two_types_of_one_name_are_refused() -> None:
    class LineCount(msgspec.Struct):
        """Another type of that name."""

        letters: int

    async def count_letters(call: Call[None]) -> LineCount:
        """Count letters."""
        raise NotImplementedError

    count_letters.__annotations__ = {"call": Call[None], "return": LineCount}
    with pytest.raises(ValueError, match="two types are called LineCount"):
        describe([ROW, Route("GET", "/letters", count_letters)])


def test_a_handler_without_annotations_is_refused() -> None:
    async def silent(call):
        return None

    with pytest.raises(TypeError, match="silent needs annotations"):
        Route("GET", "/silent", silent)
