"""Tools in ``blazr chat`` and ``blazr run``, with a model here or at a server; and who is asked."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blazr.agent.config import read_mcp_config
from blazr.cli.conversation import Conversation
from blazr.cli.options import LoadFlags
from blazr.cli.partners import LocalPartner, RemotePartner
from blazr.cli.tools import ToolFlags, ToolUser, ask_in_terminal, render_step
from blazr.core.errors import ConfigError
from blazr.llm.llm import LLM
from blazr.text.events import ToolStep
from tests.support import mcp_servers
from tests.support.loopback import serving
from tests.support.scripted_calls import calling, calling_core, prompts

pytest.importorskip("mcp")

REPLIES = [
    calling(("meet", {"name": "one"}), ("meet", {"name": "two"}), say="Let me see."),
    calling(("write", {"name": "file"})),
    "Done.",
]


@contextmanager
def tools(
    folder: Path, ask: Callable[[str], bool] | None, *, agent: bool, rounds: int = 10
) -> Iterator[ToolUser]:
    marks = folder / "marks"
    marks.mkdir()
    with mcp_servers.on_http(marks) as url:
        entry = {"url": url, "policy": "auto", "tools": {"write": "ask"}}
        servers = read_mcp_config(mcp_servers.write_config(folder, tried=entry))
        user = ToolUser(servers, ask, asks_always=not agent, max_rounds=rounds)
        try:
            yield user
        finally:
            user.close()


@pytest.mark.parametrize("where", ["here", "by a server"])
def test_calls_run_and_ask(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def ask(what: str) -> bool:
        asked.append(what)
        return True

    core = calling_core(REPLIES)
    with tools(tmp_path, ask, agent=True) as user:
        if where == "here":
            with LLM.of(core) as llm:
                conversation = Conversation(LocalPartner(llm, LoadFlags()), tools=user)
                check(conversation)
        else:
            with serving(core) as running:
                conversation = Conversation(RemotePartner(running.url, None), tools=user)
                check(conversation)
                conversation.close()
        assert asked == ['[tried: write {"name": "file"}]']
        assert [each.name for each in (tmp_path / "marks").iterdir()] == ["file"]
        told = capsys.readouterr().err
        assert "[tried: meet -> met as one]" in told
        assert "[tried: write -> written]" in told
        assert "met as two" in prompts(core)[-1], "what was called is part of the conversation"
        assert "written" in prompts(core)[-1]


def check(conversation: Conversation) -> None:
    completion = conversation.say("write it")
    assert completion is not None
    assert completion.text.replace("\n", "") == "Let me see.Done."
    roles = [each.role for each in conversation.history]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert conversation.say("sure?") is not None


@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_refused_does_not_run(is_there: bool, tmp_path: Path) -> None:
    core = calling_core([calling(("write", {"name": "file"})), "Then not."])
    with (
        tools(tmp_path, (lambda _: False) if is_there else None, agent=True) as user,
        LLM.of(core) as llm,
    ):
        completion = Conversation(LocalPartner(llm, LoadFlags()), tools=user).say("write it")
        assert completion is not None
        assert completion.text == "Then not."
        assert list((tmp_path / "marks").iterdir()) == []
        assert "the user has refused this call" in prompts(core)[-1]


def test_without_agent_every_call_asks(tmp_path: Path) -> None:
    asked = []
    core = calling_core([calling(("add", {"a": 1, "b": 2})), "3."])
    with (
        tools(tmp_path, lambda what: bool(asked.append(what)), agent=False) as user,
        LLM.of(core) as llm,
    ):
        Conversation(LocalPartner(llm, LoadFlags()), tools=user).say("add")
    assert len(asked) == 1


def test_rounds_have_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = calling_core([calling(("add", {"a": 1, "b": 2}))])
    with tools(tmp_path, None, agent=True, rounds=2) as user, LLM.of(core) as llm:
        Conversation(LocalPartner(llm, LoadFlags()), tools=user).say("add")
    assert len(prompts(core)) == 3
    assert "(stopped after 2 rounds of tools)" in capsys.readouterr().err


def test_what_a_tool_says_cannot_move_the_cursor() -> None:
    step = ToolStep(0, 0, "id", "server", "look", "{}", "\x1b[2Ja\nb" + "x" * 500)
    assert render_step(step).startswith("[server: look ->  [2Ja bxxx")
    assert len(render_step(step)) == 200


@pytest.mark.parametrize(("typed", "agrees"), [("y\n", True), ("no\n", False), ("", False)])
def test_the_terminal_asks(
    typed: str, agrees: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert ask_in_terminal("[server: look {}]") is agrees
    assert capsys.readouterr().err == "[server: look {}]\nrun it? [y/N] "


def test_flags(tmp_path: Path) -> None:
    assert ToolFlags().build_user() is None
    with pytest.raises(ConfigError, match="--agent needs tools"):
        ToolFlags(agent=True).build_user()
    path = mcp_servers.write_config(tmp_path, one={"command": "x"})
    user = ToolFlags(mcp_config=path, max_tool_rounds=3).build_user()
    assert user is not None
    assert (user.asks_always, user.max_rounds) == (True, 3)
