"""Conversations in the terminal: commands, several lines, and a server that answers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from blazr.cli.chat import talk
from blazr.cli.conversation import Conversation
from blazr.cli.options import LoadFlags
from blazr.cli.partners import LocalPartner, Question, RemotePartner
from blazr.cli.terminal import Screen, read_message
from blazr.core.errors import BlazrError, ConfigError, EngineError, RequestError
from blazr.llm.llm import LLM
from blazr.text.events import Event
from blazr.text.messages import Message
from tests.support.loopback import serving
from tests.support.scripted import SCRIPT, scripted_core, thinking_core


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.of(scripted_core()) as llm:
        yield llm


@pytest.fixture
def conversation(llm: LLM) -> Conversation:
    return Conversation(LocalPartner(llm, LoadFlags()))


def run_lines(conversation: Conversation, *lines: str) -> None:
    """Talk, from these lines."""
    rest = iter(lines)

    def read(prompt: str, default: str = "") -> str:
        for line in rest:
            return line
        raise EOFError

    talk(conversation, read)


def prompts(llm: LLM) -> list[str]:
    return [
        llm.tokenizer.decode(each.prompt_ids, skip_special=False)
        for each in llm.core.engine.submitted
    ]


def contents(conversation: Conversation) -> list[str | None]:
    return [each.content for each in conversation.history]


def test_it_remembers_and_obeys(
    conversation: Conversation, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    run_lines(
        conversation,
        "hi",
        "",
        "/system be kind",
        "again",
        "/nope",
        "/stat",
        "/help",
        "/clear",
        "/exit",
        "no",
    )
    assert prompts(llm)[0] == "<|user|>\nhi\n<|assistant|>\n"
    assert prompts(llm)[1] == (
        "<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"
        f"{SCRIPT}\n<|user|>\nagain\n<|assistant|>\n"
    )
    assert conversation.history == []
    shown = capsys.readouterr()
    assert shown.out == f"{SCRIPT}\n" * 2
    assert "no command '/nope'" in shown.err
    assert "Did you mean /stats?" in shown.err


def test_it_goes_on_after_an_error(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    run_lines(conversation, "a" * 5000, "hi")
    assert len(conversation.history) == 2
    assert "cannot fit" in capsys.readouterr().err


def test_a_path_is_no_command(conversation: Conversation) -> None:
    run_lines(conversation, "/usr/bin/env: what is it?")
    assert contents(conversation)[0] == "/usr/bin/env: what is it?"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['"""', "a", " b", '"""'], "a\n b"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a"""'], "a"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (["a \\ b"], "a \\ b"),
    ],
)
def test_messages_of_several_lines(lines: list[str], message: str) -> None:
    rest = iter(lines)
    assert read_message(lambda _prompt, _default: next(rest)) == message
    assert not list(rest)


def test_retry_and_edit(conversation: Conversation, llm: LLM) -> None:
    run_lines(conversation, "one", "two", "/retry", "/edit three")
    assert contents(conversation) == ["one", SCRIPT, "three", SCRIPT]
    assert prompts(llm)[1] == prompts(llm)[2]
    with pytest.raises(ConfigError):
        conversation.obey("/edit")


def test_a_failed_retry_takes_nothing_back(conversation: Conversation) -> None:
    conversation.say("one")
    before = conversation.history
    with pytest.raises(BlazrError):
        conversation.say_instead("a" * 5000)
    assert conversation.history == before


def test_settings(conversation: Conversation, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    run_lines(
        conversation,
        "/set temperature 0",
        "/set max-tokens 3",
        "/set stop eight",
        "/set seed 7",
        "hi",
    )
    params = llm.core.engine.submitted[0].params
    assert (params.temperature, params.max_tokens, params.stop) == (0, 3, ("eight",))
    assert "(stopped after 3 tokens)" in capsys.readouterr().err
    run_lines(conversation, "/set seed", "/set verbose on", "/show", "hi", "/stats")
    assert "seed" not in conversation.given
    shown = capsys.readouterr().err
    assert "temperature = 0.0" in shown
    assert "scripted on cpu, context 512 tokens" in shown
    assert shown.count("reply 3 tokens") == 2
    for wrong in ("/set temperature 9", "/set top_k x", "/set temper 1", "/set wrap maybe"):
        with pytest.raises(BlazrError):
            conversation.obey(wrong)
    assert conversation.given == {"temperature": 0.0, "max_tokens": 3, "stop": ["eight"]}


def test_save_and_load(conversation: Conversation, llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    run_lines(conversation, "/system be kind", "/set top_k 5", "hi", f"/save {file}")
    other = Conversation(LocalPartner(llm, LoadFlags()))
    other.obey(f"/load {file}")
    assert (other.system, other.given, other.history) == (
        "be kind",
        {"top_k": 5},
        conversation.history,
    )
    chat = json.dumps([{"role": "system", "content": "s"}, {"role": "user"}])
    file.write_text(chat, encoding="utf-8-sig")  # as another program may write it
    other.obey(f"/load {file}")
    assert (other.system, other.history) == ("s", [Message(role="user", content=None)])
    for text in ("{", "3", '{"messages": [{"content": "x"}]}'):
        file.write_text(text)
        with pytest.raises(BlazrError):
            other.obey(f"/load {file}")
    with pytest.raises(ConfigError):
        other.obey("/load")


def test_a_context_that_is_full_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with LLM.of(scripted_core()) as llm:
        Conversation(LocalPartner(llm, LoadFlags()), {"max_tokens": -1}).say("hi")
        assert llm.core.engine.submitted[0].params.max_tokens is None
    assert "full" not in capsys.readouterr().err


def test_thinking_is_asked_for_or_not() -> None:
    with LLM.of(thinking_core("<think>hm</think>yes")) as llm:
        conversation = Conversation(LocalPartner(llm, LoadFlags()))
        completion = conversation.say("hi")
        assert completion is not None
        assert (completion.reasoning, completion.text) == ("hm", "yes")
        assert llm.core.engine.submitted[0].constraint is None
        conversation.obey("/set think off")
        conversation.say("hi")
        assert llm.core.engine.submitted[1].constraint is not None


def test_a_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(thinking_core("<think>hm</think>yes and no"), api_keys=("k",)) as running:
        with pytest.raises(RequestError, match="401"):
            RemotePartner(running.url, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BLAZR_API_KEY", "k,another")  # the first is sent
            partner = RemotePartner(f"{running.url}/v1/", None)
            with pytest.raises(EngineError, match="no such model"):
                partner.change_model("other")
        conversation = Conversation(partner, {"temperature": 0.0, "max_tokens": -1})
        completion = conversation.say("hi")
        assert completion is not None
        assert (completion.reasoning, completion.text) == ("hm", "yes and no")
        assert (completion.finish_reason, completion.error) == ("stop", None)
        assert completion.usage.prompt_tokens > 2
        assert completion.usage.completion_tokens > 4
        conversation.given["temperature"] = 9.0
        with pytest.raises(RequestError, match="refused: HTTP 400"):
            conversation.say("hi")
        conversation.given = {"grammar": {"json_schema": {"enum": ["a"]}}}
        question = Question(messages=[], given=conversation.given, thinks=False)
        with pytest.raises(RequestError, match="refused"):
            list(partner.answer(question))
        partner.close()
    assert capsys.readouterr().out.startswith("yes and no\n")


def test_a_server_s_answer_may_hold_what_ends_a_line_elsewhere() -> None:
    with serving(scripted_core(text="one\u2028two\x85three")) as running:
        conversation = Conversation(RemotePartner(running.url, None))
        completion = conversation.say("hi")
        conversation.partner.close()
    assert completion is not None
    assert completion.text == "one\u2028two\x85three"


def test_a_chat_that_a_server_s_context_cannot_hold_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(scripted_core()) as running:
        conversation = Conversation(RemotePartner(running.url, None), {"max_tokens": 20})
        conversation.say(" x" * 300)
        completion = conversation.say(" y" * 300)
        conversation.partner.close()
    assert completion is not None
    assert completion.num_dropped_messages == 2
    assert "the oldest 2 messages no longer fit" in capsys.readouterr().err


class _OtherServer(BaseHTTPRequestHandler):
    """A server that refuses fields it does not know, as OpenAI's does."""

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, content: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_GET(self) -> None:
        self.reply(200, '{"data": [{"id": "other"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "truncation" in body:
            self.reply(400, '{"error": {"message": "Unrecognized argument: truncation"}}')
        else:
            chunk = {"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]}
            self.reply(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")


def test_a_server_that_knows_no_truncation_is_asked_without() -> None:
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        conversation = Conversation(RemotePartner(f"http://127.0.0.1:{server.server_port}", None))
        for _ in range(2):
            completion = conversation.say("hi")
            assert completion is not None
            assert completion.text == "hello"
        conversation.partner.close()
        server.shutdown()


def test_log_lines_wait_for_the_end_of_an_answer(llm: LLM) -> None:
    logger = logging.getLogger("blazr.test")

    class Logging(LocalPartner):
        def answer(self, *args: object, **more: object) -> Iterator[Event]:
            for event in super().answer(*args, **more):
                logger.warning("an event")
                yield event

    terminal = io.StringIO()
    root = logging.getLogger("blazr")
    before = root.handlers.copy()
    root.handlers[:] = [logging.StreamHandler(terminal)]
    try:
        Conversation(Logging(llm, LoadFlags()), screen=Screen(terminal)).say("hi")
    finally:
        root.handlers[:] = before
    answer, log_lines = terminal.getvalue().split("\n", 1)
    assert answer == SCRIPT
    assert set(log_lines.splitlines()) == {"an event"}


def test_no_server_answers() -> None:
    with pytest.raises(EngineError, match="cannot chat with"):
        RemotePartner("http://127.0.0.1:1", None)
