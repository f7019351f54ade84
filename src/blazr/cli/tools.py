"""Tools in a chat of the command line: which there are, the user's consent, and their calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blazr.cli.partners import Partner, Question
from blazr.cli.terminal import keyboard
from blazr.core.errors import ConfigError

if TYPE_CHECKING:
    from blazr.agent.config import McpServer
    from blazr.agent.connection import Outcome
    from blazr.agent.rounds import PlannedCall, Rounds
    from blazr.agent.toolbox import Toolbox
    from blazr.text.events import Event, ToolStep
    from blazr.text.messages import Message

_MOST_SHOWN = 200  # characters of a result


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFlags:
    """Which tools a model may call in a chat.

    Args:
        mcp_config: File of MCP servers (mcp.json), whose tools the model may call; each call asks.
        agent: Run calls without asking where that file has the policy auto.
        max_tool_rounds: Most times that tools run before one answer.
    """

    mcp_config: Path | None = None
    agent: bool = False
    max_tool_rounds: int = 10

    def build_user(self) -> ToolUser | None:
        """What runs the tools; None without a file.

        Raises:
            ConfigError: The file cannot be used, or ``--agent`` has none.
        """
        if self.mcp_config is None:
            if self.agent:
                raise ConfigError("--agent needs tools.", expected="--mcp-config mcp.json")
            return None
        from blazr.agent.config import check_installed, read_mcp_config

        check_installed()
        return ToolUser(
            read_mcp_config(self.mcp_config),
            ask=ask_in_terminal if sys.stdin.isatty() else None,
            asks_always=not self.agent,
            max_rounds=self.max_tool_rounds,
        )


@dataclass(slots=True)
class ToolUser:
    """Runs the tools that a partner calls. Their servers are started for the first answer.

    Args:
        servers: The servers of tools.
        ask: Asks somebody whether a call may be made; None where there is nobody.
        asks_always: Whether every call needs that, whatever its policy is.
        max_rounds: Most times that tools run before one answer.
        between: What was called and said between the last question and its answer.
    """

    servers: Sequence[McpServer]
    ask: Callable[[str], bool] | None
    asks_always: bool
    max_rounds: int
    between: Sequence[Message] = ()
    _toolbox: Toolbox | None = None

    def answer(self, partner: Partner, question: Question) -> Iterator[Event]:
        """The events of one answer, and of the calls before it."""
        from blazr.agent.rounds import Rounds

        self.between = ()
        toolbox = self._connect()
        offer = toolbox.offer()
        rounds = Rounds(
            offer,
            question.messages,
            can_ask=True,
            asks_always=self.asks_always,
            max_rounds=self.max_rounds,
        )
        while not rounds.is_over:
            asked = replace(question, messages=rounds.messages, tools=offer.functions)
            for event in partner.answer(asked):
                yield from rounds.push(event)
            if not rounds.calls:
                break
            yield from self._run(toolbox, rounds)
        self.between = rounds.messages[len(question.messages) :]

    def close(self) -> None:
        """End the servers of tools."""
        if self._toolbox is not None:
            self._toolbox.close()

    def _connect(self) -> Toolbox:
        """The connections to the servers, once each has been tried."""
        from blazr.agent.toolbox import Toolbox

        if self._toolbox is None:
            self._toolbox = Toolbox(self.servers)
        self._toolbox.first_attempts().result()
        return self._toolbox

    def _run(self, toolbox: Toolbox, rounds: Rounds) -> Iterator[Event]:
        """Run the calls of a round: first all questions, then all calls at once."""
        from blazr.agent.rounds import REFUSED

        running: dict[Future[Outcome], PlannedCall] = {}
        outcomes: dict[int, Outcome] = {}
        with ExitStack() as stack:
            for call in rounds.calls:
                if call.needs_asking and not self._agrees(call.event()):
                    outcomes[call.step] = REFUSED
                    yield call.event(REFUSED)
            for call in rounds.calls:
                if call.step not in outcomes:
                    yield call.event()
                    future = toolbox.call(call.offered, call.arguments)
                    stack.callback(future.cancel)
                    running[future] = call
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    call = running.pop(future)
                    outcomes[call.step] = future.result()
                    yield call.event(outcomes[call.step])
        yield from rounds.answer([outcomes[call.step] for call in rounds.calls])

    def _agrees(self, step: ToolStep) -> bool:
        return self.ask is not None and self.ask(render_step(step))


def ask_in_terminal(what: str) -> bool:
    """Ask whether a call may be made; everything but yes is no."""
    print(f"{what}\nrun it? [y/N] ", end="", file=sys.stderr, flush=True)
    with keyboard(echoes=True):
        return sys.stdin.readline().strip().lower() in {"y", "yes"}


def render_step(step: ToolStep) -> str:
    """A call, or its result, in one line."""
    if step.output is None:
        return _printable(f"[{step.server}: {step.name} {step.arguments}]")
    what = "failed: " if step.is_error else ""
    return _printable(f"[{step.server}: {step.name} -> {what}{step.output}]")


def _printable(text: str) -> str:
    """A text in one line that cannot move the cursor or change the terminal."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 5]} ...]"
