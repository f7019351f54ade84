"""What OpenAI's endpoints answer, as types. The OpenAPI document is made of them."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from blazr.server.state import ModelState

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class ErrorBody(Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorReply(Struct):
    """An error, as OpenAI writes it."""

    error: ErrorBody


class CachedTokens(Struct):
    """Of the prompt's tokens, those that were not computed again."""

    cached_tokens: int


class ReasoningTokens(Struct):
    """Of the reply's tokens, those spent on thinking."""

    reasoning_tokens: int


class UsageReply(Struct):
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Envelope(Struct):
    """What every reply and chunk begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Logprob(Struct):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Logprob):
    """A token, its log-probability and the likeliest alternatives."""

    top_logprobs: list[Logprob]


class ChatLogprobs(Struct):
    """Log-probabilities of a message's tokens."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Struct):
    """A function and its arguments, as JSON in a string."""

    name: str
    arguments: str


class ToolCall(Struct, tag_field="type", tag="function"):
    """A call of a function."""

    id: str
    function: CalledFunction


class CalledCustom(Struct):
    """A custom tool and its input."""

    name: str
    input: str


class CustomCall(Struct, tag_field="type", tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: CalledCustom


class AssistantMessage(Struct):
    """What the model says, thinks and calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall | CustomCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One reply to a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Envelope):
    """The replies to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageReply


class FunctionDelta(Struct):
    """More of a call's arguments; the name comes first."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(Struct):
    """More of a custom tool's input; the name comes first."""

    input: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """More of a call."""

    index: int
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET


class ChatDelta(Struct):
    """What is new of a reply."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct):
    """What is new of one reply, and why it ended when it did."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Envelope):
    """A piece of a streamed reply; the last one holds the usage, where it was asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET


class CompletionLogprobs(Struct):
    """Log-probabilities of a text's tokens, as four lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct):
    """A token of the prompt, or what might have stood there; ranks begin with 1."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(Struct):
    """One text, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"] | None
    stop_reason: str | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class TextCompletion(Envelope):
    """What prompts were continued with, or a piece of it."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageReply | UnsetType | None = UNSET


class EmbeddingRow(Struct):
    """A vector; in base64 it is float32, little end first."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    """What was read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """A vector for each input."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingRow]
    usage: EmbeddingUsage


class ModelStatus(Struct):
    """Whether a model is in memory, and whether the last try to load it has failed."""

    value: ModelState
    failed: bool | UnsetType = UNSET


class ModelMeta(Struct):
    """A model's figures; sizes are in bytes."""

    n_ctx_train: int
    n_params: int
    n_vocab: int
    size: int


class ModelCard(Struct):
    """A model. What is null is known once it has been loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    permission: list[str]
    status: ModelStatus
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_model_len: int | None
    meta: ModelMeta | None


class ModelList(Struct):
    """The models there are."""

    object: Literal["list"]
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(Struct):
    """How many tokens there are."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ScoreRow(Struct):
    """How well a pair fits."""

    object: Literal["score"]
    index: int
    score: float


class ComparisonUsage(EmbeddingUsage):
    """What was read, and how much of it was not computed again."""

    prompt_tokens_details: CachedTokens


class ScoreList(Struct):
    """A score for each pair."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreRow]
    usage: ComparisonUsage


class RankedDocument(Struct):
    """A document's text."""

    text: str


class RerankRow(Struct):
    """A document's place and score."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankReply(Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[RerankRow]
    usage: ComparisonUsage
