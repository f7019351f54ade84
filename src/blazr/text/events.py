"""What generation emits. A whole reply is a fold of these; every API dialect renders them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token's text and log-probability, with the likeliest alternatives.

    Args:
        token: The token's text; bytes that are no character show as U+FFFD.
        token_id: The token.
        data: The token's bytes.
        logprob: Its log-probability, None where there is none (the first prompt token).
        top: Alternatives, best first (they have no alternatives themselves).
    """

    token: str
    token_id: int
    data: bytes
    logprob: float | None
    top: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptDone:
    """The prompt was read. Always the first event of a reply.

    Args:
        index: Which reply.
        num_prompt_tokens: Tokens of the prompt.
        num_cached_tokens: Of these, tokens reused from earlier requests.
        logprobs: One per prompt token, when asked for.
        reuse: Why no more of them were reused, in the engine's words; empty where the reply ended
            before it began.
        resumed_at: Why the recurrent state had been kept from which it went on, in the engine's
            words; empty where there was none.
        embedding: The prompt as a vector, where that was asked for instead of text.
        num_dropped_messages: Messages of the chat that did not fit, the oldest, and were left out
            as `Truncation` asks.
    """

    index: int
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenText, ...] | None = None
    reuse: str = ""
    resumed_at: str = ""
    embedding: array[float] | None = None
    num_dropped_messages: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, whole characters, never empty unless only token ids or log-probabilities are new.

    Args:
        index: Which reply.
        text: The text.
        token_ids: The tokens that came with it.
        logprobs: One per token, when asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of the model's thinking, never empty. Its tokens come with a `TextDelta`.

    Args:
        index: Which reply.
        text: The text, without the markers around it.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A call of a tool begins, or its arguments go on. Its tokens come with a `TextDelta`.

    Args:
        index: Which reply.
        call_index: Which call of this reply, from 0.
        id: The call's id, in its first delta only.
        name: The tool's name, in its first delta only.
        arguments: More of the arguments, which together are the text of a JSON object; unless the
            model wrote none, or was cut off. Of a custom tool, more of its input.
        is_custom: Whether the tool is a custom one.
    """

    index: int
    call_index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolStep:
    """A tool is run for the model before it goes on, or has been: an agent's loop emits it.

    Args:
        index: Which reply.
        step: Which of the calls that are run for this reply, from 0.
        id: The call's id.
        server: The name of the tool's server.
        name: The tool's name there.
        arguments: Text of a JSON object, as the model wrote it.
        output: What came of it; None when it begins.
        is_error: Whether it failed.
    """

    index: int
    step: int
    id: str
    server: str
    name: str
    arguments: str
    output: str | None = None
    is_error: bool = False

    @property
    def status(self) -> Literal["in_progress", "completed", "failed"]:
        """How far it has come, in the words of OpenAI's APIs."""
        if self.output is None:
            return "in_progress"
        return "failed" if self.is_error else "completed"


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply ended. Always its last event.

    Args:
        index: Which reply.
        reason: ``"stop"``, ``"length"``, ``"abort"``, ``"timeout"`` or ``"error"``.
        num_tokens: Tokens generated.
        stop: The stop string that ended it, or None.
        error: What failed, for ``"error"`` and ``"timeout"``.
        is_refusal: Whether what the request asks for is why.
        num_reasoning_tokens: Of the tokens, those of the model's thinking.
        num_tool_calls: Calls of tools in it.
        num_drafts: Tokens computed on speculation.
        num_kept_drafts: Of these, how many were kept.
        num_more_prompt_tokens: Tokens of later prompts of the same reply, of an agent's rounds.
        num_more_cached_tokens: Of these, tokens reused.
        end_token: The token that ended it, which is no part of it, or None; its log-probability
            when asked for.
    """

    index: int
    reason: str
    num_tokens: int
    stop: str | None = None
    error: str | None = None
    is_refusal: bool = False
    num_reasoning_tokens: int = 0
    num_tool_calls: int = 0
    num_drafts: int = 0
    num_kept_drafts: int = 0
    num_more_prompt_tokens: int = 0
    num_more_cached_tokens: int = 0
    end_token: TokenText | None = None


Event = PromptDone | TextDelta | ReasoningDelta | ToolCallDelta | ToolStep | Finished
