"""What blazr's own endpoints answer, as types. The OpenAPI document is made of them."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from blazr.server.state import ModelState


class Health(Struct):
    """The engines work."""

    status: Literal["ok"]
    version: str
    model: str
    device: str | None
    heartbeat_age_s: float | None
    models: dict[str, ModelState]


class Ready(Struct):
    """New requests are welcome."""

    status: Literal["ready"]


class Version(Struct):
    """Which blazr this is."""

    version: str


class Load(Struct):
    """How much is being done."""

    server_load: int


class ModelFacts(Struct):
    """What is known of a model; the rest once it was loaded."""

    name: str
    status: ModelState
    family: str | None
    device: str | None
    max_model_len: int | None
    size_bytes: int


class ServerInfo(Struct):
    """What serves, and what it has."""

    version: str
    uptime_s: float
    models: list[ModelFacts]


class NextToken(Struct):
    """How far a reply has come."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(Struct):
    """A place for a reply, and what is known of the one in it."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET


class Pages(Struct):
    """Pages of memory for keys and values."""

    used: int
    idle: int
    free: int
    evictions: int


class States(Struct):
    """Slots for the states of recurrent layers."""

    used: int
    free: int
    evictions: int


class RecentRequest(Struct):
    """How much of a prompt was reused."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    reason: str
    model: str


class CacheReport(Struct):
    """What the caches hold, and why prefixes were reused or not."""

    pages: Pages
    states: States
    blocks: int
    prompt_tokens: int
    cached_tokens: int
    reasons: dict[str, int]
    recent: list[RecentRequest]


class SglangEnd(Struct):
    """Why a reply ended."""

    type: str
    length: int | UnsetType = UNSET
    matched: str | UnsetType = UNSET


class SglangMeta(Struct):
    """About a reply, as SGLang tells it."""

    id: str
    finish_reason: SglangEnd | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generated(Struct):
    """What a prompt was continued with: `response`, or the rest in SGLang's words."""

    response: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    output_ids: list[int] | UnsetType = UNSET
    meta_info: SglangMeta | UnsetType = UNSET


class PieceLogprob(Struct):
    """A token that might have stood there."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class PieceProbabilities(PieceLogprob):
    """A token, and the likeliest in its place."""

    top_logprobs: list[PieceLogprob]


class Settings(Struct):
    """How replies are sampled, in llama.cpp's names."""

    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    ignore_eos: bool
    seed: int | None
    stop: list[str]
    n_probs: int


class Timings(Struct):
    """How long a prompt and its reply took. Of ``prompt_n``, nothing was in the cache."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class TextPiece(Struct):
    """A text, or more of it; the last one says how it ended."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    stop_type: Literal["limit", "eos", "word"] | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    generation_settings: Settings | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[PieceProbabilities] | UnsetType = UNSET


class Defaults(Struct):
    """The context, and how replies are sampled where a request does not say."""

    n_ctx: int
    params: Settings


class Modalities(Struct):
    """What is read besides text."""

    vision: bool
    audio: bool


class Props(Struct):
    """What a client of llama.cpp's server asks first."""

    default_generation_settings: Defaults
    total_slots: int
    model_alias: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


class Piece(Struct):
    """A token and its text."""

    id: int
    piece: str


class Tokens(Struct):
    """A text as tokens."""

    count: int
    max_model_len: int
    tokens: list[int | Piece]
    token_strs: list[str] | None


class Text(Struct):
    """Tokens as a text, under the names that clients look for."""

    prompt: str
    content: str


class Prompt(Struct):
    """A chat as the text that the model reads."""

    prompt: str


class TokenizerInfo(Struct):
    """What a client that tokenizes for itself asks."""

    tokenizer: str
    eos_token: str | None
    bos_token: str | None


class Sleeping(Struct):
    """Whether models sleep."""

    is_sleeping: bool


class PauseState(Struct):
    """What was done."""

    status: Literal["paused", "resumed"]


class Paused(Struct):
    """Whether a model is paused."""

    is_paused: bool


class Forgotten(Struct):
    """How many blocks of tokens were forgotten."""

    success: bool
    num_blocks: int


class Aborted(Struct):
    """How many requests were ended."""

    status: Literal["aborted"]
    aborted: int


class ProfileState(Struct):
    """What was done; a profile is a file in the operator's folder."""

    status: Literal["started", "stopped"]
    file: str | UnsetType = UNSET


class Success(Struct):
    """It was done, or begun."""

    success: bool
    message: str | UnsetType = UNSET


class NewsData(Struct):
    """Where a model is in its life; an exit code says that it could not be loaded."""

    status: ModelState
    exit_code: int | UnsetType = UNSET


class ModelNews(Struct):
    """What has become of a model."""

    model: str
    event: Literal["model_status"]
    data: NewsData
