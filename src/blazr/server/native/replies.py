"""What blazr's own endpoints answer, as types. The OpenAPI document is made of them."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

ModelState = Literal["loaded", "loading", "unloaded"]


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


class Generated(Struct):
    """What a prompt was continued with."""

    response: str


class InfillPiece(Struct):
    """More text."""

    content: str
    stop: bool
    stop_type: Literal["limit", "eos", "word"] | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET


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
