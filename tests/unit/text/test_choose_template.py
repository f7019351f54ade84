"""Which chat template a model gets."""

import json
from pathlib import Path

import pytest

from blazr.core.errors import CheckpointError, UnknownNameError
from blazr.text.chat_template import ChatTemplate
from blazr.text.choose_template import choose_template
from blazr.text.messages import Message
from blazr.text.tokenizer import Tokenizer

USER = Message(role="user", content="hi")
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def choose(directory: Path | None, tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate:
    return choose_template(
        directory=directory, name_or_path=name, family="oxidizr", tokenizer=tokenizer
    )


def write_config(directory: Path, **content: object) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(content), "utf-8")


def test_the_models_own_comes_before_a_built_in_form(tmp_path: Path, cl100k: Tokenizer) -> None:
    write_config(tmp_path, chat_template="config {{ bos_token }}", bos_token={"content": "<x>"})
    assert choose(tmp_path, cl100k).render([USER]) == "config <x>"
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}", "utf-8")
    assert choose(tmp_path, cl100k).render([USER]) == "file <|endoftext|>"


def test_a_broken_link_is_not_taken_for_no_template(tmp_path: Path, cl100k: Tokenizer) -> None:
    (tmp_path / "chat_template.jinja").symlink_to(tmp_path / "blobs" / "4d7a")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be opened"):
        choose(tmp_path, cl100k)


def test_a_model_may_have_several(tmp_path: Path, cl100k: Tokenizer) -> None:
    templates = [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
        {"name": "rag", "template": "c"},
    ]
    write_config(tmp_path, chat_template=templates)
    assert choose(tmp_path, cl100k).render([USER]) == "a"
    assert choose(tmp_path, cl100k).render([USER], tools=TOOLS) == "b"
    assert choose(tmp_path, cl100k, "rag").render([USER]) == "c"


def test_others_may_lie_in_a_folder(tmp_path: Path, cl100k: Tokenizer) -> None:
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    for name in ("default", "rag"):
        (folder / f"{name}.jinja").write_text(f"{name} of the folder", "utf-8")
    (tmp_path / "chat_template.jinja").write_text("main", "utf-8")
    assert choose(tmp_path, cl100k).render([USER]) == "main"
    assert choose(tmp_path, cl100k, "rag").render([USER]) == "rag of the folder"


def test_the_one_asked_for_comes_first(tmp_path: Path, cl100k: Tokenizer) -> None:
    write_config(tmp_path, chat_template="config")
    assert choose(tmp_path, cl100k, "oxidizr-compact").name == "oxidizr-compact"
    file = tmp_path / "mine.jinja"
    file.write_text("mine", "utf-8")
    assert choose(tmp_path, cl100k, str(file)).render([USER]) == "mine"


def test_without_any_the_family_decides(tmp_path: Path, cl100k: Tokenizer) -> None:
    assert choose(tmp_path, cl100k).name == "oxidizr"
    template = choose_template(
        directory=tmp_path, name_or_path=None, family="llama", tokenizer=cl100k
    )
    assert template.name == "generic"


def test_an_unknown_name_is_answered_with_the_known_ones(cl100k: Tokenizer) -> None:
    with pytest.raises(UnknownNameError, match=r"oxidizr-compact.*\.jinja"):
        choose(None, cl100k, "oxidizer")


def test_a_broken_template_is_refused_when_the_model_is_loaded(
    tmp_path: Path, cl100k: Tokenizer
) -> None:
    write_config(tmp_path, chat_template="{% for %}")
    with pytest.raises(CheckpointError, match="line 1"):
        choose(tmp_path, cl100k)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="cannot be read"):
        choose(tmp_path, cl100k)
