"""What the engine emits: token ids, never text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from blazr.core.errors import BlazrError


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"


def describe_error(error: BaseException) -> str:
    """Describe an error on one line, as a reply reports it."""
    if isinstance(error, BlazrError):
        found = f" Found: {error.found}." if error.found else ""
        return f"{error.message}{found}"[:300]
    return f"{type(error).__name__}: {str(error)[:200]}"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the model's distribution before any filter.

    Args:
        token_id: The token at this position.
        logprob: Its log-probability.
        top: The likeliest ids with theirs, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


SlotAction = Literal["save", "restore", "erase"]
"""What is done with what the last reply in a slot had computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReply:
    """How far a reply has come.

    Args:
        request_id: The engine's id of the request.
        index: Which of the request's replies.
        slot: Which of the places for replies it has.
        num_prompt_tokens: Tokens of the prompt.
        num_computed_tokens: Tokens, of prompt and reply, that are in memory.
        num_output_tokens: Tokens of the reply.
        max_tokens: Most tokens of the reply.
    """

    request_id: int
    index: int
    slot: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int


@dataclass(slots=True, kw_only=True)  # not frozen: one is made for every token
class TokenOutput:
    """One step of one reply.

    Args:
        request_id: The engine's id of the request.
        index: Which of the request's ``n`` replies.
        token_ids: New tokens of this step, usually one. A stop id that ended the reply is not
            among them; ``stop_id`` names it.
        logprobs: One per new token, when asked for.
        prompt_logprobs: With the first output, one per prompt token (None for the first).
        finish_reason: Set on the last output of the reply.
        stop_id: The token id that ended the reply, if one did.
        stop_logprobs: Its log-probabilities, when asked for.
        error: What failed, when ``finish_reason`` is ERROR or TIMEOUT.
        is_refusal: Whether what the request asks for is why.
        num_prompt_tokens: Tokens of the prompt.
        num_cached_tokens: Tokens of the prompt that were not computed again.
        reuse: Why no more of them were reused: ``"whole"`` (all that can be), ``"partial"``,
            ``"unknown"`` (nothing like it in memory), ``"no-state"`` (a longer prefix is known, but
            no recurrent state at its end), ``"short"`` (less than one block), ``"off"``.
        resumed_at: Why the recurrent state had been kept from which the prompt went on: a
            `StateKind`, or empty where there was none.
        num_drafts: Tokens of the reply that were computed on speculation, so far.
        num_kept_drafts: Of these, how many were kept.
        embedding: The pooled hidden states, (C,), when asked for; with the only output.
    """

    request_id: int
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_id: int | None = None
    stop_logprobs: TokenLogprobs | None = None
    error: str | None = None
    is_refusal: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    reuse: str = ""
    resumed_at: str = ""
    num_drafts: int = 0
    num_kept_drafts: int = 0
    embedding: array[float] | None = None
