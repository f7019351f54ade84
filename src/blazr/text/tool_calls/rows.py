"""The rows of TOOL_FORMATS: how calls are written, and what stands around them.

From the chat templates of the models themselves. Signs are what tells a template for the format
from others that are tried after it.
"""

from __future__ import annotations

from dataclasses import replace

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

HARMONY = ToolFormat(
    name="harmony",
    markers=harmony.MARKERS,
    starters=harmony.STARTERS,
    tokens=harmony.TOKENS,
    calls=harmony.HarmonyCalls(),
    signs=("<|channel|>", "<|message|>"),
    stop_names=("<|call|>", "<|return|>"),
    text_markers=harmony.MARKERS,
)

# <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
HERMES = ToolFormat(
    name="hermes",
    markers=("<tool_call>",),
    tokens=("</tool_call>",),
    calls=JsonCalls(ends={"<tool_call>": "</tool_call>"}),
    begin="<tool_call>\n",
    separator="\n</tool_call>\n<tool_call>\n",
    end="\n</tool_call>",
    signs=("<tool_call>",),
)
# oxidizr's own tokens around the same
AGENT = ToolFormat(
    name="agent",
    markers=("<|function|>",),
    tokens=("<|/function|>",),
    calls=JsonCalls(ends={"<|function|>": "<|/function|>"}),
    begin="<|function|>",
    separator="<|/function|>\n<|function|>",
    end="<|/function|>",
    signs=("<|function|>",),
    families=("oxidizr",),
)
GRANITE = ToolFormat(
    name="granite",
    markers=("<|tool_call|>", "<tool_call>"),
    tokens=("</tool_call>",),
    calls=JsonCalls(ends={"<|tool_call|>": "", "<tool_call>": "</tool_call>"}),
    begin="<|tool_call|>[",
    separator=", ",
    end="]",
    signs=("<|tool_call|>",),
    families=("granite",),
)
COHERE = ToolFormat(
    name="cohere",
    markers=("<|START_ACTION|>",),
    tokens=("<|END_ACTION|>",),
    calls=JsonCalls(
        name=("tool_name",),
        arguments=("parameters",),
        ids=(),
        ends={"<|START_ACTION|>": "<|END_ACTION|>"},
    ),
    begin="<|START_ACTION|>[\n    ",
    separator=",\n    ",
    end="\n]<|END_ACTION|>",
    signs=("<|START_ACTION|>",),
)
APERTUS = ToolFormat(
    name="apertus",
    markers=("<|tools_prefix|>",),
    tokens=("<|tools_suffix|>",),
    calls=JsonCalls(name=(), ends={"<|tools_prefix|>": "<|tools_suffix|>"}),
    begin="<|tools_prefix|>[",
    separator=", ",
    end="]<|tools_suffix|>",
    signs=("<|tools_prefix|>",),
)
APRIEL = ToolFormat(
    name="apriel",
    markers=("<tool_calls>",),
    tokens=("</tool_calls>",),
    calls=JsonCalls(ends={"<tool_calls>": "</tool_calls>"}),
    begin="<tool_calls>[",
    separator=", ",
    end="]</tool_calls>",
    signs=("<tool_calls>",),
)
GIGACHAT = ToolFormat(
    name="gigachat",
    markers=("<|function_call|>",),
    calls=JsonCalls(ends={"<|function_call|>": ""}),
    begin="<|function_call|>",
    separator="<|function_call|>",
    signs=("<|function_call|>",),
)
# of GigaChat 3.0, a message of its own after the text's
_GIGACHAT3 = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GIGACHAT3 = ToolFormat(
    name="gigachat3",
    markers=(_GIGACHAT3,),
    tokens=("<|message_sep|>", "<|role_sep|>"),
    calls=JsonCalls(ends={_GIGACHAT3: ""}),
    begin=_GIGACHAT3,
    signs=('"<|message_sep|>\\n\\n"',),
)
FIREFUNCTION = ToolFormat(
    name="firefunction",
    markers=("functools",),
    calls=JsonCalls(ends={"functools": ""}),
    begin=" functools[",
    separator=", ",
    end="]",
    signs=("functools[",),
)
# {"name": "f", "parameters": {"a": 1}} and nothing else; <|python_tag|> may stand before it
LLAMA3_JSON = ToolFormat(
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
)

# a list of calls as Python writes them
PYTHONIC = ToolFormat(
    name="pythonic",
    markers=("<|python_start|>",),
    starters=("[", "{"),
    tokens=("<|python_end|>",),
    calls=PythonicCalls({"<|python_start|>": "<|python_end|>"}),
    begin="[",
    separator=", ",
    end="]",
    signs=("func_name1(",),
)
LFM2 = ToolFormat(
    name="lfm2",
    markers=("<|tool_call_start|>",),
    starters=("[",),  # LFM2.5 leaves the tokens out
    tokens=("<|tool_call_end|>",),
    calls=PythonicCalls({"<|tool_call_start|>": "<|tool_call_end|>"}),
    begin="<|tool_call_start|>[",
    separator=", ",
    end="]<|tool_call_end|>",
    signs=("<|tool_list_start|>",),
    families=("lfm2",),
)

# call:f{city:<|"|>Genf<|"|>,days:3}
GEMMA4 = ToolFormat(
    name="gemma4",
    markers=("<|tool_call>",),
    tokens=("<tool_call|>", '<|"|>'),
    calls=BareKeyCalls(before="call:", quote='<|"|>', end="<tool_call|>"),
    begin="<|tool_call>",
    separator="<tool_call|><|tool_call>",
    end="<tool_call|>",
    signs=("<|tool_call>call:",),
    stop_names=("<|tool_response>",),
)
FUNCTIONGEMMA = ToolFormat(
    name="functiongemma",
    markers=("<start_function_call>",),
    tokens=("<end_function_call>", "<escape>"),
    calls=BareKeyCalls(before="call:", quote="<escape>", end="<end_function_call>"),
    begin="<start_function_call>",
    separator="<end_function_call><start_function_call>",
    end="<end_function_call>",
    signs=("<start_function_call>call:",),
    stop_names=("<start_function_response>",),
)

# [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], until Mistral Small 3.1
MISTRAL = ToolFormat(
    name="mistral",
    markers=("[TOOL_CALLS]",),
    tokens=("[ARGS]", "[CALL_ID]"),
    calls=MistralCalls(JsonCalls()),
    begin="[TOOL_CALLS][",
    separator=", ",
    end="]",
    signs=("[TOOL_CALLS]",),
)
# [TOOL_CALLS]f[ARGS]{"a": 1}, since then
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    markers=("[TOOL_CALLS]",),
    tokens=("[ARGS]", "[CALL_ID]"),
    calls=MistralCalls(NamedCalls("[TOOL_CALLS]", "[ARGS]", "")),
    separator="",
    signs=("[TOOL_CALLS]", "[ARGS]"),
)
_DEEPSEEK_TOKENS = (DEEPSEEK_NAME_END, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END)
DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    markers=(DEEPSEEK_CALLS, DEEPSEEK_CALL),
    tokens=_DEEPSEEK_TOKENS,
    calls=DeepSeekCalls(
        f"{DEEPSEEK_CALL}function{DEEPSEEK_NAME_END}",
        "\n```json\n",
        f"\n```{DEEPSEEK_CALL_END}",
    ),
    begin=DEEPSEEK_CALLS,
    separator="\n",
    end=DEEPSEEK_CALLS_END,
    signs=(DEEPSEEK_CALL, "```json"),
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    markers=(DEEPSEEK_CALLS, DEEPSEEK_CALL),
    tokens=_DEEPSEEK_TOKENS,
    calls=DeepSeekCalls(DEEPSEEK_CALL, DEEPSEEK_NAME_END, DEEPSEEK_CALL_END),
    begin=DEEPSEEK_CALLS,
    separator="",
    end=DEEPSEEK_CALLS_END,
    signs=(DEEPSEEK_CALL,),
)
KIMI_K2 = ToolFormat(
    name="kimi_k2",
    markers=(KIMI_CALLS, KIMI_CALL),
    tokens=(KIMI_ARGUMENTS, KIMI_CALL_END, KIMI_CALLS_END),
    calls=KimiCalls(f"{KIMI_CALL}functions.", f":0{KIMI_ARGUMENTS}", KIMI_CALL_END),
    begin=KIMI_CALLS,
    separator="",
    end=KIMI_CALLS_END,
    signs=(KIMI_CALLS,),
)
# <function=f>{"a": 1}</function>
FUNCTIONARY_V31 = ToolFormat(
    name="functionary_v31",
    markers=("<function=",),
    calls=FunctionCalls("<function=", ">", "</function>"),
    separator="",
    signs=("<function=",),
    stop_names=("<|eom_id|>",),
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
QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    markers=("<tool_call>", "<function="),
    tokens=("</tool_call>",),
    calls=_QWEN,
    begin="<tool_call>\n",
    separator="\n</tool_call>\n<tool_call>\n",
    end="\n</tool_call>",
    signs=("<function=", "<parameter="),
)
SEED_OSS = ToolFormat(
    name="seed_oss",
    markers=("<seed:tool_call>",),
    tokens=("</seed:tool_call>",),
    calls=replace(_QWEN, calls_end="</seed:tool_call>", trim=""),
    begin="<seed:tool_call>\n",
    separator="\n",
    end="\n</seed:tool_call>",
    signs=("<seed:tool_call>",),
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
GLM45 = ToolFormat(
    name="glm45",
    markers=("<tool_call>",),
    tokens=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    calls=_GLM,
    begin="<tool_call>",
    separator="\n<tool_call>",
    signs=("<arg_key>",),
)
GLM47 = replace(
    GLM45,
    name="glm47",
    calls=replace(_GLM, line=""),
    separator="<tool_call>",
    signs=("{function-name}<arg_key>",),
)


def _invoked(name: str, token: str, calls: str) -> ToolFormat:
    """A row for tags that begin with a token, ``calls`` around all of them, which some forget."""
    begin, end = f"<{token}{calls}>", f"</{token}{calls}>"
    syntax = TaggedCalls(
        call=f'<{token}invoke name="',
        name_end='">',
        key=f'<{token}parameter name="',
        key_end='"',
        other_key='<parameter name="',
        value_end=f"</{token}parameter>",
        call_end=f"</{token}invoke>",
        calls_end=end,
        typed=True,
    )
    return ToolFormat(
        name=name,
        markers=(begin, syntax.call),
        tokens=(token,),
        calls=syntax,
        begin=begin + "\n",
        separator="\n",
        end="\n" + end,
        signs=(token, f"{calls}>"),
    )


DEEPSEEK_V32 = _invoked("deepseek_v32", "\uff5cDSML\uff5c", "function_calls")
DEEPSEEK_V4 = _invoked("deepseek_v4", "\uff5cDSML\uff5c", "tool_calls")
GIGACHAT35 = _invoked("gigachat35", "\uff5cGCML\uff5c", "tool_calls")
MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    markers=("<minimax:tool_call>",),
    tokens=("</minimax:tool_call>",),
    calls=TaggedCalls(
        call='<invoke name="',
        name_end='">',
        key='<parameter name="',
        key_end='">',
        value_end="</parameter>",
        call_end="</invoke>",
        calls_end="</minimax:tool_call>",
    ),
    begin="<minimax:tool_call>\n",
    separator="\n",
    end="\n</minimax:tool_call>",
    signs=("<minimax:tool_call>",),
)
