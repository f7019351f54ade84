"""What form a reply may or must have: thinking, calls of tools, a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blazr.core.errors import RequestError
from blazr.engine.request import Request
from blazr.llm.generation import GenerationRequest
from blazr.text.stream import ReplyFormat
from blazr.text.tool_calls.format import tool_specs

PLAIN = ReplyFormat()


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that the engine can run, and how its reply is read.

    Args:
        request: For the engine.
        reply_format: What there may be in the reply besides text.
        num_dropped_messages: Messages that did not fit, the oldest of the chat.
        remember: Called at the end of each reply with its token ids, and the string that ended it
            or None.
    """

    request: Request
    reply_format: ReplyFormat
    num_dropped_messages: int = 0
    remember: Callable[[Sequence[int], str | None], None] | None = None


def choose_format(own: ReplyFormat, request: GenerationRequest) -> ReplyFormat:
    """What there may be in the reply to a request besides text.

    Args:
        own: What the model writes when it chats.
        request: What is asked.
    """
    if request.messages is None:
        return PLAIN
    tools = [] if request.tool_choice == "none" else tool_specs(request.tools or ())
    tool_format = own.tool_format if tools else None
    return ReplyFormat(
        reasoning=own.reasoning,
        tool_format=tool_format,
        tools=tools,
        has_one_call=request.parallel_tool_calls is False,
    )


def choose_grammar(
    reply_format: ReplyFormat, request: GenerationRequest
) -> Mapping[str, object] | None:
    """What the reply must follow: the grammar asked for, or calls where they are required.

    Calls that may be made are held to a grammar where a custom tool's input has one. A response
    format is that of the text, and where a call is required there is none.

    Raises:
        RequestError: There is no such tool, or a grammar is asked for besides that is no format.
    """
    asked = request.params.grammar
    is_format = asked is None or not {"json_object", "json_schema"}.isdisjoint(asked)
    tool_format = reply_format.tool_format
    if request.tool_choice != "required":
        if asked is not None or tool_format is None:
            return asked
        grammar = tool_format.input_grammar(reply_format.tools)
        return None if grammar is None else {"tool_call": grammar}
    name = request.tool_name
    tools = [tool for tool in reply_format.tools if name is None or tool.name == name]
    if not is_format or tool_format is None or not tools:
        raise RequestError(
            "a tool must be called, which is not possible here.",
            param="tool_choice",
            found="no such tool" if is_format else "a grammar too",
            expected="one of the tools, and no grammar besides",
        )
    # who must call goes on calling for want of anything else to say, unless it is to be so
    parallel = request.parallel_tool_calls is True and name is None
    return {"tool_call": tool_format.grammar(tools, parallel=parallel)}
