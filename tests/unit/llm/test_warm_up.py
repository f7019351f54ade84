"""What a chat needs once is made before the first one comes."""

from __future__ import annotations

import pytest

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest
from blazr.text import chat_template
from blazr.text.chat_template import ChatTemplate
from blazr.text.messages import Message
from tests.support.scripted import scripted_core

CHAT = GenerationRequest(messages=[Message(role="user", content="Count.")])


def test_the_first_chat_finds_the_turn_marks_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    real = chat_template.find_turn_marks
    monkeypatch.setattr(
        chat_template,
        "find_turn_marks",
        lambda *args, **kwargs: found.append(1) or real(*args, **kwargs),
    )
    core = scripted_core()
    core.warm_up()
    assert len(found) == 1
    core.prepare(CHAT)
    assert len(found) == 1
    assert not core.engine.submitted


@pytest.mark.parametrize(
    "template", [None, ChatTemplate("{{ raise_exception('never') }}", name="refusing")]
)
def test_a_model_that_cannot_chat_is_no_failure(template: ChatTemplate | None) -> None:
    core = scripted_core()
    core.template = template
    core.warm_up()
    with pytest.raises(RequestError):
        core.prepare(CHAT)
