"""The tools of the operator's servers beside those of a request, run for it where it asks so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from blazr.agent.reply import Agent
from blazr.agent.rounds import Rounds
from blazr.agent.toolbox import Offer, RequestConnections, Toolbox
from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest
from blazr.server.endpoint import Call
from blazr.server.schema import schema_hint
from blazr.server.tool_choice import tool_name

MostRounds = Annotated[int, msgspec.Meta(ge=1, le=1000), schema_hint(minimum=1, maximum=1000)]


@dataclass(frozen=True, slots=True)
class AgentFields:
    """What a request says of tools that are run for it.

    Args:
        wanted: Whether they are; None leaves it to the server's settings.
        max_rounds: Most times that they run before the reply ends; the operator may allow fewer.
        approved: Ids of calls in its last message that it agrees to.
        separator: What stands between the texts of two rounds.
    """

    wanted: bool | None = None
    max_rounds: int | None = None
    approved: Iterable[str] = ()
    separator: str = ""


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools that are run for a request.

    Args:
        offer: Which, by the names that the model is shown.
        toolbox: What runs them; None where nothing is run.
        request_connections: To servers that the request names by URL.
    """

    offer: Offer = field(default_factory=Offer)
    toolbox: Toolbox | None = None
    request_connections: RequestConnections | None = None

    def agent(
        self, call: Call[object], request: GenerationRequest, asked: AgentFields
    ) -> Agent | None:
        """What runs the tools that the reply to a request calls."""
        if self.toolbox is None:
            return None
        most = call.state.config.max_tool_rounds
        rounds = Rounds(
            self.offer,
            request.messages or (),
            max_rounds=min(asked.max_rounds or most, most),
            approved=asked.approved,
            separator=asked.separator,
        )
        return Agent(rounds, self.toolbox, self.request_connections)

    def close(self) -> None:
        """Leave the servers that the request names by URL. Idempotent."""
        if self.request_connections is not None:
            self.request_connections.close()


async def own_tools(
    call: Call[object], asked: AgentFields, taken: set[str], *, n: int, choice: object
) -> ServerTools:
    """The tools of the operator's servers, where a chat asks for them.

    Args:
        call: The request.
        asked: What it says of that.
        taken: The names of its own tools.
        n: Replies that it wants.
        choice: Its ``tool_choice``.

    Raises:
        RequestError: It asks for tools, and there are none, or it wants several replies.
    """
    toolbox = call.models.toolbox
    is_wanted = wants_tools(call, asked.wanted)
    if asked.wanted and n > 1:
        raise RequestError("tools are run for one reply.", param="n", found=str(n))
    if toolbox is None or not is_wanted or n > 1 or choice == "none":
        return ServerTools()
    await asyncio.wrap_future(toolbox.first_attempts())
    return ServerTools(toolbox.offer(taken), toolbox)


def wants_tools(call: Call[object], asked: bool | None) -> bool:  # noqa: FBT001
    """Whether the operator's tools are to be run for a request.

    Args:
        call: The request.
        asked: What it says of that; None leaves it to the server's settings.

    Raises:
        RequestError: It asks for tools, and the operator has set up none.
    """
    if asked and call.models.toolbox is None:
        raise RequestError(
            "this server has no tools.", param="agent", hint="blazr serve --mcp-config mcp.json"
        )
    return call.state.config.agent if asked is None else asked


def taken_names(tools: Sequence[Mapping[str, object]]) -> set[str]:
    """The names of a request's own tools."""
    return set(filter(None, map(tool_name, tools)))
