"""/v1/responses: every key, events in their order, what is stored and gone on with."""

from __future__ import annotations

import asyncio
import json

import msgspec
import openai
import pytest
from openai.types.responses import Response

from blazr.server.config import ServerConfig
from blazr.server.openai.responses.rendering import ResponseRenderer
from blazr.server.openai.responses.replay import EventLog, Replay
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, wait_until

PATH = "/v1/responses"
ENDLESS = {"max_output_tokens": 10**6, "background": True}
LONG = "one " * 30000


class PanicError(BaseException):
    """Like a panic in an extension module: not an Exception."""


def post(loopback: Loopback, **body: object):
    return loopback.client.post(PATH, json={"input": "hello", **body})


def events(loopback: Loopback, **body: object) -> list[dict]:
    raw = {"input": "hello", **body, "stream": True}
    with loopback.client.stream("POST", PATH, json=raw) as reply:
        assert reply.status_code == 200, reply.read()
        frames = reply.read().decode().strip().split("\n\n")
    payloads = [json.loads(frame.split("\ndata: ")[1]) for frame in frames]
    names = [frame.split("\n")[0].removeprefix("event: ") for frame in frames]
    assert names == [each["type"] for each in payloads]
    return payloads


def prompt_of(loopback: Loopback) -> str:
    ids = loopback.engine.submitted[-1].prompt_ids
    return loopback.core.tokenizer.decode(ids, skip_special=False)


def test_every_key_is_there(loopback: Loopback) -> None:
    reply = post(loopback, model="default", instructions="be kind", metadata={"a": "b"}).json()
    required = {name for name, f in Response.model_fields.items() if f.is_required()}
    asked = "completed_at background previous_response_id reasoning text truncation usage store"
    assert required | {*asked.split(), "error", "incomplete_details", "user"} <= set(reply)
    assert Response.model_validate(reply).output_text == SCRIPT
    assert reply["status"] == "completed"
    assert reply["metadata"] == {"a": "b"}
    assert reply["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 21,
    }
    assert prompt_of(loopback).startswith("<|system|>\nbe kind\n<|user|>\nhello\n")


def test_events_come_in_their_order(loopback: Loopback) -> None:
    found = events(loopback)
    kinds = [each["type"].removeprefix("response.") for each in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    last = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds[-4:] == last
    assert "".join(each.get("delta", "") for each in found) == SCRIPT
    whole = post(loopback).json()
    final = found[-1]["response"]
    for reply in (whole, final):
        reply["output"][0]["id"] = reply["id"] = ""
        reply["created_at"] = reply["completed_at"] = 0
    assert final == whole


def test_too_few_tokens_make_it_incomplete(loopback: Loopback) -> None:
    reply = post(loopback, max_output_tokens=3).json()
    assert reply["status"] == reply["output"][0]["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events(loopback, max_output_tokens=3)[-1]["type"] == "response.incomplete"


def test_log_probabilities(loopback: Loopback) -> None:
    include = ["message.output_text.logprobs"]
    for asked in ({"include": include}, {"top_logprobs": 2}):
        (part,) = post(loopback, **asked).json()["output"][0]["content"]
        assert len(part["logprobs"]) == 10
        found = events(loopback, **asked)
        streamed = [x for each in found if "delta" in each for x in each["logprobs"]]
        assert streamed == part["logprobs"]
    assert post(loopback).json()["output"][0]["content"][0]["logprobs"] == []


def test_a_conversation_goes_on(loopback: Loopback) -> None:
    first = post(loopback, instructions="only now").json()["id"]
    second = post(loopback, input="and then?", previous_response_id=first).json()
    assert second["previous_response_id"] == first
    turns = ("<|user|>", "hello", "<|assistant|>", SCRIPT, "<|user|>", "and then?")
    assert prompt_of(loopback) == "\n".join([*turns, "<|assistant|>\n"])
    assert "only now" not in prompt_of(loopback)
    post(loopback, input="so?", previous_response_id=second["id"])
    assert prompt_of(loopback).count("<|user|>") == 3


def test_items_of_stored_responses_may_be_named(loopback: Loopback) -> None:
    """As Vercel's AI SDK does with every turn that went before."""
    asked = [{"role": "user", "content": "hello"}]
    reply = post(loopback, input=asked).json()
    (item,) = reply["output"]
    more = {"role": "user", "content": "and then?"}
    second = post(loopback, input=[*asked, item, more])
    expected = prompt_of(loopback)
    named = {"type": "item_reference", "id": item["id"]}
    third = post(loopback, input=[*asked, named, more])
    assert prompt_of(loopback) == expected
    assert SCRIPT in expected
    # what they stand for is kept
    kept = [
        [
            each["content"][0]["text"]
            for each in loopback.client.get(f"{PATH}/{each.json()['id']}/input_items").json()[
                "data"
            ]
        ]
        for each in (second, third)
    ]
    assert kept[0] == kept[1]
    counted = [
        loopback.client.post(f"{PATH}/input_tokens", json={"input": [*asked, each, more]}).json()
        for each in (item, named)
    ]
    assert counted[0] == counted[1]
    loopback.client.delete(f"{PATH}/{reply['id']}")
    for name in (item["id"], "msg_1_0", "x", "_", ""):
        missing = post(loopback, input=[{"type": "item_reference", "id": name}])
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "input")


@pytest.mark.parametrize(
    "asked",
    [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
    ],
)
def test_what_was_asked_can_be_named(loopback: Loopback, asked: dict) -> None:
    more = {"role": "user", "content": "and then?"}
    first = post(loopback, input=[more, asked]).json()
    found = loopback.client.get(f"{PATH}/{first['id']}/input_items?order=asc").json()["data"]
    assert len({each["id"] for each in found}) == 2
    named = [{"type": "item_reference", "id": each["id"]} for each in found]
    expected = prompt_of(loopback)
    assert post(loopback, input=named).is_success
    assert prompt_of(loopback) == expected
    loopback.client.delete(f"{PATH}/{first['id']}")
    assert post(loopback, input=named).status_code == 404


def test_what_was_asked_is_listed_page_by_page(loopback: Loopback) -> None:
    asked = [{"role": "user", "content": str(place)} for place in range(25)]
    where = f"{PATH}/{post(loopback, input=asked).json()['id']}/input_items"

    def _page(**query: object) -> tuple[list[int], dict]:
        reply = loopback.client.get(where, params=query)
        assert reply.status_code == 200, reply.text
        return [int(each["content"][0]["text"]) for each in reply.json()["data"]], reply.json()

    found, page = _page()
    assert (found, page["has_more"]) == ([*range(24, 4, -1)], True)
    found, page = _page(after=page["last_id"])
    assert (found, page["has_more"]) == ([4, 3, 2, 1, 0], False)
    found, page = _page(order="asc", limit=2)
    assert (found, page["has_more"]) == ([0, 1], True)
    assert page["first_id"] == page["data"][0]["id"] != page["last_id"]
    found, page = _page(order="asc", limit=100, after=page["last_id"])
    assert (found, page["has_more"]) == ([*range(2, 25)], False)
    with openai.OpenAI(base_url=f"{loopback.url}/v1", api_key="none") as client:
        listed = client.responses.input_items.list(where.split("/")[-2], limit=7)
        assert len(list(listed)) == len(asked)
    for query, param in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "sideways"}, "order"),
        ({"after": "nobody"}, "after"),
    ):
        refused = loopback.client.get(where, params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_stored_responses_are_found_until_deleted(loopback: Loopback) -> None:
    reply = post(loopback).json()
    where = f"{PATH}/{reply['id']}"
    assert loopback.client.get(where).json() == reply
    items = loopback.client.get(f"{where}/input_items").json()
    (item,) = items["data"]
    assert item["content"] == [{"type": "input_text", "text": "hello"}]
    assert item["status"] == "completed"
    assert items["first_id"] == items["last_id"] == items["data"][0]["id"]
    gone = {"id": reply["id"], "object": "response", "deleted": True}
    assert loopback.client.delete(where).json() == gone
    for missing in (loopback.client.get(where), loopback.client.delete(where)):
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "response_not_found"


def test_what_is_not_stored_is_not_found(loopback: Loopback) -> None:
    reply = post(loopback, store=False).json()
    assert loopback.client.get(f"{PATH}/{reply['id']}").status_code == 404
    assert post(loopback, previous_response_id=reply["id"]).status_code == 404


def test_keys_do_not_see_each_other_s() -> None:
    with serving(scripted_core(), api_keys=("a", "b")) as running:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in "ab")
        reply = running.client.post(PATH, json={"input": "hi"}, headers=mine).json()
        named = {"input": [{"type": "item_reference", "id": reply["output"][0]["id"]}]}
        for headers, status in ((mine, 200), (other, 404)):
            found = running.client.get(f"{PATH}/{reply['id']}", headers=headers)
            assert found.status_code == status
            assert running.client.post(PATH, json=named, headers=headers).status_code == status


def test_items_become_messages(loopback: Loopback) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"role": "user", "content": "go on"},
    ]
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    assert post(loopback, input=items, tools=tools).is_success
    prompt = prompt_of(loopback)
    assert prompt.index("be kind") < prompt.index("hi") < prompt.index("ok") < prompt.index("go on")
    assert prompt.count("<|assistant|>") == 2


def test_tokens_are_counted_as_they_are_read(loopback: Loopback) -> None:
    counted = loopback.client.post(f"{PATH}/input_tokens", json={"input": "hello"}).json()
    usage = post(loopback).json()["usage"]
    assert counted == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}


def test_in_the_background_until_done(loopback: Loopback) -> None:
    reply = post(loopback, background=True).json()
    assert reply["status"] == "in_progress"
    assert reply["output"] == []
    where = f"{PATH}/{reply['id']}"
    wait_until(lambda: loopback.client.get(where).json()["status"] == "completed")
    found = loopback.client.get(where).json()
    assert found["output"][0]["content"][0]["text"] == SCRIPT
    assert loopback.client.post(f"{where}/cancel").json() == found


def test_in_the_background_until_something_panics(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise PanicError("private words")

    monkeypatch.setattr(ResponseRenderer, "event", fail)
    path = f"{PATH}/{post(loopback, background=True).json()['id']}"
    wait_until(lambda: loopback.client.get(path).json()["status"] == "failed")
    assert "private" not in loopback.client.get(path).text
    assert "private" in caplog.text


def test_in_the_background_and_followed_from_any_place(loopback: Loopback) -> None:
    expected = events(loopback)
    found = events(loopback, background=True)
    assert [each["type"] for each in found] == [each["type"] for each in expected]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    final = found[-1]["response"]
    where = f"{PATH}/{final['id']}"
    assert loopback.client.get(where).json() == final

    def follow(after: int) -> list[dict]:
        query = {"stream": "true"} | ({} if after < 0 else {"starting_after": str(after)})
        frames = loopback.client.get(where, params=query).text.strip().split("\n\n")
        return [json.loads(frame.split("\ndata: ")[1]) for frame in frames if frame]

    for after in (-1, 0, 7, len(found) - 2, len(found) - 1, 10**6):
        assert follow(after) == found[after + 1 :]


@pytest.mark.parametrize("wakes_apart", [False, True])
def test_what_follows_ends_without_a_sign_of_life(
    wakes_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event and the end may come together, or a turn of the loop apart."""
    sent: list[bytes] = []

    async def collect(_replay: Replay, data: bytes) -> None:
        sent.append(data)

    async def follow() -> None:
        log = EventLog()
        replay = Replay(log, ServerConfig())
        task = asyncio.create_task(replay.send_events())
        await asyncio.sleep(0.01)
        log.add([msgspec.defstruct("A", [], tag_field="type", tag="a")()])
        if wakes_apart:
            await asyncio.sleep(0.01)
        log.close()
        await task

    monkeypatch.setattr(Replay, "send_bytes", collect)
    asyncio.run(follow())
    assert [b"event: a" in each for each in sent] == [True]


def test_the_background_goes_on_without_its_readers() -> None:
    with serving(scripted_core(text=LONG)) as running:
        raw = {"input": "hello", **ENDLESS, "stream": True}
        with running.client.stream("POST", PATH, json=raw) as left:
            frame = next(line for line in left.iter_lines() if line.startswith("data: "))
            running.engine.go.clear()
        where = f"{PATH}/{json.loads(frame[6:])['response']['id']}"
        with running.client.stream("GET", f"{where}?stream=true&starting_after=3") as follower:
            lines = follower.iter_lines()
            first = next(line for line in lines if line.startswith("data: "))
            assert json.loads(first[6:])["sequence_number"] == 4
            assert running.engine.num_running == 1
            running.client.post(f"{where}/cancel")
            running.engine.go.set()
            assert not [line for line in lines if "completed" in line]  # and it ends
        assert running.client.get(where).json()["status"] == "cancelled"


def test_only_the_background_can_be_followed(loopback: Loopback) -> None:
    where = f"{PATH}/{post(loopback).json()['id']}"
    for query in ({"stream": "true"}, {"stream": "perhaps"}, {"starting_after": "-1"}):
        refused = loopback.client.get(where, params=query)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] in query
    assert loopback.client.get(where, params={"stream": "false", "what": "ever"}).is_success


def test_in_the_background_until_cancelled() -> None:
    with serving(scripted_core(text=LONG)) as running:
        running.engine.go.clear()  # or it may have ended before anybody looks
        where = f"{PATH}/{post(running, **ENDLESS).json()['id']}"
        assert "is in_progress" in continued(running, where)
        wait_until(lambda: running.engine.num_running == 1)
        running.engine.go.set()
        assert running.client.post(f"{where}/cancel").json()["status"] == "cancelled"
        wait_until(lambda: running.engine.num_running == 0)
        assert running.state.num_working == 0
        assert running.client.get(where).json()["status"] == "cancelled"
        assert "is cancelled" in continued(running, where)
        where = f"{PATH}/{post(running, **ENDLESS).json()['id']}"
        assert running.client.delete(where).is_success
        wait_until(lambda: running.engine.num_running == 0)
        running.engine.fails_with = "not a number"
        where = f"{PATH}/{post(running, **ENDLESS).json()['id']}"
        wait_until(lambda: running.client.get(where).json()["status"] == "failed")
        assert "not a number" in running.client.get(where).json()["error"]["message"]
        assert "is failed" in continued(running, where)
        assert running.client.post(f"{where}/cancel").json()["status"] == "failed"


def continued(running: Loopback, where: str) -> str:
    """Why a response cannot be continued."""
    refused = post(running, previous_response_id=where.rpartition("/")[2])
    assert refused.status_code == 400
    return str(refused.json()["error"]["message"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "image_generation_call"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "user", "content": "a"}] * 4097}, "input"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "name": "f"}] * 129}, "tools"),
        ({"background": True, "store": False}, "background"),
        ({"prompt": {"id": "pmpt_1", "variables": {}}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"adapter": "mine"}, "adapter"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "riddle"}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "riddle"}}}}, "text"),
    ],
)
def test_refusals_name_the_field(loopback: Loopback, body: dict, param: str) -> None:
    reply = post(loopback, **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_only_the_background_can_be_cancelled(loopback: Loopback) -> None:
    name = post(loopback).json()["id"]
    assert loopback.client.post(f"{PATH}/{name}/cancel").status_code == 400


def test_a_stream_that_fails_says_so() -> None:
    with serving(scripted_core(text=LONG)) as running:
        raw = {"input": "hello", "stream": True, "max_output_tokens": 10**6}
        with running.client.stream("POST", PATH, json=raw) as reply:
            lines = reply.iter_lines()
            next(lines)
            running.engine.fails_with = "not a number"
            last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["message"] == "not a number"
        found = running.client.get(f"{PATH}/{last['response']['id']}").json()
        assert found["status"] == "failed"


def test_a_conversation_of_nothing_is_refused_by_the_name_of_the_field(loopback: Loopback) -> None:
    error = post(loopback, input=[]).json()["error"]
    assert (error["param"], error["message"]) == ("input", "input may not be empty.")
