"""Mistral AI's forms of a chat: as mistral-common writes them."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from blazr.text.choose_template import choose_template
from blazr.text.messages import Message
from blazr.text.templates.mistral import VERSIONS
from blazr.text.tokenizers import tekken

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
CASES = json.loads((GOLDEN / "templates/mistral_forms.json").read_text("utf-8"))


class Case(TypedDict):
    version: int
    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None
    text: str


def message(given: dict[str, object]) -> Message:
    rest = {key: each for key, each in given.items() if key not in {"role", "content"}}
    content = given["content"]
    return Message(
        role=str(given["role"]), content=None if content is None else str(content), extra=rest
    )


def with_version(directory: Path, version: object) -> Path:
    stored = json.loads((GOLDEN / "tokenizers/tekken/tekken.json").read_text("utf-8"))
    stored["config"]["version"] = version
    (directory / tekken.NAME).write_text(json.dumps(stored), "utf-8")
    return directory


def form_of(directory: Path) -> str:
    tokenizer = tekken.load(str(GOLDEN / "tokenizers/tekken/tekken.json"))
    template = choose_template(
        directory=directory, name_or_path=None, family="mistral", tokenizer=tokenizer
    )
    return template.name


@pytest.mark.parametrize("case", CASES)
def test_chats_are_those_of_mistral_common(tmp_path: Path, case: Case) -> None:
    directory = with_version(tmp_path, f"v{case['version']}")
    template = choose_template(
        directory=directory,
        name_or_path=None,
        family="mistral",
        tokenizer=tekken.load(str(directory / tekken.NAME)),
    )
    chat = [message(each) for each in case["messages"]]
    assert template.render(chat, tools=case["tools"]) == case["text"]


def test_every_version_is_recorded() -> None:
    assert {case["version"] for case in CASES} == set(VERSIONS)


def test_thoughts_are_kept(tmp_path: Path) -> None:
    template = choose_template(
        directory=None,
        name_or_path="mistral-v13",
        family="mistral",
        tokenizer=tekken.load(str(with_version(tmp_path, "v13") / tekken.NAME)),
    )
    thought = Message(role="assistant", content="4", extra={"reasoning_content": "2 + 2"})
    assert template.render([thought]) == "<s>[THINK]2 + 2[/THINK]4</s>"
    assert template.reply_format.tool_format is not None
    assert template.reply_format.tool_format.name == "mistral_args"


@pytest.mark.parametrize(
    ("version", "name"),
    [("v3", "mistral-v3"), ("v7", "mistral-v7"), ("v12", "mistral-v11"), ("v15", "mistral-v13")],
)
def test_the_file_tells_the_form(tmp_path: Path, version: str, name: str) -> None:
    assert form_of(with_version(tmp_path, version)) == name


@pytest.mark.parametrize("version", ["v1", "3", "", None, "v9999999"])
def test_versions_that_are_none(tmp_path: Path, version: object) -> None:
    assert form_of(with_version(tmp_path, version)) == "generic"


def test_the_models_own_template_comes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("own", "utf-8")
    assert form_of(with_version(tmp_path, "v13")) == "the model's own"


@pytest.mark.parametrize("data", [b"", b"\xff", b"[", b"{}", b'{"config": 1}'])
def test_files_that_are_wrong_tell_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / tekken.NAME).write_bytes(data)
    assert form_of(tmp_path) == "generic"
