"""Which format a model writes its calls in."""

from pathlib import Path

import pytest

from blazr.core.errors import UnknownNameError
from blazr.text.choose_template import choose_template
from blazr.text.reasoning import choose_reasoning
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls.choose import choose_tool_format

TEMPLATES = Path(__file__).resolve().parents[3] / "golden" / "templates"
EXPECTED = {
    "Apertus-8B-Instruct": ("apertus", "apertus"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "GLM-4.6": ("glm45", "think"),
    "GLM-4.7-Flash": ("glm47", "think"),
    "HuggingFaceTB-SmolLM3-3B": ("hermes", "think"),
    "MiMo-VL": ("hermes", None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral_args", None),
    "Qwen-QwQ-32B": ("hermes", "think"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "think"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "think"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "granite"),
    "llama-cpp-deepseek-r1": ("deepseek_v3", "think"),
    "llama-cpp-rwkv-world": ("hermes", "think"),
    "microsoft-Phi-3.5-mini-instruct": ("hermes", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "openai-gpt-oss-120b": ("harmony", "harmony"),
}


def test_every_template_is_expected_to_be_something() -> None:
    assert {file.stem for file in TEMPLATES.glob("*.jinja")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_template_tells_its_formats(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    tool_format, reasoning = choose_tool_format(source, "llama"), choose_reasoning(source, "llama")
    assert tool_format is not None
    assert (tool_format.name, reasoning.name if reasoning else None) == EXPECTED[name]


@pytest.mark.parametrize(
    ("family", "vocab", "expected"),
    [
        ("oxidizr", ["<|function|>", "<|python_tag|>"], "agent"),
        ("llama", ["<|function|>"], "hermes"),
        ("llama", ["<|python_tag|>", "<|function|>"], "llama3_json"),
        ("granite", [], "granite"),
        ("lfm2", [], "lfm2"),
        ("llama", ["<|tool_call_start|>"], "lfm2"),
        ("llama", ["[TOOL_CALLS]"], "mistral_args"),
        ("llama", [], "hermes"),
    ],
)
def test_else_the_family_or_the_vocabulary_tells(
    family: str, vocab: list[str], expected: str
) -> None:
    found = choose_tool_format("{{ messages }}", family, vocab)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% set token = '\uff5cGCML\uff5c' %}<{{ token }}tool_calls>", "gigachat35"),
        ("{% set token = '\uff5cDSML\uff5c' %}<{{ token }}tool_calls>", "deepseek_v4"),
        ("{% set token = '\uff5cDSML\uff5c' %}<{{ token }}function_calls>", "deepseek_v32"),
        ("{{ '<start_function_call>call:' + call.name }}", "functiongemma"),
        ("{{ '<|tool_call>call:' + call.name }}", "gemma4"),
        ("{{ 'in this form: <TOOLCALL>[…]</TOOLCALL>' }}", "nemotron"),
    ],
)
def test_a_template_that_is_not_kept_here_tells_it_too(source: str, expected: str) -> None:
    found = choose_tool_format(source, "llama")
    assert found is not None
    assert found.name == expected


def test_a_name_overrules() -> None:
    found = choose_tool_format("<tool_call>", "llama", name="pythonic")
    assert found is not None
    assert found.name == "pythonic"
    assert choose_tool_format("<tool_call>", "llama", name="none") is None
    with pytest.raises(UnknownNameError, match="unknown tool format"):
        choose_tool_format("", "llama", name="xml")


def test_a_chosen_template_knows_its_formats(cl100k: Tokenizer, tmp_path: Path) -> None:
    own = tmp_path / "chat_template.jinja"
    own.write_text("<tool_call> <think> {{ messages }}", encoding="utf-8")
    template = choose_template(
        directory=tmp_path, name_or_path=None, family="llama", tokenizer=cl100k
    )
    reply = template.reply_format
    assert reply.tool_format is not None
    assert reply.reasoning is not None
    assert (reply.tool_format.name, reply.reasoning.name) == ("hermes", "think")
    template = choose_template(
        directory=tmp_path,
        name_or_path=None,
        family="llama",
        tokenizer=cl100k,
        tool_parser="none",
        reasoning_parser="harmony",
    )
    reply = template.reply_format
    assert reply.tool_format is None
    assert reply.reasoning is not None
    assert reply.reasoning.name == "harmony"
