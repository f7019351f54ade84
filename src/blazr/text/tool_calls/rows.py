"""TOOL_FORMATS: the ways in which models write calls of tools, in the order they are tried.

From the chat templates of the models themselves. Signs are what tells a template for the format
from others that are tried after it.
"""

from __future__ import annotations

from dataclasses import replace

from blazr.core.table import Table
from blazr.text.tool_calls import harmony
from blazr.text.tool_calls.bare_key_call import BareKeyCalls
from blazr.text.tool_calls.format import ToolFormat
from blazr.text.tool_calls.json_call import JsonCalls
from blazr.text.tool_calls.named_call import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_NAME_END,
    KIMI_ARGUMENTS,
    KIMI_CALL,
    KIMI_CALL_END,
    KIMI_CALLS,
    KIMI_CALLS_END,
    DeepSeekCalls,
    FunctionCalls,
    KimiCalls,
    MistralCalls,
    NamedCalls,
)
from blazr.text.tool_calls.pythonic import PythonicCalls
from blazr.text.tool_calls.tagged_call import TaggedCalls


def _enclosed(
    name: str,
    begin: str,
    end: str,
    calls: JsonCalls | PythonicCalls,
    *,
    head: str = "[",
    separator: str = ", ",
    tail: str = "]",
) -> ToolFormat:
    """A row for calls between two markers; a list, if nothing else is said."""
    return ToolFormat(
        name=name,
        markers=(begin,),
        tokens=(end,),
        calls=replace(calls, ends={begin: end}),
        begin=begin + head,
        separator=separator,
        end=tail + end,
    )


def _tagged(name: str, begin: str, end: str, calls: TaggedCalls) -> ToolFormat:
    """A row for tags on lines of their own, with one tag around all of them."""
    return ToolFormat(
        name=name,
        markers=(begin,),
        tokens=(end,),
        calls=replace(calls, calls_end=end),
        begin=begin + "\n",
        separator="\n",
        end="\n" + end,
    )


def _invoked(name: str, token: str, calls: str) -> ToolFormat:
    """A row for tags that begin with a token, ``calls`` around all of them, which some forget."""
    syntax = TaggedCalls(
        call=f'<{token}invoke name="',
        name_end='">',
        key=f'<{token}parameter name="',
        key_end='"',
        other_key='<parameter name="',
        value_end=f"</{token}parameter>",
        call_end=f"</{token}invoke>",
        typed=True,
    )
    row = _tagged(name, f"<{token}{calls}>", f"</{token}{calls}>", syntax)
    markers = (*row.markers, syntax.call)
    return replace(row, markers=markers, tokens=(token,), signs=(token, f"{calls}>"))


def _gemma(name: str, begin: str, end: str, *, quote: str, stop_name: str) -> ToolFormat:
    """A row for ``call:f{city:<|"|>Genf<|"|>,days:3}``, with other tokens."""
    return ToolFormat(
        name=name,
        markers=(begin,),
        tokens=(end, quote),
        calls=BareKeyCalls(before="call:", quote=quote, end=end),
        begin=begin,
        separator=end + begin,
        end=end,
        signs=(begin + "call:",),
        stop_names=(stop_name,),
    )


_QWEN = TaggedCalls(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    calls_end="</tool_call>",
    trim="\n",
)
_GLM = TaggedCalls(
    call="",
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
)
_GLM45 = ToolFormat(
    name="glm45",
    markers=("<tool_call>",),
    tokens=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    calls=_GLM,
    begin="<tool_call>",
    separator="\n<tool_call>",
    signs=("<arg_key>",),
)
_DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    markers=(DEEPSEEK_CALLS, DEEPSEEK_CALL),
    tokens=(DEEPSEEK_NAME_END, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END),
    calls=DeepSeekCalls(DEEPSEEK_CALL, DEEPSEEK_NAME_END, DEEPSEEK_CALL_END),
    begin=DEEPSEEK_CALLS,
    separator="",
    end=DEEPSEEK_CALLS_END,
    signs=(DEEPSEEK_CALL,),
)
_GIGACHAT3 = "<|message_sep|>\n\nfunction call<|role_sep|>\n"

TOOL_FORMATS: Table[ToolFormat] = Table.of(
    "tool format",
    (
        ToolFormat(
            name="harmony",
            markers=harmony.MARKERS,
            starters=harmony.STARTERS,
            tokens=harmony.TOKENS,
            calls=harmony.HarmonyCalls(),
            signs=("<|channel|>", "<|message|>"),
            stop_names=("<|call|>", "<|return|>"),
            text_markers=harmony.MARKERS,
        ),
        ToolFormat(
            name="kimi_k2",
            markers=(KIMI_CALLS, KIMI_CALL),
            tokens=(KIMI_ARGUMENTS, KIMI_CALL_END, KIMI_CALLS_END),
            calls=KimiCalls(f"{KIMI_CALL}functions.", f":0{KIMI_ARGUMENTS}", KIMI_CALL_END),
            begin=KIMI_CALLS,
            separator="",
            end=KIMI_CALLS_END,
        ),
        replace(
            _GLM45,
            name="glm47",
            calls=replace(_GLM, line=""),
            separator="<tool_call>",
            signs=("{function-name}<arg_key>",),
        ),
        _GLM45,
        _tagged("seed_oss", "<seed:tool_call>", "</seed:tool_call>", replace(_QWEN, trim="")),
        _tagged(
            "minimax_m2",
            "<minimax:tool_call>",
            "</minimax:tool_call>",
            TaggedCalls(
                call='<invoke name="',
                name_end='">',
                key='<parameter name="',
                key_end='">',
                value_end="</parameter>",
                call_end="</invoke>",
            ),
        ),
        _invoked("deepseek_v32", "\uff5cDSML\uff5c", "function_calls"),
        _invoked("deepseek_v4", "\uff5cDSML\uff5c", "tool_calls"),
        _invoked("gigachat35", "\uff5cGCML\uff5c", "tool_calls"),
        ToolFormat(
            name="qwen3_coder",
            markers=("<tool_call>", "<function="),
            tokens=("</tool_call>",),
            calls=_QWEN,
            begin="<tool_call>\n",
            separator="\n</tool_call>\n<tool_call>\n",
            end="\n</tool_call>",
            signs=("<function=", "<parameter="),
        ),
        # <function=f>{"a": 1}</function>
        ToolFormat(
            name="functionary_v31",
            markers=("<function=",),
            calls=FunctionCalls("<function=", ">", "</function>"),
            separator="",
            stop_names=("<|eom_id|>",),
        ),
        replace(
            _DEEPSEEK_V31,
            name="deepseek_v3",
            calls=DeepSeekCalls(
                f"{DEEPSEEK_CALL}function{DEEPSEEK_NAME_END}",
                "\n```json\n",
                f"\n```{DEEPSEEK_CALL_END}",
            ),
            separator="\n",
            signs=(DEEPSEEK_CALL, "```json"),
        ),
        _DEEPSEEK_V31,
        # [TOOL_CALLS]f[ARGS]{"a": 1}, since Mistral Small 3.2
        ToolFormat(
            name="mistral_args",
            markers=("[TOOL_CALLS]",),
            tokens=("[ARGS]", "[CALL_ID]"),
            calls=MistralCalls(NamedCalls("[TOOL_CALLS]", "[ARGS]", "")),
            separator="",
            signs=("[TOOL_CALLS]", "[ARGS]"),
        ),
        # [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], until Mistral Small 3.1
        ToolFormat(
            name="mistral",
            markers=("[TOOL_CALLS]",),
            tokens=("[ARGS]", "[CALL_ID]"),
            calls=MistralCalls(JsonCalls()),
            begin="[TOOL_CALLS][",
            separator=", ",
            end="]",
        ),
        _enclosed(
            "cohere",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            JsonCalls(name=("tool_name",), arguments=("parameters",), ids=()),
            head="[\n    ",
            separator=",\n    ",
            tail="\n]",
        ),
        _enclosed("apertus", "<|tools_prefix|>", "<|tools_suffix|>", JsonCalls(name=())),
        _enclosed("apriel", "<tool_calls>", "</tool_calls>", JsonCalls()),
        # Nemotron Nano 2, Llama Nemotron
        _enclosed("nemotron", "<TOOLCALL>", "</TOOLCALL>", JsonCalls()),
        ToolFormat(
            name="gigachat",
            markers=("<|function_call|>",),
            calls=JsonCalls(ends={"<|function_call|>": ""}),
            begin="<|function_call|>",
            separator="<|function_call|>",
        ),
        # of GigaChat 3.0, a message of its own after the text's
        ToolFormat(
            name="gigachat3",
            markers=(_GIGACHAT3,),
            tokens=("<|message_sep|>", "<|role_sep|>"),
            calls=JsonCalls(ends={_GIGACHAT3: ""}),
            begin=_GIGACHAT3,
            signs=('"<|message_sep|>\\n\\n"',),
        ),
        _gemma(
            "gemma4",
            "<|tool_call>",
            "<tool_call|>",
            quote='<|"|>',
            stop_name="<|tool_response>",
        ),
        _gemma(
            "functiongemma",
            "<start_function_call>",
            "<end_function_call>",
            quote="<escape>",
            stop_name="<start_function_response>",
        ),
        ToolFormat(
            name="firefunction",
            markers=("functools",),
            calls=JsonCalls(ends={"functools": ""}),
            begin=" functools[",
            separator=", ",
            end="]",
            signs=("functools[",),
        ),
        ToolFormat(
            name="granite",
            markers=("<|tool_call|>", "<tool_call>"),
            tokens=("</tool_call>",),
            calls=JsonCalls(ends={"<|tool_call|>": "", "<tool_call>": "</tool_call>"}),
            begin="<|tool_call|>[",
            separator=", ",
            end="]",
            families=("granite",),
        ),
        replace(
            _enclosed("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", PythonicCalls()),
            starters=("[",),  # LFM2.5 leaves the tokens out
            signs=("<|tool_list_start|>",),
            families=("lfm2",),
        ),
        # a list of calls as Python writes them
        ToolFormat(
            name="pythonic",
            markers=("<|python_start|>",),
            starters=("[", "{"),
            tokens=("<|python_end|>",),
            calls=PythonicCalls({"<|python_start|>": "<|python_end|>"}),
            begin="[",
            separator=", ",
            end="]",
            signs=("func_name1(",),
        ),
        # {"name": "f", "parameters": {"a": 1}}, perhaps behind <|python_tag|>, and nothing else
        ToolFormat(
            name="llama3_json",
            markers=("<|python_tag|>",),
            starters=("{",),
            calls=JsonCalls(
                arguments=("parameters", "arguments"),
                must_be_known=True,
                ends={"<|python_tag|>": ""},
                between=";,",
            ),
            separator="; ",
            signs=("<|start_header_id|>", '"parameters": '),
            stop_names=("<|eom_id|>",),
        ),
        # oxidizr's own tokens around what Hermes writes
        replace(
            _enclosed(
                "agent",
                "<|function|>",
                "<|/function|>",
                JsonCalls(),
                head="",
                separator="<|/function|>\n<|function|>",
                tail="",
            ),
            families=("oxidizr",),
        ),
        # <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
        _enclosed(
            "hermes",
            "<tool_call>",
            "</tool_call>",
            JsonCalls(between=","),  # some put several between two tags
            head="\n",
            separator="\n</tool_call>\n<tool_call>\n",
            tail="\n",
        ),
    ),
)
