"""Requests written by hand by somebody who has read the code, each with what it is after.

What is wrong with them is seldom a value alone: it is a type inside of what is free-form, two
fields together, a name that is used as something else, or how the bytes are framed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blazr.server.routes import ROUTES
from tests.support.hostile_requests import SOUND, Hostile

KEY = "operator"  # of the server that is asked
PRIVATE_USE = "".join(map(chr, range(0x100000, 0x10FFFE)))
ODD_TYPES: tuple[object, ...] = ([], {}, [[]], {"a": []}, 5, True, None, "", 1.5, ["function"])
ODD_NAMES = ("", " ", "\x00", "a\n", "..", "../x", "a" * 300, "é" * 90, "😀" * 90, "-", ".hidden")
CHAT: list[Any] = [{"role": "user", "content": "a"}]
PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc```\0"
    b"\0\0\4\0\1\xf6\x178U\0\0\0\0IEND\xaeB`\x82"
)


@dataclass(frozen=True, slots=True)
class Attack:
    """One request, and what it is after."""

    name: str
    request: Hostile


def raw(method: str, target: str, body: bytes = b"", *headers: str, length: bool = True) -> Hostile:
    """The bytes of a request with the operator's key."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close"]
    lines += [f"Authorization: Bearer {KEY}"]
    if not any(each.lower().startswith("content-type") for each in headers):
        lines.append("Content-Type: application/json")
    if length:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, *headers, "", ""])
    return Hostile(head.encode("latin-1", "replace") + body, leaves=False)


def form(*parts: tuple[str, bytes], boundary: str = "x", end: bytes = b"--\r\n") -> bytes:
    """A form, with what stands before each part's content given whole."""
    found = b"".join(
        f"--{boundary}\r\n{head}\r\n\r\n".encode("utf-8", "surrogatepass") + content + b"\r\n"
        for head, content in parts
    )
    return found + f"--{boundary}".encode() + end


def field(name: str, more: str = "") -> str:
    return f'Content-Disposition: form-data; name="{name}"{more}'


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


def attacks(kind: str) -> Iterator[Attack]:
    """All of a kind."""
    for name, request in KINDS[kind]():
        yield Attack(name, request)


def _post(target: str, /, **body: object) -> tuple[str, Hostile]:
    text = json.dumps(body)
    return f"{target} {text[:150]}", raw("POST", target, text.encode())


def _tools() -> Iterator[tuple[str, Hostile]]:
    function = {"name": "f", "parameters": {"type": "object"}}
    for odd in ODD_TYPES:
        yield _post("/v1/responses", input="a", max_output_tokens=16, tools=[{"type": odd}])
        tool: dict[str, Any] = {"type": "custom", "name": "f", "format": {"type": odd}}
        yield _post("/v1/responses", input="a", max_output_tokens=16, tools=[tool])
        grammar = {"type": "grammar", "syntax": odd, "definition": "a"}
        nested_tool = {"type": "custom", "custom": {"name": "f", "format": grammar}}
        yield _post("/v1/chat/completions", messages=CHAT, max_tokens=4, tools=[nested_tool])
        for name in ("parameters", "description", "strict"):
            tool = {"type": "function", "function": {**function, name: odd}}
            yield _post(
                "/v1/chat/completions", messages=CHAT, max_tokens=4, tools=[tool],
                tool_choice="required",
            )  # fmt: skip
        for schema in (
            {"type": odd}, {"properties": odd}, {"properties": {"x": odd}}, {"required": odd},
            {"enum": odd}, {"anyOf": odd}, {"$ref": odd}, {"items": odd}, {"properties": {"x": {"type": odd}}},
        ):  # fmt: skip
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            yield _post(
                "/v1/chat/completions", messages=CHAT, max_tokens=4, tools=[tool],
                tool_choice={"type": "function", "function": {"name": "f"}},
            )  # fmt: skip
        call = {"id": odd, "type": odd, "function": {"name": "f", "arguments": odd}}
        said = [
            *CHAT,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "a"},
        ]
        yield _post("/v1/chat/completions", messages=said, max_tokens=4)
        yield _post("/apply-template", messages=said)
        call = {"type": "custom", "custom": {"name": odd, "input": odd}}
        said = [*CHAT, {"role": "assistant", "tool_calls": [call]}]
        yield _post("/v1/chat/completions/input_tokens", messages=said)
        inner = {
            "type": "namespace",
            "name": odd,
            "tools": [{"type": "function", "name": "f"}, odd],
        }
        yield _post("/v1/responses/input_tokens", input="a", tools=[inner])
        mcp = {
            "type": "mcp",
            "server_label": "files",
            "allowed_tools": odd,
            "require_approval": odd,
        }
        yield _post("/v1/responses", input="a", max_output_tokens=16, tools=[mcp])
        mcp = {"type": "mcp", "server_label": odd, "server_url": odd, "headers": odd}
        yield _post("/v1/responses", input="a", max_output_tokens=16, tools=[mcp])
        for choice in (
            {"type": odd}, {"type": "function", "function": odd}, {"type": "allowed_tools", "tools": odd},
            {"type": "allowed_tools", "allowed_tools": {"mode": odd, "tools": [odd]}},
        ):  # fmt: skip
            tool = {"type": "function", "function": function}
            yield _post(
                "/v1/chat/completions",
                messages=CHAT,
                max_tokens=4,
                tools=[tool],
                tool_choice=choice,
            )
        edit = {"edits": [{"type": odd}]}
        yield _post("/v1/messages", messages=CHAT, max_tokens=4, context_management=edit)
        tool = {"name": "f", "input_schema": {"type": odd, "properties": {"x": {"enum": odd}}}}
        yield _post(
            "/v1/messages", messages=CHAT, max_tokens=4, tools=[tool], tool_choice={"type": "any"}
        )
    for arguments in (
        nested(3000),
        nested(90_000),
        '{"a":' * 3000,
        "9" * 5000,
        "{} {}",
        "NaN",
        "[1e999]",
        '"\\ud800"',
    ):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        said = [*CHAT, {"role": "assistant", "tool_calls": [call]}]
        yield _post("/v1/chat/completions", messages=said, max_tokens=4)
        item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
        yield _post("/v1/responses", input=[item], max_output_tokens=16)
        yield _post("/api/chat", messages=said, options={"num_predict": 4}, stream=False)
    deep: dict[str, Any] = {"type": "function", "name": "f"}
    for _ in range(28):
        deep = {"type": "namespace", "name": "n", "tools": [deep]}
    yield _post("/v1/responses", input="a", max_output_tokens=16, tools=[deep])
    same = [{"type": "function", "function": function}] * 128
    yield _post(
        "/v1/chat/completions", messages=CHAT, max_tokens=4, tools=same, tool_choice="required"
    )
    for name in ("\ud7ff", "a b", '"', "<|im_end|>", "{{1}}", "\u2028", "'" * 256, "f\x00"):
        tool = {"type": "function", "function": {**function, "name": name}}
        yield _post(
            "/v1/chat/completions",
            messages=CHAT,
            max_tokens=4,
            tools=[tool],
            tool_choice="required",
        )


def _formats() -> Iterator[tuple[str, Hostile]]:
    for odd in ODD_TYPES:
        for form_of in (
            {"type": odd}, {"type": "json_object", "schema": odd}, {"type": "json_schema", "schema": odd},
            {"type": "json_schema", "json_schema": odd}, {"type": "json_schema", "json_schema": {"schema": odd}},
        ):  # fmt: skip
            yield _post(
                "/v1/chat/completions", messages=CHAT, max_tokens=4, response_format=form_of
            )
        yield _post(
            "/v1/responses", input="a", max_output_tokens=16, text={"format": {"type": odd}}
        )
        outputs = {"json": odd, "regex": odd}
        yield _post("/v1/completions", prompt="a", max_tokens=4, structured_outputs=outputs)
        for name in (
            "json",
            "regex",
            "choice",
            "grammar",
            "json_object",
            "structural_tag",
            "x",
            "",
        ):
            yield _post("/v1/completions", prompt="a", max_tokens=4, structured_outputs={name: odd})
        yield _post("/api/generate", prompt="a", format=odd, stream=False)
    for schema in (
        {"type": "string", "minLength": 10**9}, {"type": "string", "minLength": 2**63},
        {"type": "array", "minItems": 10**6, "items": {"type": "integer"}}, {"multipleOf": 0},
        {"type": "number", "multipleOf": 1e-300}, {"minimum": 1e308, "maximum": -1e308},
        {"type": "integer", "minimum": 10**30}, {"const": 10**400}, {"enum": [10**40, -0.0]},
        {"pattern": "(" * 500 + ")" * 500}, {"pattern": "\\"}, {"pattern": "(?<=a)b"},
        {"type": "string", "format": "x" * 3000}, {"allOf": [{"$ref": "#"}] * 50}, {"$ref": "#/a/b"},
        {"$ref": "http://127.0.0.1:1/x"}, {"$ref": "file:///etc/passwd"}, {"$id": "\x00", "$ref": "\x00"},
        {"properties": {f"p{i}": {} for i in range(3000)}, "required": [f"p{i}" for i in range(3000)]},
        {"properties": {"\ud7ff" * 500: {}}}, {"patternProperties": {"^(a+)+$": {}}},
        {"not": {}}, {"type": []}, {"enum": []}, {"anyOf": []}, {"oneOf": [{}] * 400}, {"if": {}, "then": False},
        {"dependentSchemas": {"a": False}}, {"unevaluatedProperties": False}, {"contentEncoding": "base64"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ):  # fmt: skip
        yield _post("/v1/completions", prompt="a", max_tokens=4, guided_json=schema)
    for name, text in (
        ("regex", "(?P<a>x)(?P<a>y)"), ("regex", "\\p{Greek}{1000}"), ("regex", "[^\\x00-\\x{10FFFF}]"),
        ("regex", "x{0}"), ("regex", "$^"), ("regex", "a" * 60_000), ("regex", "(?i)" + "é" * 5000),
        ("ebnf", "root ::= ((((((((((" ), ("ebnf", "root ::= root"), ("ebnf", 'root ::= "\\x"'),
        ("ebnf", "root ::= [^"), ("ebnf", 'root ::= ("a"?){9999}'), ("grammar", "start: /(/"),
        ("grammar", "%import common.WORD"), ("grammar", "%llguidance {}\nstart: <[0-4294967295]>"),
        ("grammar", "start: <|im_end|>"), ("grammar", "start: @other"), ("grammar", "start: %json {"),
        ("grammar", 'start: %regex {"substring_chunks": [""]}'), ("grammar", "start[temperature=-1]: /a/"),
        ("grammar", "start[max_tokens=0]: /a/"), ("grammar", "start: gen\ngen[stop=/a*/]: /.*/"),
    ):  # fmt: skip
        yield _post("/v1/completions", prompt="a", max_tokens=4, **{name: text})


def _values() -> Iterator[tuple[str, Hostile]]:
    """Values that are fine alone."""
    base: dict[str, Any] = {"prompt": "once", "max_tokens": 6}
    combined: tuple[dict[str, Any], ...] = (
        {"logit_bias": {"5": -100}, "allowed_token_ids": [5]},
        {"logit_bias": {str(2**63): 1}}, {"logit_bias": {"9" * 60: 1}}, {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1e2": 1}}, {"logit_bias": {" 5": 1}}, {"logit_bias": {"+5": 1}}, {"logit_bias": {"05": 1}},
        {"logit_bias": {str(i): 100 for i in range(60_000)}},
        {"allowed_token_ids": []}, {"allowed_token_ids": [0] * 100_000}, {"allowed_token_ids": [2**63]},
        {"stop_token_ids": [2**63]}, {"stop_token_ids": [*range(60_000)]}, {"stop_token_ids": [-1]},
        {"n": 128, "best_of": 128, "logprobs": 20, "echo": True}, {"best_of": 256, "n": 1, "temperature": 0},
        {"n": 3, "seed": 2**63 - 1}, {"n": 256, "seed": 2**64 - 1, "max_tokens": 1}, {"seed": -(2**63)},
        {"min_tokens": 6, "max_tokens": 6, "stop": ["e", "a", " "]}, {"min_tokens": 7, "max_tokens": 6},
        {"min_tokens": 2**31}, {"max_tokens": 2**63 - 1}, {"max_tokens": 0, "echo": True, "logprobs": 20},
        {"max_tokens": 0, "stream": True}, {"max_tokens": 0, "n": 5}, {"max_tokens": -1, "n": 2},
        {"prompt": [], "echo": True}, {"prompt": [[]]}, {"prompt": [""], "echo": True, "logprobs": 1},
        {"prompt": [[0] * 200] * 128, "max_tokens": 1}, {"prompt": [2**31 - 1]}, {"prompt": [2**32]},
        {"prompt": [2**63 - 1, -1]}, {"prompt": ["a", [1]]}, {"prompt": [[1, "a"]]}, {"prompt": [1, [1]]},
        {"prompt": "\x00" * 300}, {"prompt": "\ufffe\uffff" * 50}, {"prompt": "\U000e0001" * 100},
        {"prompt": "a\u0300" * 300}, {"prompt": "\u200d" * 300}, {"prompt": "ﷺ" * 300}, {"prompt": "<|" * 300},
        {"prompt": "a", "suffix": ""}, {"prompt": "a", "suffix": "b", "echo": True, "n": 3},
        {"stop": ""}, {"stop": []}, {"stop": [""]}, {"stop": ["\x00"]}, {"stop": "\ud7ff"}, {"stop": ["a"] * 500},
        {"stop": ["a" * 5000]}, {"stop": ["e"], "include_stop_str_in_output": True, "logprobs": 5, "n": 4},
        {"bad_words": [""]}, {"bad_words": [" "]}, {"bad_words": ["\x00", "a" * 3000]},
        {"bad_words": ["a", "e", "i", "o", "u", " ", "t"]}, {"bad_words": [chr(i) for i in range(32, 1056)]},
        {"dry_multiplier": 1, "dry_base": 1e300}, {"dry_multiplier": 1e300, "dry_sequence_breakers": [""]},
        {"dry_multiplier": 1, "dry_sequence_breakers": [chr(i) for i in range(33, 200)]},
        {"dry_multiplier": 1, "dry_allowed_length": -5}, {"dry_multiplier": 1, "dry_penalty_last_n": -2},
        {"mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 1}, {"mirostat": 2, "mirostat_tau": 1e308, "mirostat_eta": 1e308},
        {"mirostat": 1}, {"mirostat": 2, "top_k": 1, "temperature": 1e-300}, {"mirostat_mode": 2, "mirostat": 0},
        {"temperature": 5e-324, "top_p": 5e-324}, {"temperature": 1e308}, {"temperature": 2, "top_p": 0},
        {"temperature": 1, "top_p": 1e-45, "min_p": 1}, {"min_p": 1.0000001}, {"top_k": 2**63 - 1, "temperature": 1},
        {"top_n_sigma": 0, "temperature": 1}, {"top_n_sigma": 1e-320, "temperature": 1}, {"typical_p": 5e-324, "temperature": 1},
        {"xtc_probability": 1, "xtc_threshold": 0, "temperature": 1}, {"xtc_probability": 1, "xtc_threshold": 1, "temperature": 1},
        {"dynatemp_range": 1e308, "temperature": 1}, {"dynatemp_range": 5, "dynatemp_exponent": -300, "temperature": 1},
        {"repetition_penalty": 1e308}, {"repetition_penalty": 5e-324, "temperature": 1}, {"repetition_penalty": 0},
        {"presence_penalty": 1e308, "frequency_penalty": -1e308}, {"frequency_penalty": 1e308, "repeat_last_n": -1},
        {"repeat_last_n": 2**63 - 1, "repetition_penalty": 1.1}, {"repeat_last_n": -2}, {"min_keep": 2**40},
        {"samplers": []}, {"samplers": ""}, {"samplers": ["temperature", "temperature"]}, {"samplers": "kkk"},
        {"samplers": ["xtc"]}, {"samplers": ["top_k", "penalties"]}, {"samplers": "edskypmxt" * 9},
        {"truncate_prompt_tokens": 1, "echo": True, "logprobs": 2}, {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -1, "truncation_side": "left"}, {"truncate_prompt_tokens": 2**70},
        {"truncate_prompt_tokens": 2, "prompt_logprobs": 20}, {"truncate_prompt_tokens": 1, "suffix": "b"},
        {"prompt_logprobs": 0, "n": 64}, {"prompt_logprobs": 10**6}, {"prompt_logprobs": -1}, {"prompt_logprobs": 5, "stream": True},
        {"prompt_logprobs": 5, "echo": True, "logprobs": 0, "n": 5}, {"logprobs": 2**40}, {"logprobs": -5},
        {"cache_anchors": [2**63 - 1, 0, 1]}, {"cache_anchors": [*range(1024)]}, {"cache_salt": "\x00" * 256},
        {"cache_salt": "/" * 256}, {"cache_salt": "é" * 256}, {"priority": 100, "n": 100}, {"timeout": 5e-324},
        {"timeout": 1e308}, {"timeout": 0.0001, "stream": True}, {"request_id": "\x00"}, {"request_id": "é" * 256},
        {"request_id": "blazr", "rid": "blazr"}, {"adapter": ""}, {"adapter": "\x00"}, {"model": "", "adapter": "x"},
        {"model": "text:latest"}, {"model": ":latest"}, {"model": "text:"}, {"model": "../text"}, {"model": "\x00"},
        {"speculate": True, "n": 4, "mirostat": 2}, {"skip_special_tokens": False, "logprobs": 3}, {"ignore_eos": True, "max_tokens": 100_000},
        {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": True}},
        {"kv_transfer_params": {"do_remote_decode": True}, "n": 9, "max_tokens": 1},
        {"kv_transfer_params": {"do_remote_decode": True}, "prompt": "a", "max_tokens": 0},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "\x00", "remote_port": 2**40}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [{"a": [2**63]}], "remote_port": -1}},
        {"kv_transfer_params": {"do_remote_decode": True}, "stream": True},
        {"response_format": {"type": "json_object"}, "echo": True, "n": 3, "logprobs": 2},
        {"response_format": {"type": "json_object"}, "min_tokens": 6, "stop": ["{"]},
        {"response_format": {"type": "json_object"}, "logit_bias": {str(i): -100 for i in range(30_000)}},
        {"response_format": {"type": "json_object"}, "bad_words": ["{", " {", "\n"]},
        {"response_format": {"type": "json_object"}, "allowed_token_ids": [1, 2, 3], "n": 2, "stream": True},
        {"guided_choice": [""]}, {"guided_choice": ["a"] * 3000}, {"guided_choice": ["\x00", "\ud7ff"]},
        {"guided_choice": ["once"], "min_tokens": 6}, {"regex": "a*", "min_tokens": 6, "stop_token_ids": [1]},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 32},
        {"stream": True, "echo": True, "logprobs": 4, "n": 7, "best_of": 7},
    )  # fmt: skip
    for more in combined:
        body = {**base, **more}
        yield _post("/v1/completions", **body)
        if "prompt" not in more:
            yield _post("/completion", **body)
            given = {name: value for name, value in body.items() if name != "prompt"}
            yield _post("/v1/chat/completions", **given, messages=CHAT)
    for names in PRIVATE_USE, PRIVATE_USE[1:]:
        text = f"<|im_start|>{names}<|eot_id|></s>"
        yield _post("/apply-template", messages=[{"role": "user", "content": text}])
        tool = {"type": "function", "function": {"name": "f", "description": text}}
        yield _post("/v1/chat/completions", messages=CHAT, tools=[tool], max_tokens=2)
    for variables in (
        {"a" * 256: 1}, {"loop": 1}, {"self": 1}, {"range": 1}, {"namespace": "x"}, {"__class__": 1},
        {"strftime_now": "x"}, {"raise_exception": 5}, {"bos_token": "x"}, {"messages": 1}, {"enable_thinking": "x"},
        {f"v{i}": i for i in range(257)}, {"caller": 2**63}, {"true": False}, {"": 1}, {"a b": 1}, {"cycler": None},
    ):  # fmt: skip
        yield _post(
            "/v1/chat/completions", messages=CHAT, max_tokens=2, chat_template_kwargs=variables
        )
        yield _post("/tokenize", messages=CHAT, chat_template_kwargs=variables)
    messages: tuple[list[Any], ...] = (
        [], [{"role": "assistant", "content": None}], [{"role": "user"}], [{"role": "tool", "content": "a"}] * 3,
        [{"role": "system", "content": "a"}] * 50, [{"role": "assistant", "content": "a"}] * 3,
        [{"role": "user", "content": []}], [{"role": "user", "content": [{"type": "text", "text": ""}] * 5000}],
        [{"role": "user", "content": "a", "name": "<|im_end|>"}], [{"role": "user", "content": "a", "tool_calls": []}],
        [{"role": "assistant", "content": "a", "tool_calls": [{}]}], [{"role": "function", "content": "a", "name": "f"}],
        [{"role": "developer", "content": "a"}, *CHAT, {"role": "developer", "content": ""}], CHAT * 4097,
        [{"role": "user", "content": "a", "thinking": "x" * 3000, "reasoning": "y"}], [{"role": "user", "content": "\u2028" * 99}],
        [*CHAT, {"role": "assistant", "content": "a", "mcp_calls": [{"id": "", "name": "", "arguments": nested(9999)}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "\x00"}}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64," + b64encode(PNG).decode()}}]}],
        [{"role": "user", "content": "a", "images": ["AAAA"]}], [{"role": "user", "content": "a", "images": [""]}],
    )  # fmt: skip
    for given_messages in messages:
        for path in ("/v1/chat/completions", "/apply-template", "/tokenize"):
            yield _post(path, messages=given_messages, max_tokens=2)
        for more in (
            {"continue_final_message": True}, {"add_generation_prompt": False, "continue_final_message": True},
            {"truncation": "auto"}, {"reasoning_effort": "none", "max_thinking_tokens": 0}, {"n": 4, "logprobs": True, "top_logprobs": 20},
        ):  # fmt: skip
            yield _post("/v1/chat/completions", messages=given_messages, max_tokens=2, **more)
        yield _post("/api/chat", messages=given_messages, stream=False, options={"num_predict": 2})
        yield _post("/v1/messages", messages=given_messages, max_tokens=2)
    blocks: tuple[Any, ...] = (
        {"type": "tool_result"}, {"type": "tool_use"}, {"type": "tool_use", "input": {"a": nested(3)}, "name": ""},
        {"type": "thinking"}, {"type": "redacted_thinking", "data": "x"}, {"type": "document", "source": {"type": "text"}},
        {"type": "image", "source": {"type": "base64", "data": ""}}, {"type": "image", "source": {"type": "file"}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": "data:,"}}]},
        {"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "\x00"}, {"type": "server_tool_use", "input": []},
    )  # fmt: skip
    for block in blocks:
        for role in ("user", "assistant", "system", "\x00"):
            yield _post("/v1/messages", messages=[{"role": role, "content": [block]}], max_tokens=2)
        yield _post("/v1/messages/count_tokens", messages=CHAT, system=[block])
    items: tuple[Any, ...] = (
        {"type": "reasoning", "encrypted_content": "blazr-text-%%%"}, {"type": "reasoning", "encrypted_content": "blazr-text-/w=="},
        {"type": "function_call_output"}, {"type": "function_call_output", "call_id": "x", "output": []},
        {"type": "custom_tool_call", "name": "f", "namespace": "x" * 9999}, {"type": "mcp_call", "name": "f", "error": nested(60)},
        {"type": "mcp_call", "name": "f", "server_label": "files", "approval_request_id": "x"}, {"type": "item_reference", "id": "x"},
        {"type": "mcp_call", "name": "f", "error": {"content": [{"text": 5}, 7, None]}}, {"type": "mcp_list_tools", "tools": 2**63},
        {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}, {"type": "mcp_approval_request", "name": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal"}]}, {"type": "message", "role": "user", "content": []},
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:;base64,!"}]}, {"type": ""},
        {"type": "message", "role": "user", "content": [{"type": "input_file"}]}, {"role": "\x00", "content": "a"},
    )  # fmt: skip
    for item in items:
        yield _post("/v1/responses", input=[item], max_output_tokens=16)
        yield _post(
            "/v1/responses", input=[item, *CHAT], max_output_tokens=16, stream=True, store=False
        )
        yield _post("/v1/responses/input_tokens", input=[item] * 300)
        yield _post(
            "/v1/decisions", input=[item], questions=[{"type": "predicate", "instructions": "a"}]
        )
    for more in (
        {"previous_response_id": ""}, {"previous_response_id": "\x00"}, {"background": True, "store": False},
        {"background": True, "stream": True}, {"include": ["\x00", "message.output_text.logprobs"]}, {"metadata": {"": ""}},
        {"truncation": "auto", "instructions": "x" * 60_000}, {"reasoning": {"effort": "\x00", "summary": "x"}},
        {"text": {"verbosity": "x" * 9999}}, {"top_logprobs": 2**31}, {"agent": True}, {"max_tool_rounds": 0},
        {"agent": True, "tool_choice": "required", "max_tool_rounds": 1}, {"prompt": {"id": "x"}}, {"tool_choice": "required"},
    ):  # fmt: skip
        yield _post("/v1/responses", input="a", **{"max_output_tokens": 16, **more})
    for more in (
        {"keep_alive": "1h" * 60}, {"keep_alive": "-"}, {"keep_alive": ".s"}, {"keep_alive": 1e308}, {"keep_alive": "9" * 400},
        {"think": "\x00"}, {"think": "high", "raw": True}, {"format": "x"}, {"format": "json", "raw": True}, {"system": "\x00" * 999},
        {"suffix": "x", "raw": True}, {"prompt": "", "keep_alive": 3}, {"images": ["AAAA"]}, {"images": ["="]}, {"options": {"stop": ""}},
        {"options": {"num_predict": -2}}, {"options": {"num_predict": 0}}, {"options": {"num_ctx": 2**62, "num_predict": 2}},
        {"options": {"mirostat": 2, "mirostat_tau": -1}}, {"options": {"seed": -1, "repeat_last_n": -1, "num_predict": 2}},
    ):  # fmt: skip
        yield _post("/api/generate", **{"prompt": "a", "stream": False, **more})
        yield _post("/api/generate", **{"prompt": "a", **more})


def _labels() -> Iterator[tuple[str, Hostile]]:
    """Many questions at once, and vectors."""
    ask = {"type": "predicate", "instructions": "a"}
    choices = [{"value": f"v{i}"} for i in range(255)]
    yield _post("/v1/decisions", input="a", questions=[ask] * 400)
    yield _post("/v1/decisions", input="a " * 3000, questions=[ask] * 400)
    yield _post("/v1/decisions", input="a", questions=[{"type": "choice", "choices": choices}] * 4)
    yield _post(
        "/v1/decisions", input="a", questions=[{"type": "choice", "choices": choices}] * 400
    )
    yield _post(
        "/v1/decisions", input="", questions=[{"type": "choice", "choices": [{"value": ""}] * 2}]
    )
    same = [{"value": True}, {"value": "true"}]
    yield _post("/v1/decisions", input="a", questions=[{"type": "choice", "choices": same}])
    levels = [{"label": " "}, {"label": "\x00"}, {"label": "x" * 5000}]
    yield _post("/v1/decisions", input="a", questions=[{"type": "score", "levels": levels}])
    yield _post(
        "/v1/decisions", input="x" * 60_000, questions=[{**ask, "instructions": "y" * 20_000}] * 20
    )
    part = {"type": "input_image", "image_url": "data:;base64,AAAA"}
    yield _post("/v1/decisions", input="a", questions=[{**ask, "instructions": [part]}])
    yield _post("/v1/decisions", model="ranks", input="a", questions=[ask])
    for path in ("/v1/score", "/score"):
        for one, two in (
            ("", ""),
            ([""], [""]),
            ([], []),
            (["a"], ["b"] * 2048),
            (["a"] * 3, ["b"] * 2),
            ("a", ["\x00"] * 99),
        ):
            for model in ("text", "vectors", "ranks", "labels"):
                yield _post(path, text_1=one, text_2=two, model=model)
    for path in ("/v1/rerank", "/v2/rerank", "/reranking"):
        for more in (
            {"documents": [""]}, {"documents": ["b"] * 600}, {"documents": [{"text": ""}] * 3}, {"documents": ["b"], "top_n": 2**70},
            {"documents": ["b"], "top_n": -1}, {"documents": ["b", "b"], "top_n": 0}, {"documents": ["é" * 3000] * 20},
            {"documents": ["b"], "method": "labels", "instruction": "\x00"}, {"documents": ["b"] * 2049, "method": "embedding"},
            {"documents": ["b"], "truncate_prompt_tokens": 1}, {"documents": ["b"], "truncate_prompt_tokens": -1},
        ):  # fmt: skip
            for model in ("text", "ranks", "vectors"):
                yield _post(path, query="a", **more, model=model)
    for more in (
        {"input": ""}, {"input": [""]}, {"input": [[]]}, {"input": []}, {"input": [2**31]}, {"input": [[1], "a"]}, {"input": "\x00"},
        {"input": ["a"] * 2048}, {"input": ["a"] * 2049}, {"dimensions": 0}, {"dimensions": -1}, {"dimensions": 2**40}, {"dimensions": 1},
        {"encoding_format": "base64", "dimensions": 3}, {"encoding_format": "\x00"}, {"pooling": "last"}, {"prompt_name": "\x00"},
        {"truncate_prompt_tokens": 1}, {"truncate_prompt_tokens": -1, "truncation_side": "left"}, {"input": [[2**62] * 9]}, {"input": "a" * 200_000},
        {"input": "a" * 200_000, "truncate_prompt_tokens": 4}, {"input_type": "x"}, {"user": "\x00"},
    ):  # fmt: skip
        for model in ("text", "vectors", "labels"):
            yield _post("/v1/embeddings", **{"input": "a", "model": model, **more})
    for more in (
        {"input": ""},
        {"input": ["", "a"]},
        {"input": "a" * 99_999},
        {"input": []},
        {"input": "a" * 99_999, "truncate": False},
        {"input": "a", "dimensions": 2**33},
    ):
        for model in ("text", "vectors"):
            yield _post("/api/embed", model=model, **more)
    for more in (
        {"input": ""},
        {"input": []},
        {"input": ["a"] * 2048},
        {"input": "\x00"},
        {"input": "x" * 99_999},
        {"messages": CHAT},
    ):
        for model in ("labels", "ranks", "text", "vectors"):
            yield _post("/classify", model=model, **more)
    for more in (
        {"content": "a" * 60_000, "with_pieces": True},
        {"prompt": "", "return_token_strs": True},
        {"content": "\ufffe" * 99, "with_pieces": True},
    ):
        yield _post("/tokenize", **more)
    for tokens in ([], [-1], [2**63 - 1], [0] * 200_000, [5, 99_999_999], [*range(500)]):
        yield _post("/detokenize", tokens=tokens)
    for more in (
        {"input_prefix": "a", "input_suffix": "b" * 60_000}, {"input_extra": [{"text": ""}] * 5000}, {"input_extra": [{"text": "\x00", "filename": "<|x|>"}]},
        {"input_prefix": "", "input_suffix": "", "prompt": ""}, {"input_prefix": "a", "n_predict": -2}, {"input_suffix": "\x00", "t_max_predict_ms": -1},
    ):  # fmt: skip
        yield _post(
            "/infill", **{"input_prefix": "a", "input_suffix": "b", "max_tokens": 2, **more}
        )
    for more in (
        {"input": " "}, {"input": "\n"}, {"input": "..."}, {"input": "\x00"}, {"input": "😀" * 200}, {"input": "a", "speed": 4, "voice": "99"},
        {"input": "a", "voice": {"id": "x"}}, {"input": "a", "voice": "\x00"}, {"input": "-"}, {"input": "a", "seed": 2**62},
        {"input": " ", "stream_format": "sse"}, {"input": "\u200b", "response_format": "pcm"}, {"input": "a", "response_format": "aac"},
        {"input": "a", "response_format": "opus", "stream_format": "audio"}, {"input": "\u202e" * 40, "response_format": "flac"}, {"input": "1" * 4096},
        {"input": "a", "instructions": "x"}, {"input": "á" * 4096, "response_format": "mp3", "stream_format": "sse"},
    ):  # fmt: skip
        for model in ("voice", "text"):
            yield _post("/v1/audio/speech", model=model, **{"response_format": "wav", **more})
    for more in (
        {"size": "64x64", "steps": 1, "n": 10}, {"size": "0x0"}, {"size": "٦٤x٦٤"}, {"size": "9" * 5000 + "x64"}, {"size": "64X64"}, {"size": "64x64\n"},
        {"size": "64x64", "steps": 1, "guidance": 0}, {"size": "64x64", "steps": 1, "guidance": 5e-324}, {"size": "64x64", "steps": 1, "seed": 2**62},
        {"size": "64x64", "steps": 1, "output_format": "webp", "output_compression": 0}, {"size": "64x64", "steps": 1, "partial_images": 3, "stream": True},
        {"size": "64x64", "steps": 1, "output_format": "jpeg", "background": "transparent"}, {"size": "64x64", "steps": 1, "response_format": "url", "stream": True},
        {"size": "64x64", "steps": 1, "prompt": "\x00" * 100}, {"size": "64x64", "steps": 1, "prompt": "<|endoftext|>" * 30}, {"size": "64x64", "steps": 1, "prompt": "é" * 4000},
        {"size": "64x64", "steps": 1, "response_format": "url"}, {"size": "1024x64", "steps": 1}, {"quality": "hd"}, {"n": 0}, {"n": 11}, {"steps": 0},
    ):  # fmt: skip
        for model in ("drawing", "text"):
            yield _post("/v1/images/generations", **{"prompt": "a", "model": model, **more})


def _everywhere() -> Iterator[tuple[str, Hostile]]:
    """Each route that reads a body, in ways that none should take."""
    # what only stops the server for a while, or records whatever it does until it is told to end
    skipped = {"/models/load", "/models/unload", "/sleep", "/pause", "/pause_generation"}
    skipped |= {"/start_profile"}
    for row in ROUTES.values():
        if row.method != "POST" or row.body is None or row.path in skipped:
            continue
        path = row.path.replace("{id}", "0")
        names = row.body.__struct_fields__
        sound = json.dumps(
            {name: value for name, value in SOUND.items() if name in names and name != "model"}
        )
        twice = (sound[:-1] + ", " + sound[1:]).replace("{, ", "{").replace(", }", "}")
        inner = f'{sound[:-1]}{", " if len(sound) > 2 else ""}"zzz": '
        odd_fields = ", ".join(f'"{name}": {{}}' for name in names)
        null_fields = ", ".join(f'"{name}": null' for name in names)
        lists = ", ".join(f'"{name}": [[{{"type": []}}]]' for name in names)
        for what, body, headers in (
            ("every name twice", twice, ()),
            ("a number of 5,000 digits", inner + "9" * 5000 + "}", ()),
            ("an exponent", inner + "1e99999}", ()),
            ("50 levels", inner + nested(50) + "}", ()),
            ("100,000 levels", inner + nested(100_000) + "}", ()),
            ("NUL behind", sound + "\x00", ()),
            ("all fields objects", "{" + odd_fields + "}", ()),
            ("all fields null", "{" + null_fields + "}", ()),
            ("all fields lists", "{" + lists + "}", ()),
            ("an array around", f"[{sound}]", ()),
            ("named xml", sound, ("Content-Type: application/xml",)),
            ("named utf-16", sound.encode("utf-16").decode("latin-1"), ("Content-Type: application/json; charset=utf-16",)),
            ("named gzip", sound, ("Content-Encoding: gzip, gzip, br",)),
            ("as a form", "--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n--x--\r\n", ("Content-Type: multipart/form-data; boundary=x",)),
            ("as urlencoded", "prompt=a&max_tokens=2", ("Content-Type: application/x-www-form-urlencoded",)),
            ("an escaped name", sound.replace('"m', '"\\u006d').replace('"p', '"\\u0070'), ()),
        ):  # fmt: skip
            yield f"{what}: {path}", raw("POST", path, body.encode("latin-1"), *headers)


def _forms() -> Iterator[tuple[str, Hostile]]:
    wav = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data\0\0\0\0"
    file = (field("file", '; filename="a.wav"'), wav)
    batch = (field("file", '; filename="a.jsonl"'), b'{"custom_id": "1"}\n')
    image = (field("image", '; filename="a.png"'), PNG)
    purpose = (field("purpose"), b"batch")
    small = [
        (field("model"), b"drawing"),
        (field("size"), b"64x64"),
        (field("steps"), b"1"),
        (field("prompt"), b"a"),
    ]
    sound: dict[str, list[tuple[str, bytes]]] = {
        "/v1/audio/transcriptions": [(field("model"), b"ears"), file],
        "/v1/audio/translations": [(field("model"), b"ears"), file],
        "/v1/files": [purpose, batch],
        "/v1/images/edits": [*small, image],
    }
    for path, parts in sound.items():
        headers = "Content-Type: multipart/form-data; boundary="
        for what, body, kind in (
            ("no boundary", form(*parts), "Content-Type: multipart/form-data"),
            ("an empty boundary", form(*parts, boundary=""), headers),
            ("a quoted boundary", form(*parts), headers + '"x"'),
            ("two boundaries", form(*parts), headers + "x; boundary=y"),
            ("a long boundary", form(*parts, boundary="b" * 9000), headers + "b" * 9000),
            ("a boundary of dashes", form(*parts, boundary="--"), headers + "--"),
            ("a boundary of lines", form(*parts), headers + '"x\\r\\n"'),
            ("a boundary in Latin-1", form(*parts), headers + "\xff\xfe"),
            ("boundary*", form(*parts), "Content-Type: multipart/form-data; boundary*=utf-8''x"),
            ("mixed", form(*parts), "Content-Type: multipart/mixed; boundary=x"),
            ("upper case", form(*parts), "Content-Type: MULTIPART/FORM-DATA; BOUNDARY=x"),
            ("no end", form(*parts, end=b""), headers + "x"),
            ("an epilogue", form(*parts) + b"\r\n" * 100_000, headers + "x"),
            ("a prologue", b"\r\n" * 50_000 + form(*parts), headers + "x"),
            ("a prologue of text", b"hello\r\n" + form(*parts), headers + "x"),
            ("line feeds alone", form(*parts).replace(b"\r\n", b"\n"), headers + "x"),
            ("nothing", b"", headers + "x"),
            ("an end alone", b"--x--\r\n", headers + "x"),
            ("twice", form(*parts, *parts), headers + "x"),
            ("seventeen files", form(*parts, *[parts[-1]] * 17), headers + "x"),
            ("a part without a name", form(*parts, ("Content-Disposition: form-data", b"a")), headers + "x"),
            ("a part without headers", form(*parts, ("", b"a")), headers + "x"),
            ("a part of 200,000 headers", form(*parts, ("a: b\r\n" * 200_000 + field("x"), b"a")), headers + "x"),
            ("a header of 1 MB", form(*parts, (f"a: {'b' * 1_000_000}\r\n" + field("x"), b"a")), headers + "x"),
            ("a name of 1 MB", form(*parts, (field("n" * 1_000_000), b"a")), headers + "x"),
            ("a name of brackets", form(*parts, (field("[]"), b"a"), (field("file[]"), b"a")), headers + "x"),
            ("a list of files", form(*parts, (field("file[]", '; filename="b"'), b"a")), headers + "x"),
            ("the file as text", form(*parts[:-1], (field("file"), b"AAAA"), (field("image"), b"AAAA")), headers + "x"),
            ("a number as a file", form(*parts, (field("temperature", '; filename="t"'), b"1")), headers + "x"),
            ("the model as a file", form(*parts, (field("model", '; filename="t"'), b"ears")), headers + "x"),
            ("a file name of NULs", form(*parts, (field("file", '; filename="\x00\x00"'), b"a")), headers + "x"),
            ("a file name upwards", form(*parts[:-1], (field("file", '; filename="../../x"'), parts[-1][1])), headers + "x"),
            ("a file name in UTF-16", form(*parts, (field("file", "; filename*=utf-16''%d8%00"), b"a")), headers + "x"),
            ("a file name of 1 MB", form(*parts, (field("file", f'; filename="{"a" * 1_000_000}"'), b"a")), headers + "x"),
            ("the filename field", form(*parts, (field("filename"), b"\xff\xfe")), headers + "x"),
            ("base64", form(*parts, (field("prompt") + "\r\nContent-Transfer-Encoding: base64", b"YQ==")), headers + "x"),
            ("quoted-printable", form(*parts, (field("prompt") + "\r\nContent-Transfer-Encoding: quoted-printable", b"=")), headers + "x"),
            ("an unknown encoding", form(*parts, (field("prompt") + "\r\nContent-Transfer-Encoding: x", b"=")), headers + "x"),
            ("a charset of a part", form(*parts, (field("prompt") + "\r\nContent-Type: text/plain; charset=utf-16", b"\xd8\0")), headers + "x"),
            ("_charset_", form(*parts, (field("_charset_"), b"utf-16"), (field("prompt"), b"\xd8\0")), headers + "x"),
            ("not UTF-8", form(*parts, (field("prompt"), b"\xff\xfe")), headers + "x"),
            ("a nested form", form(*parts, ("Content-Type: multipart/mixed; boundary=y", b"--y\r\n\r\na\r\n--y--")), headers + "x"),
        ):  # fmt: skip
            yield f"{path}: {what}", raw("POST", path, body, kind)
    values: dict[str, tuple[tuple[str, bytes], ...]] = {
        "/v1/audio/transcriptions": (
            ("temperature", b"nan"), ("temperature", b"inf"), ("temperature", b"1e-400"), ("temperature", b""), ("temperature", "\u0661".encode()),
            ("language", b"\x00"), ("language", b"en" * 9999), ("language", b"<|en|>"), ("language", b"xx"), ("prompt", b"<|endoftext|>" * 99),
            ("prompt", b"a" * 100_000), ("response_format", b"srt"), ("response_format", b"vtt"), ("response_format", b"verbose_json"),
            ("response_format", b"x"), ("stream", b"true"), ("stream", b"2"), ("timestamp_granularities[]", b"word"), ("timestamp_granularities", b"word"),
            ("timestamp_granularities[]", b"x"), ("include[]", b"logprobs"), ("include", b""), ("chunking_strategy", b'{"type": "server_vad"}'), ("chunking_strategy", b"auto"),
        ),
        "/v1/images/edits": (
            ("n", b"1e1"), ("n", b"0x1"), ("n", b"999999999999999999999999"), ("seed", b"-0"), ("seed", b"1_0"), ("guidance", b"nan"), ("guidance", b"inf"),
            ("size", b"auto"), ("size", b"64x64\n"), ("stream", b"true"), ("partial_images", b"3"), ("output_compression", b"101"), ("mask", b"AAAA"), ("image[]", b"AAAA"),
        ),
        "/v1/files": (
            ("purpose", b"fine-tune"), ("purpose[]", b"batch"), ("expires_after[anchor]", b"created_at"), ("filename", b"a" * 9999), ("filename", b"\x00/../x"), ("file[]", b"a"),
        ),
    }  # fmt: skip
    for path, fields in values.items():
        for name, value in fields:
            body = form(*sound[path], (field(name), value))
            yield (
                f"{path}: {name}={value[:40]!r}",
                raw("POST", path, body, "Content-Type: multipart/form-data; boundary=x"),
            )
    for mask in (PNG, PNG[:40], b"", b"GIF89a" + b"\xff" * 20, b"<svg/>"):
        body = form(*sound["/v1/images/edits"], (field("mask", '; filename="m"'), mask))
        yield (
            f"a mask {mask[:20]!r}",
            raw("POST", "/v1/images/edits", body, "Content-Type: multipart/form-data; boundary=x"),
        )
    for content in (
        b"",
        b"\n",
        b"\xff\xfe",
        b"{}",
        nested(200_000).encode(),
        b"9" * 6000,
        b"{" * 9000,
        b"\x00" * 100,
        b"[]\n" * 100_000,
    ):
        body = form(purpose, (field("file", '; filename="a"'), content))
        yield (
            f"a batch of {content[:20]!r}",
            raw("POST", "/v1/files", body, "Content-Type: multipart/form-data; boundary=x"),
        )


def _files() -> Iterator[tuple[str, Hostile]]:
    for query in (
        "limit=0", "limit=10001", "limit=1e3", "limit=", "limit=%D9%A1", "after=%00", "after=" + "z" * 3000, "order=x", "purpose=", "purpose=batch&purpose=x",
        "limit=1&limit=x", "after=file-&order=asc", "limit=9999999999999999999999", "%ff=1", "limit[]=1", "after=%ed%a0%80",
    ):  # fmt: skip
        for path in ("/v1/files", "/v1/batches"):
            yield f"{path}?{query[:60]}", raw("GET", f"{path}?{query}")
    for name in (
        "file-0",
        "..",
        "%2e%2e",
        "..%2flock",
        "lock",
        "%00",
        "file-" + "f" * 4000,
        "%ff",
        "file-0%2fcontent",
        "batch_0",
    ):
        yield f"a file {name[:40]}", raw("GET", f"/v1/files/{name}")
        yield (
            f"the content of {name[:40]}",
            raw("GET", f"/v1/files/{name}/content", b"", "Range: bytes=0-"),
        )
        yield f"delete {name[:40]}", raw("DELETE", f"/v1/files/{name}")
        yield f"a batch {name[:40]}", raw("GET", f"/v1/batches/{name}")
        yield f"cancel {name[:40]}", raw("POST", f"/v1/batches/{name}/cancel", b"{}")
    for more in (
        {"input_file_id": "\x00"}, {"input_file_id": "../lock"}, {"endpoint": "/v1/batches"}, {"endpoint": ""}, {"endpoint": "/v1/files"},
        {"endpoint": "/v1/completions?x"}, {"endpoint": "http://127.0.0.1:1/v1/completions"}, {"completion_window": "1h"}, {"metadata": {"a" * 65: ""}},
        {"metadata": {f"k{i}": "" for i in range(17)}}, {"metadata": {"a": 5}}, {"metadata": []},
    ):  # fmt: skip
        yield _post(
            "/v1/batches",
            **{
                "input_file_id": "file-0",
                "endpoint": "/v1/completions",
                "completion_window": "24h",
                **more,
            },
        )
    for blocks, known in (
        ([], 0), (["0" * 64], 0), (["0" * 64 + "\n"], 0), (["0" * 64] * 65_537, 0), (["0" * 64], 2**62), (["0" * 64], -1), (["\u0660" * 64], 0), (["f" * 64] * 9000, 8999),
    ):  # fmt: skip
        yield _post("/kv_cache/export", blocks=blocks, num_known=known)
    for name in ODD_NAMES:
        for action in ("save", "restore", "erase", "x"):
            yield _post("/slots/0", action=action, filename=name)
        yield _post("/v1/load_lora_adapter", lora_name=name or "x", lora_path=name)
        yield _post("/v1/load_lora_adapter", lora_name=name, lora_path=".")
        yield _post("/v1/unload_lora_adapter", lora_name=name)
        yield _post("/update_weights", model_path=name)
        yield _post("/update_weights_from_disk", path=name, load_format="gguf")
    for slot in ("-1", "99999999999", "٣", "%D9%A3", "1e0", "0x0", "999999999", "%00", ""):
        target = f"/slots/{slot}?action=erase".encode().decode("latin-1")
        yield f"the slot {slot}", raw("POST", target, b"{}")
    for query in (
        "action=save&filename=a%0a",
        "action=save&filename=" + "%C3%A9" * 90,
        "action=save&filename=%00",
        "action[]=save",
        "model=%00&action=erase",
    ):
        yield f"slots?{query[:50]}", raw("POST", f"/slots/0?{query}", b"{}")
    yield _post("/start_profile", output_dir="/etc", num_steps=-1)
    yield _post("/start_profile", output_dir="../..", num_steps=2**62)
    yield _post("/stop_profile")
    yield _post("/stop_profile")
    for body in (
        {"request_ids": ""},
        {"request_ids": ["", "_", "-"]},
        {"rid": ""},
        {"request_ids": ["a"] * 100_000},
        {"rid": "\x00", "abort_all": False},
        {"model": "\x00"},
    ):
        yield _post("/abort_requests", **body)
        yield _post("/abort_request", **body)
    yield _post("/reset_prefix_cache", reset_running_requests=True)
    yield _post("/reset_prefix_cache", model="ears")
    yield _post("/wake_up", tags=["\x00"] * 9999)
    yield _post("/resume", model="ears")
    for query in ("model=%00", "model=ears", "model=none", "model=" + "a" * 3000):
        if query != "model=ears":  # whose events have no end
            yield f"events of {query[:30]}", raw("GET", f"/cache_events?{query}")
        yield f"slots of {query[:30]}", raw("GET", f"/slots?{query}&fail_on_no_slot=1")
        yield f"props of {query[:30]}", raw("GET", f"/props?{query}")
        yield f"cache of {query[:30]}", raw("GET", f"/debug/cache?{query}")
        yield f"tokenizer of {query[:30]}", raw("GET", f"/tokenizer_info?{query}")


def _paths() -> Iterator[tuple[str, Hostile]]:
    for target in (
        "/v1//completions", "/v1/./completions", "/v1/x/../completions", "/%76%31/completions", "/v1/completions%00", "/v1/completions%20", "/v1/completions;a=b",
        "/v1/completions#x", "/v1\\completions", "http://x/v1/completions", "http://user:pw@x/v1/completions", "//x/v1/completions", "/v1/models/%2e%2e%2f%2e%2e",
        "/v1/models/" + "a/" * 2000, "/v1/models/%ff%fe%fd", "/v1/models/%F0%9F%98%80", "/v1/images/files/%2e%2e", "/v1/images/files/img_x.png", "/v1/images/files/" + "%00" * 900,
        "/v1/responses/resp_%0d%0aX:y", "/v1/responses/%ED%A0%80", "/v1/responses/x/input_items?stream=x", "/v1/responses/x?stream=true&starting_after=-1",
        "/v1/responses/x?starting_after=99999999999999999999", "/ui/index.html%00.js", "/ui/..;/config.py", "/ui/%252e%252e", "/ui/.", "/ui/%5c..%5cx", "/docs?" + "a" * 15_000,
        "/openapi.json?x=%", "/metrics?name[]=x", "/health?verbose=%00", "/ready?x", "/load?%", "/server_info?config=1", "/is_sleeping?model=%00", "/is_paused?model[]=x",
    ):  # fmt: skip
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            body = b'{"prompt": "a", "max_tokens": 1}' if method == "POST" else b""
            yield f"{method} {target[:60]}", raw(method, target, body)
    for header in (
        "Range: bytes=0-0,1-1,2-2", "Range: bytes=" + ",".join(f"{i}-{i}" for i in range(0, 4000, 2)), "Range: bytes=-99999999999999999999", "Range: bytes=" + "9" * 5000 + "-",
        "Range: bytes=5-1", "Range: x=1", "If-Range: \xff", "If-Modified-Since: Sat, 99 Foo 9999 99:99:99 GMT", "If-None-Match: " + '"a",' * 3000, "Accept-Language: " + "a," * 4000,
        "Cookie: \x01", "Origin: http://[", "Origin: \xff", "Access-Control-Request-Headers: " + "a," * 3000, "X-Forwarded-Proto: javascript", "Forwarded: for=\xff", "Via: " + "1.1 a," * 999,
        "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-01", "tracestate: \xff", "baggage: " + "a=b," * 2000, "anthropic-version: \xff", "X-Request-Id: \xe9", "Sec-Fetch-Site: \xff",
        "Content-Type: \x0b", "Content-Type: application/json;" + "a=b;" * 3000, "Accept: text/event-stream;q=\xb2", "Prefer: respond-async", "Expect: 100-Continue", "TE: trailers, deflate;q=x",
    ):  # fmt: skip
        yield (
            f"a header {header[:50]!r}",
            raw("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', header),
        )
        yield f"a page with {header[:50]!r}", raw("GET", "/docs", b"", header)


def _wire() -> Iterator[tuple[str, Hostile]]:
    body = b'{"prompt": "a", "max_tokens": 1}'
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\n"
    ends = b"Connection: close\r\n"
    for what, data in (
        ("a superscript length", post + ends + b"Content-Length: \xb2\r\n\r\n" + body),
        ("two lengths", post + ends + b"Content-Length: 5\r\nContent-Length: 32\r\n\r\n" + body),
        ("the same length twice", post + ends + b"Content-Length: 32, 32\r\n\r\n" + body),
        ("a signed length", post + ends + b"Content-Length: +32\r\n\r\n" + body),
        ("a length with an underscore", post + ends + b"Content-Length: 3_2\r\n\r\n" + body),
        ("a hexadecimal length", post + ends + b"Content-Length: 0x20\r\n\r\n" + body),
        ("a length of 30 digits", post + ends + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + body),
        ("chunks", post + ends + b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + body + b"\r\n0\r\n\r\n"),
        ("a chunk of a huge size", post + ends + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n"),
        ("a negative chunk", post + ends + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n"),
        ("a chunk with 16 kB of extension", post + ends + b"Transfer-Encoding: chunked\r\n\r\n20;" + b"a" * 16_000 + b"\r\n" + body + b"\r\n0\r\n\r\n"),
        ("trailers", post + ends + b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + body + b"\r\n0\r\nHost: evil\r\nContent-Length: 9\r\n\r\n"),
        ("many trailers", post + ends + b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + body + b"\r\n0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"),
        ("chunks of one byte", post + ends + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n"),
        ("200,000 chunks", post + ends + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n"),
        ("chunked twice", post + ends + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("xchunked", post + ends + b"Transfer-Encoding: xchunked\r\n\r\n20\r\n" + body + b"\r\n0\r\n\r\n"),
        ("chunked, identity", post + ends + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        ("chunked behind a tab", post + ends + b"Transfer-Encoding:\tchunked\r\n\r\n20\r\n" + body + b"\r\n0\r\n\r\n"),
        ("a space before the colon", post + ends + b"Content-Length : 32\r\n\r\n" + body),
        ("a line feed alone", (post + ends + b"Content-Length: 32\r\n\r\n").replace(b"\r\n", b"\n") + body),
        ("a carriage return alone", (post + ends + b"Content-Length: 32\r\n\r\n").replace(b"\r\n", b"\r") + body),
        ("a second request in the body", post + b"Content-Length: 0\r\n\r\n" + post + ends + b"Content-Length: 32\r\n\r\n" + body),
        ("fifty requests at once", (post + b"Content-Length: 32\r\n\r\n" + body) * 50 + post + ends + b"Content-Length: 32\r\n\r\n" + body),
        ("two hosts", b"GET /health HTTP/1.1\r\nHost: x\r\nHost: evil.example\r\n" + ends + b"\r\n"),
        ("no host", b"GET /health HTTP/1.1\r\n" + ends + b"\r\n"),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
        ("a PROXY line", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET /health HTTP/1.1\r\nHost: x\r\n" + ends + b"\r\n"),
        ("a method of 9,000 letters", b"A" * 9000 + b" / HTTP/1.1\r\nHost: x\r\n" + ends + b"\r\n"),
        ("CONNECT", b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("tabs", b"GET\t/health\tHTTP/1.1\r\nHost: x\r\n" + ends + b"\r\n"),
        ("NUL in a header", b"GET /health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n" + ends + b"\r\n"),
        ("a header without end", b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 200_000),
        ("a websocket", b"GET /v1/completions HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13\r\n\r\n"),
        ("a body that never comes", post + ends + b"Content-Length: 5000\r\n\r\n{"),
        ("an expectation without a body", post + ends + b"Content-Length: 32\r\nExpect: 100-continue\r\n\r\n"),
        ("a body on GET", b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 32\r\n" + ends + b"\r\n" + body),
        ("a body on HEAD", b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\nContent-Length: 32\r\n" + ends + b"\r\n" + body),
    ):  # fmt: skip
        yield (
            what,
            Hostile(data, leaves=what in {"a header without end", "a body that never comes"}),
        )


KINDS = {
    "tools": _tools,
    "formats": _formats,
    "values": _values,
    "labels": _labels,
    "everywhere": _everywhere,
    "forms": _forms,
    "files": _files,
    "paths": _paths,
    "wire": _wire,
}
