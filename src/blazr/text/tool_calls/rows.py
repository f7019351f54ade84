"""The rows of TOOL_FORMATS: markers and shapes, from the chat templates of the models themselves.

Signs are what tells a template for the format from others that are tried after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from blazr.text.grammars.tool_call import Part
from blazr.text.splitter import Scan, Sink
from blazr.text.tool_calls import harmony
from blazr.text.tool_calls.format import ToolFormat, Tools, ToolSpec
from blazr.text.tool_calls.json_call import Shape, parts_json, scan_json, spell_json
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
    parts_named,
    scan_deepseek,
    scan_function,
    scan_kimi,
    scan_mistral,
    spell_named,
)
from blazr.text.tool_calls.pythonic import parts_pythonic, scan_pythonic, spell_pythonic
from blazr.text.tool_calls.tagged_call import Tags, parts_tagged, scan_tagged, spell_tagged

_Read = Callable[[Tools, str, Sink], Scan]
_Calls = tuple[
    _Read,
    Callable[[ToolSpec], Sequence[Part]],
    Callable[[str, Mapping[str, object]], str],
]
_PLAIN = Shape()


def _json(
    name: str, ends: dict[str, str], *frame: str, shape: Shape = _PLAIN, **more: tuple[str, ...]
) -> ToolFormat:
    """A row for JSON between markers.

    Args:
        name: What it is called.
        ends: What follows calls by the marker before them.
        frame: What is written before the first call, between two, and after the last.
        shape: What the objects look like.
        more: The other fields.
    """
    calls = scan_json(ends, shape), parts_json(shape), spell_json(shape)
    tokens = tuple(filter(None, ends.values()))
    return _framed(name, tuple(ends), *frame, calls=calls, tokens=tokens, **more)


def _framed(
    name: str, markers: tuple[str, ...], *frame: str, calls: _Calls, **more: tuple[str, ...]
) -> ToolFormat:
    """A row for calls of some shape; ``frame`` is as above."""
    scan, parts, spell = calls
    return ToolFormat(
        name=name,
        markers=markers,
        scan=scan,
        begin=frame[0],
        separator=frame[1],
        end=frame[2],
        parts=parts,
        spell=spell,
        **more,
    )


def _named(scan: _Read, before: str, between: str, after: str) -> _Calls:
    """Names before JSON, and what stands before, between and after the two."""
    return scan, parts_named(before, between, after), spell_named(before, between, after)


def _tagged(tags: Tags) -> _Calls:
    """Arguments between tags."""
    return scan_tagged(tags), parts_tagged(tags), spell_tagged(tags)


HARMONY = ToolFormat(
    name="harmony",
    markers=harmony.MARKERS,
    starters=harmony.STARTERS,
    tokens=harmony.TOKENS,
    signs=("<|channel|>", "<|message|>"),
    scan=harmony.scan_call,
    parts=harmony.parts_call,
    spell=harmony.spell_call,
    stop_names=("<|call|>", "<|return|>"),
    text_markers=harmony.MARKERS,
)

# <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
HERMES = _json(
    "hermes",
    {"<tool_call>": "</tool_call>"},
    "<tool_call>\n",
    "\n</tool_call>\n<tool_call>\n",
    "\n</tool_call>",
    signs=("<tool_call>",),
)
# oxidizr's own tokens around the same
AGENT = _json(
    "agent",
    {"<|function|>": "<|/function|>"},
    "<|function|>",
    "<|/function|>\n<|function|>",
    "<|/function|>",
    signs=("<|function|>",),
    families=("oxidizr",),
)
GRANITE = _json(
    "granite",
    {"<|tool_call|>": "", "<tool_call>": "</tool_call>"},
    "<|tool_call|>[",
    ", ",
    "]",
    signs=("<|tool_call|>",),
    families=("granite",),
)
COHERE = _json(
    "cohere",
    {"<|START_ACTION|>": "<|END_ACTION|>"},
    "<|START_ACTION|>[\n    ",
    ",\n    ",
    "\n]<|END_ACTION|>",
    shape=Shape(name=("tool_name",), arguments=("parameters",), ids=()),
    signs=("<|START_ACTION|>",),
)
APERTUS = _json(
    "apertus",
    {"<|tools_prefix|>": "<|tools_suffix|>"},
    "<|tools_prefix|>[",
    ", ",
    "]<|tools_suffix|>",
    shape=Shape(name=()),
    signs=("<|tools_prefix|>",),
)
APRIEL = _json(
    "apriel",
    {"<tool_calls>": "</tool_calls>"},
    "<tool_calls>[",
    ", ",
    "]</tool_calls>",
    signs=("<tool_calls>",),
)
GIGACHAT = _json(
    "gigachat",
    {"<|function_call|>": ""},
    "<|function_call|>",
    "<|function_call|>",
    "",
    signs=("<|function_call|>",),
)
# of GigaChat 3.0, a message of its own after the text's
_GIGACHAT3 = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GIGACHAT3 = replace(
    _json("gigachat3", {_GIGACHAT3: ""}, _GIGACHAT3, "", "", signs=('"<|message_sep|>\\n\\n"',)),
    separator=None,
    tokens=("<|message_sep|>", "<|role_sep|>"),
)
FIREFUNCTION = _json(
    "firefunction", {"functools": ""}, " functools[", ", ", "]", signs=("functools[",)
)

_LLAMA = Shape(arguments=("parameters", "arguments"), must_be_known=True)
# {"name": "f", "parameters": {"a": 1}} and nothing else; <|python_tag|> may stand before it
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    markers=("<|python_tag|>",),
    starters=("{",),
    signs=("<|start_header_id|>", '"parameters": '),
    scan=scan_json({"<|python_tag|>": ""}, _LLAMA, between=";,"),
    separator="; ",
    parts=parts_json(_LLAMA),
    spell=spell_json(_LLAMA),
    stop_names=("<|eom_id|>",),
)
# a list of calls as Python writes them
PYTHONIC = ToolFormat(
    name="pythonic",
    markers=("<|python_start|>",),
    starters=("[", "{"),
    tokens=("<|python_end|>",),
    signs=("func_name1(",),
    scan=scan_pythonic({"<|python_start|>": "<|python_end|>"}),
    begin="[",
    separator=", ",
    end="]",
    parts=parts_pythonic,
    spell=spell_pythonic,
)
LFM2 = ToolFormat(
    name="lfm2",
    markers=("<|tool_call_start|>",),
    starters=("[",),  # LFM2.5 leaves the tokens out
    tokens=("<|tool_call_end|>",),
    signs=("<|tool_list_start|>",),
    families=("lfm2",),
    scan=scan_pythonic({"<|tool_call_start|>": "<|tool_call_end|>"}),
    begin="<|tool_call_start|>[",
    separator=", ",
    end="]<|tool_call_end|>",
    parts=parts_pythonic,
    spell=spell_pythonic,
)

# [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], until Mistral Small 3.1
MISTRAL = ToolFormat(
    name="mistral",
    markers=("[TOOL_CALLS]",),
    tokens=("[ARGS]", "[CALL_ID]"),
    signs=("[TOOL_CALLS]",),
    scan=scan_mistral,
    begin="[TOOL_CALLS][",
    separator=", ",
    end="]",
    parts=parts_json(),
    spell=spell_json(),
)
# [TOOL_CALLS]f[ARGS]{"a": 1}, since then
MISTRAL_ARGS = _framed(
    "mistral_args",
    ("[TOOL_CALLS]",),
    *("", "", ""),
    calls=_named(scan_mistral, "[TOOL_CALLS]", "[ARGS]", ""),
    tokens=("[ARGS]", "[CALL_ID]"),
    signs=("[TOOL_CALLS]", "[ARGS]"),
)
_DEEPSEEK_TOKENS = (DEEPSEEK_NAME_END, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END)
DEEPSEEK_V3 = _framed(
    "deepseek_v3",
    (DEEPSEEK_CALLS, DEEPSEEK_CALL),
    DEEPSEEK_CALLS,
    "\n",
    DEEPSEEK_CALLS_END,
    calls=_named(
        scan_deepseek,
        f"{DEEPSEEK_CALL}function{DEEPSEEK_NAME_END}",
        "\n```json\n",
        f"\n```{DEEPSEEK_CALL_END}",
    ),
    tokens=_DEEPSEEK_TOKENS,
    signs=(DEEPSEEK_CALL, "```json"),
)
DEEPSEEK_V31 = _framed(
    "deepseek_v31",
    (DEEPSEEK_CALLS, DEEPSEEK_CALL),
    DEEPSEEK_CALLS,
    "",
    DEEPSEEK_CALLS_END,
    calls=_named(scan_deepseek, DEEPSEEK_CALL, DEEPSEEK_NAME_END, DEEPSEEK_CALL_END),
    tokens=_DEEPSEEK_TOKENS,
    signs=(DEEPSEEK_CALL,),
)
KIMI_K2 = _framed(
    "kimi_k2",
    (KIMI_CALLS, KIMI_CALL),
    KIMI_CALLS,
    "",
    KIMI_CALLS_END,
    calls=_named(scan_kimi, f"{KIMI_CALL}functions.", f":0{KIMI_ARGUMENTS}", KIMI_CALL_END),
    tokens=(KIMI_ARGUMENTS, KIMI_CALL_END, KIMI_CALLS_END),
    signs=(KIMI_CALLS,),
)
# <function=f>{"a": 1}</function>
FUNCTIONARY_V31 = _framed(
    "functionary_v31",
    ("<function=",),
    *("", "", ""),
    calls=_named(scan_function, "<function=", ">", "</function>"),
    signs=("<function=",),
    stop_names=("<|eom_id|>",),
)

_QWEN = Tags(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    calls_end="</tool_call>",
    trim="\n",
)
QWEN3_CODER = _framed(
    "qwen3_coder",
    ("<tool_call>", "<function="),
    "<tool_call>\n",
    "\n</tool_call>\n<tool_call>\n",
    "\n</tool_call>",
    calls=_tagged(_QWEN),
    tokens=("</tool_call>",),
    signs=("<function=", "<parameter="),
)
SEED_OSS = _framed(
    "seed_oss",
    ("<seed:tool_call>",),
    "<seed:tool_call>\n",
    "\n",
    "\n</seed:tool_call>",
    calls=_tagged(replace(_QWEN, calls_end="</seed:tool_call>", trim="")),
    tokens=("</seed:tool_call>",),
    signs=("<seed:tool_call>",),
)
_GLM = Tags(
    call="",
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
)
_GLM_TOKENS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
GLM45 = _framed(
    "glm45",
    ("<tool_call>",),
    *("<tool_call>", "\n<tool_call>", ""),
    calls=_tagged(_GLM),
    tokens=_GLM_TOKENS,
    signs=("<arg_key>",),
)
GLM47 = _framed(
    "glm47",
    ("<tool_call>",),
    *("<tool_call>", "<tool_call>", ""),
    calls=_tagged(replace(_GLM, line="")),
    tokens=_GLM_TOKENS,
    signs=("{function-name}<arg_key>",),
)


def _invoked(name: str, token: str, calls: str) -> ToolFormat:
    """A row for tags that begin with a token, ``calls`` around all of them, which some forget."""
    tags = Tags(
        call=f'<{token}invoke name="',
        name_end='">',
        key=f'<{token}parameter name="',
        key_end='"',
        other_key='<parameter name="',
        value_end=f"</{token}parameter>",
        call_end=f"</{token}invoke>",
        calls_end=f"</{token}{calls}>",
        typed=True,
    )
    return _framed(
        name,
        (f"<{token}{calls}>", tags.call),
        *(f"<{token}{calls}>\n", "\n", f"\n</{token}{calls}>"),
        calls=_tagged(tags),
        tokens=(token,),
        signs=(token, f"{calls}>"),
    )


DEEPSEEK_V32 = _invoked("deepseek_v32", "\uff5cDSML\uff5c", "function_calls")
DEEPSEEK_V4 = _invoked("deepseek_v4", "\uff5cDSML\uff5c", "tool_calls")
GIGACHAT35 = _invoked("gigachat35", "\uff5cGCML\uff5c", "tool_calls")
MINIMAX_M2 = _framed(
    "minimax_m2",
    ("<minimax:tool_call>",),
    "<minimax:tool_call>\n",
    "\n",
    "\n</minimax:tool_call>",
    calls=_tagged(
        Tags(
            call='<invoke name="',
            name_end='">',
            key='<parameter name="',
            key_end='">',
            value_end="</parameter>",
            call_end="</invoke>",
            calls_end="</minimax:tool_call>",
        )
    ),
    tokens=("</minimax:tool_call>",),
    signs=("<minimax:tool_call>",),
)
