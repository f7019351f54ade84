"""Chats of the chat page as files, without a browser."""

from __future__ import annotations

import json

from tests.support.page_modules import needs_node, said_by

pytestmark = needs_node

_ROUND = """
const { chatAsJson, chatsFrom } = await import(process.argv[1]);
const [chat] = await chatsFrom(new File([chatAsJson(%s)], "chat.json"));
console.log(JSON.stringify(chat));
"""


def test_pictures_and_sounds_come_back_by_name() -> None:
    media = [{"id": "a", "kind": "picture", "name": "cat.png"}, {"kind": "sound", "name": "meow"}]
    made = {"role": "assistant", "model": "m", "content": "", "thought": "", "calls": []}
    messages = [
        {"role": "user", "content": "", "media": media},
        {**made, "media": [{"id": "b", "kind": "<script>", "name": "a cat"}]},
    ]
    chat = json.loads(said_by(_ROUND % json.dumps({"messages": messages}), "transfer.js"))
    asked, answered = chat["messages"]
    told = [(each["kind"], each["name"]) for each in asked["media"] + answered["media"]]
    assert told == [("picture", "cat.png"), ("sound", "meow"), ("picture", "a cat")]
    ids = {each["id"] for each in asked["media"] + answered["media"]}
    assert len(ids) == 3, "files that are kept under the old ids are another chat's"
    assert not ids & {"a", "b"}
