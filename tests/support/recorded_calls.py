"""Replies with calls of tools, as the formats' own documentation and templates give them."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.text.tool_calls.format import ToolSpec
from blazr.text.tool_calls.named_call import deepseek_token

Call = tuple[str, str]  # name, arguments as JSON
WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string"},
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
    },
}
TOOLS = [
    ToolSpec("get_current_temperature", WEATHER),
    ToolSpec("get_weather", WEATHER),
    ToolSpec("get_user_info", {"properties": {"user_id": {"type": "integer"}}}),
    ToolSpec("get_stock_fundamentals", {"properties": {"symbol": {"type": "string"}}}),
    ToolSpec("now", {}),
    ToolSpec("get_todays_date", {}),
    ToolSpec("web_search", {"properties": {"query": {"type": "string"}}}),
    ToolSpec("brave_web_search", {"properties": {"query": {"type": "string"}}}),
    ToolSpec(
        "write_file",
        {
            "properties": {
                "path": {"type": "string"},
                "content": {"type": "string"},
                "mode": {"type": ["integer", "null"]},
                "tags": {"type": "array"},
                "force": {"type": "boolean"},
            }
        },
    ),
]


@dataclass(frozen=True)
class Recorded:
    """What a model writes, and what it means.

    Args:
        format: A row of TOOL_FORMATS.
        source: Whose documentation it is from, or where somebody kept it and which model wrote it.
        reply: All it wrote; end tokens are not part of a reply.
        calls: The calls in it.
        text: The rest.
    """

    format: str
    source: str
    reply: str
    calls: tuple[Call, ...]
    text: str = ""


def wide(text: str) -> str:
    """DeepSeek's and GigaChat's tokens, spelled ``{name}`` here."""
    for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"):
        text = text.replace("{" + name + "}", deepseek_token("tool▁" + name))
    return text.replace("{DSML}", "\uff5cDSML\uff5c").replace("{GCML}", "\uff5cGCML\uff5c")


RECORDED = (
    Recorded(
        "hermes",
        "NousResearch/Hermes-2-Pro-Llama-3-8B, model card",
        "<tool_call>\n"
        '{"arguments": {"symbol": "TSLA"}, "name": "get_stock_fundamentals"}\n'
        "</tool_call>",
        (("get_stock_fundamentals", '{"symbol": "TSLA"}'),),
    ),
    Recorded(
        "hermes",
        "Qwen documentation, Function Calling (Qwen2.5)",
        "I will look it up.\n<tool_call>\n"
        '{"name": "get_current_temperature", "arguments": {"location": "San Francisco, CA, USA"}}\n'
        "</tool_call>\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"location": "Zürich", "unit": "celsius"}}\n'
        "</tool_call>",
        (
            ("get_current_temperature", '{"location": "San Francisco, CA, USA"}'),
            ("get_weather", '{"location": "Zürich", "unit": "celsius"}'),
        ),
        "I will look it up.",
    ),
    Recorded(
        "hermes",
        "what models make of it: arguments as a string, or as nothing, and text after the calls",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Gen\\u00e8ve \\ud83d'
        '\\ude00\\"}"}</tool_call><tool_call>{"name": "now"}</tool_call>\n\nDone.',
        (("get_weather", '{"city": "Genève 😀"}'), ("now", "{}")),
        "Done.",
    ),
    Recorded(
        "qwen3_coder",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct, chat template and qwen3coder_tool_parser.py",
        "Writing.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n"
        '<parameter=content>\nif a < b:\n    print("</p>\\n")\n\n</parameter>\n'
        '<parameter=mode>\n420\n</parameter>\n<parameter=tags>\n["x", 1]\n</parameter>\n'
        "<parameter=force>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        (
            (
                "write_file",
                (
                    r'{"path": "a.py", "content": "if a < b:\n    print(\"</p>\\n\")\n", '
                    '"mode": 420, "tags": ["x", 1], "force": true}'
                ),
            ),
            ("now", "{}"),
        ),
        "Writing.",
    ),
    Recorded(
        "seed_oss",
        "ByteDance-Seed/Seed-OSS-36B-Instruct, chat template",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=location>Beijing</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        (("get_weather", '{"location": "Beijing", "days": 3}'),),
    ),
    Recorded(
        "minimax_m2",
        "MiniMaxAI/MiniMax-M2, docs/tool_calling_guide.md",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="location">San '
        'Francisco</parameter>\n<parameter name="unit">celsius</parameter>\n</invoke>\n'
        '<invoke name="write_file">\n<parameter name="tags">["a", "b"]</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        (
            ("get_weather", '{"location": "San Francisco", "unit": "celsius"}'),
            ("write_file", '{"tags": ["a", "b"]}'),
        ),
    ),
    Recorded(
        "glm45",
        "zai-org/GLM-4.5, chat template",
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        (("get_weather", '{"city": "北京", "days": 3}'), ("now", "{}")),
    ),
    Recorded(
        "glm47",
        "zai-org/GLM-4.7-Flash, chat template",
        "Sure.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "</tool_call><tool_call>now</tool_call>",
        (("get_weather", '{"city": "Paris"}'), ("now", "{}")),
        "Sure.",
    ),
    Recorded(
        "deepseek_v32",
        "deepseek-ai/DeepSeek-V3.2, encoding/README.md",
        wide(
            '<{DSML}function_calls>\n<{DSML}invoke name="get_weather">\n<{DSML}parameter '
            'name="location" string="true">Hangzhou</{DSML}parameter>\n<{DSML}parameter '
            'name="days" string="false">2</{DSML}parameter>\n</{DSML}invoke>\n<{DSML}invoke '
            'name="get_weather">\n<{DSML}parameter name="location" string="true">7</{DSML}'
            "parameter>\n</{DSML}invoke>\n</{DSML}function_calls>"
        ),
        (
            ("get_weather", '{"location": "Hangzhou", "days": 2}'),
            ("get_weather", '{"location": "7"}'),
        ),
    ),
    Recorded(
        "deepseek_v4",
        "deepseek-ai/DeepSeek-V4, chat template",
        wide(
            'Let me see.\n\n<{DSML}tool_calls>\n<{DSML}invoke name="write_file">\n<{DSML}parameter '
            'name="tags" string="false">[1, {"a": null}]</{DSML}parameter>\n</{DSML}invoke>\n'
            "</{DSML}tool_calls>"
        ),
        (("write_file", '{"tags": [1, {"a": null}]}'),),
        "Let me see.",
    ),
    Recorded(
        "deepseek_v3",
        "deepseek-ai/DeepSeek-V3-0324, chat template",
        wide(
            "{calls▁begin}{call▁begin}function{sep}get_weather\n```json\n"
            '{"location": "Tokyo"}\n```{call▁end}\n{call▁begin}function{sep}get_weather\n'
            '```json\n{"location": "Paris"}\n```{call▁end}{calls▁end}'
        ),
        (("get_weather", '{"location": "Tokyo"}'), ("get_weather", '{"location": "Paris"}')),
    ),
    Recorded(
        "deepseek_v31",
        "deepseek-ai/DeepSeek-V3.1, model card, ToolCall",
        wide(
            'One moment.{calls▁begin}{call▁begin}get_weather{sep}{"city": "Genf"}{call▁end}'
            "{call▁begin}now{sep}{}{call▁end}{calls▁end}"
        ),
        (("get_weather", '{"city": "Genf"}'), ("now", "{}")),
        "One moment.",
    ),
    Recorded(
        "kimi_k2",
        "moonshotai/Kimi-K2-Instruct, docs/tool_call_guidance.md",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_call_begin|>'
        "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        (("get_weather", '{"city": "Beijing"}'), ("now", "{}")),
    ),
    Recorded(
        "gigachat35",
        "vllm-project/vllm's test of its reader of GigaChat 3.5's thinking",
        wide(
            '<{GCML}tool_calls>\n<{GCML}invoke name="get_weather">\n<{GCML}parameter name="city" '
            'string="true">Москва</{GCML}parameter>\n</{GCML}invoke>\n</{GCML}tool_calls>'
        ),
        (("get_weather", '{"city": "Москва"}'),),
    ),
    Recorded(
        "mistral",
        "Mistral documentation, tokenization of tool calls (v3 tokenizer)",
        '[TOOL_CALLS][{"name": "get_current_temperature", "arguments": {"location": "Paris, '
        'France", "unit": "celsius"}, "id": "VvvODy9mT"}, {"name": "now", "arguments": {}}]',
        (
            ("get_current_temperature", '{"location": "Paris, France", "unit": "celsius"}'),
            ("now", "{}"),
        ),
    ),
    Recorded(
        "mistral_args",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506 and Devstral, chat templates",
        'I look.[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Lyon"}'
        "[TOOL_CALLS]now[ARGS]{}",
        (("get_weather", '{"city": "Lyon"}'), ("now", "{}")),
        "I look.",
    ),
    Recorded(
        "llama3_json",
        "Llama 3.1 model card and prompt formats, JSON based tool calling",
        '{"name": "get_current_temperature", "parameters": {"location": "San Francisco, CA"}}',
        (("get_current_temperature", '{"location": "San Francisco, CA"}'),),
    ),
    Recorded(
        "llama3_json",
        "the same with the tag, and with several calls as Llama 3.3 parts them",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": '
        '"Rome"}}; {"name": "now", "parameters": null}',
        (("get_weather", '{"city": "Rome"}'), ("now", "{}")),
    ),
    Recorded(
        "pythonic",
        "Llama 3.2 model card and prompt formats, zero shot function calling",
        "[get_user_info(user_id=7890, special='black'), get_weather(city=\"L'Aquila\"), now()]",
        (
            ("get_user_info", '{"user_id": 7890, "special": "black"}'),
            ("get_weather", '{"city": "L\'Aquila"}'),
            ("now", "{}"),
        ),
    ),
    Recorded(
        "pythonic",
        "Llama 4 prompt format",
        "<|python_start|>[write_file(tags=['a', (1, None)], force=True, mode=-3)]<|python_end|>",
        (("write_file", '{"tags": ["a", [1, null]], "force": true, "mode": -3}'),),
    ),
    Recorded(
        "pythonic",
        "what our own grammar allows where every argument is optional",
        '[get_weather(, unit="celsius")]',
        (("get_weather", '{"unit": "celsius"}'),),
    ),
    Recorded(
        "lfm2",
        "LiquidAI/LFM2-1.2B, model card, Tool use",
        '<|tool_call_start|>[get_weather(city="São Paulo")]<|tool_call_end|>Checking the current '
        "weather.",
        (("get_weather", '{"city": "São Paulo"}'),),
        "Checking the current weather.",
    ),
    Recorded(
        "lfm2",
        "LiquidAI documentation, calls as JSON where the system prompt asks for it",
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
        "<|tool_call_end|>",
        (("get_weather", '{"city": "Oslo"}'),),
    ),
    Recorded(
        "granite",
        "IBM Granite documentation, function calling (3.x)",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"location": "Boston"}}]',
        (("get_weather", '{"location": "Boston"}'),),
    ),
    Recorded(
        "granite",
        "ibm-granite/granite-4.0, chat template",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Boston"}}\n</tool_call>',
        (("get_weather", '{"city": "Boston"}'),),
    ),
    Recorded(
        "harmony",
        "openai/harmony, docs/format.md, function calling",
        "<|channel|>commentary to=functions.get_current_temperature <|constrain|>json<|message|>"
        '{"location":"San Francisco"}<|call|>',
        (("get_current_temperature", '{"location":"San Francisco"}'),),
    ),
    Recorded(
        "harmony",
        "openai/gpt-oss-120b, chat template: the recipient before the channel",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Wien"}',
        (("get_weather", '{"city": "Wien"}'),),
    ),
    Recorded(
        "functionary_v31",
        "Llama 3.1 prompt formats, user defined custom tool calling",
        '<function=get_weather>{"city": "Bern"}</function>',
        (("get_weather", '{"city": "Bern"}'),),
    ),
    Recorded(
        "cohere",
        "CohereForAI/c4ai-command-r7b-12-2024, chat template",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        '{"city": "Rom"}},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]'
        "<|END_ACTION|>",
        (("get_weather", '{"city": "Rom"}'), ("now", "{}")),
    ),
    Recorded(
        "apertus",
        "swiss-ai/Apertus-8B-Instruct, chat template",
        '<|tools_prefix|>[{"get_weather": {"city": "Chur"}}, {"now": {}}]<|tools_suffix|>',
        (("get_weather", '{"city": "Chur"}'), ("now", "{}")),
    ),
    Recorded(
        "apriel",
        "ServiceNow-AI/Apriel-1.5-15b-Thinker, chat template",
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Ulm"}, "id": "call_1"}]'
        "</tool_calls>",
        (("get_weather", '{"city": "Ulm"}'),),
    ),
    Recorded(
        "gigachat",
        "ai-sage/GigaChat3.1-10B-A1.8B, chat template",
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "Тула"}}',
        (("get_weather", '{"city": "Тула"}'),),
    ),
    Recorded(
        "gigachat3",
        "ai-sage/GigaChat3-10B-A1.8B, chat template",
        "Смотрю.<|message_sep|>\n\nfunction call<|role_sep|>\n"
        '{"name": "get_weather", "arguments": {"city": "Тула"}}',
        (("get_weather", '{"city": "Тула"}'),),
        "Смотрю.",
    ),
    Recorded(
        "gemma4",
        "google/gemma-4-31B-it, chat template",
        '<|tool_call>call:get_weather{city:<|"|>Genf, "CH"<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:write_file{force:true,tags:[<|"|>a<|"|>,{b:null,<|"|>c d<|"|>:[]}]}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        (
            ("get_weather", r'{"city": "Genf, \"CH\"", "days": 3}'),
            ("write_file", '{"force": true, "tags": ["a", {"b": null, "c d": []}]}'),
            ("now", "{}"),
        ),
    ),
    Recorded(
        "gemma4",
        "what models make of it: JSON's quotes, bare text, commas where none belong",
        'Ok.\n<|tool_call>call:get_weather{ "city" : "Z\\u00fcrich" , unit: very cold,, }'
        "<tool_call|>",
        (("get_weather", '{"city": "Zürich", "unit": "very cold"}'),),
        "Ok.",
    ),
    Recorded(
        "functiongemma",
        "google/functiongemma-270m-it, chat template",
        "<start_function_call>call:set_lights{on:true,rooms:[<escape>hall<escape>]}"
        "<end_function_call><start_function_call>call:now{}<end_function_call>",
        (("set_lights", '{"on": true, "rooms": ["hall"]}'), ("now", "{}")),
    ),
    Recorded(
        "firefunction",
        "fireworks-ai/llama-3-firefunction-v2, model card",
        ' functools[{"name": "get_weather", "arguments": {"city": "Kyiv"}}]',
        (("get_weather", '{"city": "Kyiv"}'),),
    ),
    Recorded(
        "agent",
        "blazr's own form, with the tokens of oxidizr's vocabularies",
        'I call.\n<|function|>{"name": "get_weather", "arguments": {"city": "Wil"}}<|/function|>',
        (("get_weather", '{"city": "Wil"}'),),
        "I call.",
    ),
    Recorded(
        "nemotron",
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2, chat template",
        'Let me look.\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Genf", '
        '"days": 3}}, {"name": "now", "arguments": {}}]</TOOLCALL>',
        (("get_weather", '{"city": "Genf", "days": 3}'), ("now", "{}")),
        "Let me look.",
    ),
)
