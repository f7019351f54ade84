"""How a chat is spelled for a template: they differ in what they take, and some take no tools.

A template is tried once with a small chat. What it does not write itself (the tools, a call, a
result) is then written for it, into the system prompt or the messages. What a client wrote is
escaped already (`EscapedChat`) when it gets here, so the special tokens in it are the format's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import Any

from blazr.core.errors import RequestError, TemplateLimitError
from blazr.core.json_text import is_cut_off, whole_members
from blazr.text.images import template_parts
from blazr.text.messages import Message, function_call, function_tool
from blazr.text.tool_calls.custom import as_function_call
from blazr.text.tool_calls.format import ToolFormat

Dict = dict[str, object]
# What a template must write of the small chat: values that occur nowhere else in it.
_TOOL = "blazr_tool"
_FIRST = "blazr-first"
_SECOND = "blazr-second"
_SAID = "blazr-said"
_ROLES = ("own", "one_system", "in_turns", "no_system")
_SYSTEMS = ("blazr-system-1", "blazr-system-2", "blazr-system-3")
_RESULTS = ("blazr-one", "blazr-two")
_IDS = ("blazrcal1", "blazrcal2")
_TOOLS_TEXT = (
    "# Tools\n\nYou may call these functions:\n{tools}\n\n"
    "To call a function, write nothing but its name and arguments, in this form:\n{example}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """What a template wants.

    Args:
        null: What stands for the content of a message that has none.
        text_arguments: Whether the arguments of calls are JSON text, instead of objects.
        tools: Who tells the model of the tools: the template by itself (``"own"``), by itself
            where nothing is missing in them (``"full"``), or we in its ``"system"`` or first
            ``"user"`` message.
        writes_calls: Whether we write the calls into the content.
        writes_results: Whether we write results into messages of the user.
        text_apart: Whether text beside calls is given in a message of its own.
        one_at_a_time: Whether several calls of one message are given one after another.
        roles: Whose messages there may be: any in any order (``"own"``); one of the system, the
            first, and none of the user beside another (``"one_system"``); the same where none of
            the user follows a result, either (``"in_turns"``); or without the system
            (``"no_system"``). What the system may not say, the user does, or the result before.
        short_ids: Whether ids are nine letters and digits, whatever they were.
    """

    null: str | None = None
    text_arguments: bool = False
    tools: str = "own"
    writes_calls: bool = False
    writes_results: bool = False
    text_apart: bool = False
    one_at_a_time: bool = False
    roles: str = "own"
    short_ids: bool = False

    def others(self, *, has_calls: bool) -> Iterator[Spelling]:
        """This, and what to try where a chat fails with it; the most faithful first."""
        yield from (
            replace(
                self,
                null=null,
                text_arguments=text,
                short_ids=short,
                text_apart=apart,
                roles=roles,
            )
            for roles, apart, short, null, text in product(
                dict.fromkeys((self.roles, *_ROLES)),
                # last the words beside a call go where the template lets them, if anywhere
                dict.fromkeys((self.text_apart, False)),
                (False, True)[: 1 + has_calls],
                dict.fromkeys((self.null, None, "")),
                dict.fromkeys((self.text_arguments, False, True)[: 1 + 2 * has_calls]),
            )
        )


def find_spelling(
    render: Callable[[Sequence[Message], Sequence[Dict] | None, Spelling], str], *, with_tools: bool
) -> Spelling:
    """What a template wants.

    Args:
        render: Renders a chat in a spelling; it raises `RequestError` where that fails.
        with_tools: Whether there are tools, or only calls from before.

    Returns:
        What writes all of it. Where nothing does, it is left to the template.
    """
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    tools = [function_tool(_TOOL, "a", parameters)] if with_tools else None

    def check(messages: list[Message], spelling: Spelling, *words: str) -> bool:
        try:
            text = render(messages, tools, spelling)
        except TemplateLimitError:
            raise
        except RequestError:
            return False
        return all(word in text for word in words)

    def first(ways: Sequence[Spelling], messages: list[Message], *words: str) -> Spelling:
        return next((each for each in ways if check(messages, each, *words)), ways[0])

    found = Spelling()
    ask = Message(role="user", content="a")
    system = [Message(role="system", content=each) for each in _SYSTEMS]
    led = [*system[:2], ask, Message(role="assistant", content="a"), system[2], ask]
    found = first([replace(found, roles=each) for each in _ROLES], led, *_SYSTEMS)
    if with_tools:
        own = [replace(found, tools=each) for each in ("own", "full", "system", "user")]
        found = first(own, [ask], _TOOL)
    ways = [(null, text) for null in (None, "") for text in (False, True)]
    own = [replace(found, null=null, text_arguments=text) for null, text in ways]
    called = [ask, _call(_FIRST)]
    own.sort(key=lambda spelling: check(called, spelling, "None"))
    found = first([*own, replace(found, writes_calls=True)], called, _FIRST)
    own = [replace(found, text_apart=each) for each in (False, True)]
    found = first(own, [ask, replace(_call(_FIRST), content=_SAID)], _FIRST, _SAID)
    answered = [*called, _result(0)]
    own = [replace(found, writes_results=each) for each in (False, True)]
    found = first(own, answered, _FIRST, _RESULTS[0])
    twice = [ask, _call(_FIRST, _SECOND), _result(0), _result(1)]
    own = [replace(found, one_at_a_time=each) for each in (False, True)]
    return first(own, twice, _FIRST, _SECOND, *_RESULTS)


def _call(*values: str) -> Message:
    calls = [
        function_call(each, "f", {"x": value}) for each, value in zip(_IDS, values, strict=False)
    ]
    return Message(role="assistant", content=None, extra={"tool_calls": calls})


def _result(number: int) -> Message:
    extra = {"tool_call_id": _IDS[number], "name": "f"}
    return Message(role="tool", content=_RESULTS[number], extra=extra)


# --- messages as a template sees them


def as_dicts(messages: Sequence[Message]) -> list[Dict]:
    """Messages as mappings, arguments of calls as objects where they are JSON ones.

    Raises:
        RequestError: A call is none.
    """
    written: list[Dict] = []
    for message in messages:
        extra = dict(message.extra or {})
        content: object = message.content
        if message.images:
            content = template_parts(message.content, message.images)
        fields: Dict = {"role": message.role, "content": content}
        calls = extra.get("tool_calls")
        if isinstance(calls, list | tuple):
            extra["tool_calls"] = [_read_call(call) for call in calls]
        thought = extra.get("reasoning_content") or extra.get("reasoning")
        if thought:
            extra |= {"reasoning_content": thought, "reasoning": thought}
            if not message.content:
                extra.setdefault("thinking", thought)
        written.append(fields | extra | fields)
    return written


def _read_call(call: object) -> Dict:
    call = as_function_call(call) if isinstance(call, Mapping) else call
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(name, str)
    ):
        raise RequestError(
            "a tool call in a message lacks something.",
            param="messages",
            expected='{"id": "…", "function": {"name": "…", "arguments": "{}"}}',
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    elif arguments is None:
        arguments = {}
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def is_simple(messages: Sequence[Message]) -> bool:
    """Whether a chat has nothing that templates take in different ways."""
    return not has_tools(messages) and all(each.role != "system" for each in messages[1:])


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether a chat has calls of tools or their results in it."""
    return any(
        each.role == "tool" or bool(each.extra and each.extra.get("tool_calls"))
        for each in messages
    )


# --- spelling them


def spell(
    messages: list[Dict], tools: list[Dict] | None, spelling: Spelling, tool_format: ToolFormat
) -> tuple[list[Dict], list[Dict] | None]:
    """A chat as a template wants it.

    Args:
        messages: From `as_dicts`, escaped; left as they are.
        tools: The same.
        spelling: What it wants.
        tool_format: How calls are written where it does not.

    Raises:
        RequestError: A call cannot be written.
    """
    if spelling.roles != "own":
        messages = _with_usual_roles(messages, spelling.roles)
    if spelling.text_apart:
        messages = _with_text_apart(messages)
    if spelling.one_at_a_time:
        messages = _with_calls_apart(messages)
    if spelling.short_ids:
        messages = _with_short_ids(messages)
    spelled = [_spelled(message, spelling, tool_format) for message in messages]
    if spelling.writes_results:
        spelled = _with_results(spelled)
    if tools and spelling.tools == "full":
        return spelled, [_completed(tool) for tool in tools]
    if tools and spelling.tools != "own":
        return _with_tools(spelled, tools, spelling, tool_format), None
    return spelled, tools


def _spelled(message: Dict, spelling: Spelling, tool_format: ToolFormat) -> Dict:
    """A message with its content and calls as a template wants them."""
    calls = message.get("tool_calls")
    said = message["content"]
    if not isinstance(calls, list) or not calls:
        return {**message, "content": "" if said is None else said}
    spelled = {**message, "content": spelling.null if said is None else said}
    if not spelling.text_arguments:
        calls = [_with_whole_arguments(call) for call in calls]
        spelled["tool_calls"] = calls
    functions = [call["function"] for call in calls]
    if spelling.writes_calls:
        for function in functions:
            if not isinstance(function["arguments"] or {}, Mapping):
                raise RequestError(
                    "the arguments of a tool call are not a JSON object.",
                    param="messages",
                    found=repr(function["arguments"])[:100],
                )
        pairs = [(str(each["name"]), each["arguments"] or {}) for each in functions]
        text = tool_format.write(pairs)
        spelled["content"] = f"{said}\n{text}" if said else text
        del spelled["tool_calls"]
    elif spelling.text_arguments:
        texts = [
            each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
            for each in (function["arguments"] for function in functions)
        ]
        spelled["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": text}}
            for call, text in zip(calls, texts, strict=True)
        ]
    return spelled


def _with_whole_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object, also where `max_tokens` has cut them off.

    Clients send such a call again with every turn, and what it lacks cannot be known: the
    arguments are those that came whole, as in the dialects that send no others.
    """
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str) or not is_cut_off(arguments):
        return call
    return {**call, "function": {**call["function"], "arguments": whole_members(arguments)}}


def _with_usual_roles(messages: list[Dict], roles: str) -> list[Dict]:
    """One message of the system, the first, or none; others are the user's, and neighbours one."""
    spelled: list[Dict] = []
    joining = {("system", "system"), ("user", "user")}
    if roles == "in_turns":
        joining.add(("tool", "user"))
    for number, message in enumerate(messages):
        is_first = all(each["role"] == "system" for each in messages[:number])
        may_tell = is_first and roles != "no_system"
        role = "user" if message["role"] == "system" and not may_tell else message["role"]
        last = spelled[-1] if spelled else None
        if last is not None and (last["role"], role) in joining:
            both = [*filter(None, (last["content"], message["content"]))]
            spelled[-1] = {**last, "content": _joined(both)}
        else:
            spelled.append({**message, "role": role})
    return spelled


def _joined(contents: Sequence[object]) -> object:
    """Contents of messages as one; parts stay parts."""
    if all(isinstance(each, str) for each in contents):
        return "\n\n".join(map(str, contents))
    parts: list[object] = []
    for each in contents:
        parts += [{"type": "text", "text": "\n\n"}] if parts else []
        parts += each if isinstance(each, list) else [{"type": "text", "text": each}]
    return parts


def _with_text_apart(messages: list[Dict]) -> list[Dict]:
    """Text beside calls in a message of its own, before them."""
    spelled: list[Dict] = []
    for message in messages:
        content = message["content"]
        if content and message.get("tool_calls"):
            spelled.append({"role": message["role"], "content": content})
            content = None
        spelled.append({**message, "content": content})
    return spelled


def _with_short_ids(messages: list[Dict]) -> list[Dict]:
    """Ids as Mistral's templates want them: nine letters and digits."""

    def short(name: object) -> str:
        return sha256(str(name).encode("utf-8", "replace")).hexdigest()[:9]

    spelled = [dict(message) for message in messages]
    for message in spelled:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message["tool_calls"] = [{**call, "id": short(call.get("id"))} for call in calls]
        if "tool_call_id" in message:
            message["tool_call_id"] = short(message["tool_call_id"])
    return spelled


def _with_calls_apart(messages: list[Dict]) -> list[Dict]:
    """Each call in a message of its own, with its result after it."""
    parted: list[Dict] = []
    waiting: list[Dict] = []  # calls whose turn has not come
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] == "tool" and waiting and not _answers(message, parted[-1]):
            wanted = next((each for each in waiting if _answers(message, each)), waiting[0])
            waiting.remove(wanted)
            parted.append(wanted)
        elif message["role"] != "tool":
            parted += waiting
            waiting = []
        if isinstance(calls, list) and len(calls) > 1:
            first = {**message, "tool_calls": calls[:1]}
            parted.append(first)
            role = message["role"]
            waiting = [{"role": role, "content": None, "tool_calls": [call]} for call in calls[1:]]
        else:
            parted.append(message)
    return parted + waiting


def _answers(result: Dict, message: Dict) -> bool:
    calls = message.get("tool_calls")
    wanted = result.get("tool_call_id")
    return isinstance(calls, list) and any(call.get("id") == wanted for call in calls)


def _with_results(messages: list[Dict]) -> list[Dict]:
    """Results in messages of the user, those that belong together in one."""
    spelled: list[Dict] = []
    follows = False
    for message in messages:
        is_result = message["role"] == "tool"
        text = f"<tool_response>\n{message['content'] or ''}\n</tool_response>"
        if is_result and follows:
            spelled[-1]["content"] = f"{spelled[-1]['content']}\n{text}"
        else:
            spelled.append({"role": "user", "content": text} if is_result else dict(message))
        follows = is_result
    return spelled


def _with_tools(
    messages: list[Dict], tools: list[Dict], spelling: Spelling, tool_format: ToolFormat
) -> list[Dict]:
    """The tools in the system prompt, or before the user's first words."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    example = tool_format.write([("function-name", {"argument-name": "value"})])
    text = _TOOLS_TEXT.format(tools="\n".join(lines), example=example)
    for number, message in enumerate(messages):
        if message["role"] == spelling.tools:
            said = str(message["content"] or "")
            both = (text, said) if spelling.tools == "user" else (said, text)
            with_tools: Dict = {**message, "content": "\n\n".join(filter(None, both))}
            return [*messages[:number], with_tools, *messages[number + 1 :]]
    return [{"role": spelling.tools, "content": text}, *messages]


def _completed(tool: Dict) -> Dict:
    """A tool with every field that a template may expect."""
    function = tool.get("function", tool)
    function = function if isinstance(function, Mapping) else {}
    parameters = function.get("parameters")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    given = parameters.get("properties")
    properties = {
        name: {"description": "", **each} if isinstance(each, Mapping) else each
        for name, each in (given.items() if isinstance(given, Mapping) else ())
    }
    full = {"type": "object", "required": [], **parameters, "properties": properties}
    return {
        "type": "function",
        **tool,
        "function": {"description": "", **function, "parameters": full},
    }
