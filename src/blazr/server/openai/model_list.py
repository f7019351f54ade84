"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.server.endpoint import Call
from blazr.server.model_events import ModelState
from blazr.server.models import ModelSlot, untagged


class ModelStatus(msgspec.Struct):
    """Whether a model is in memory, and whether the last try to load it has failed."""

    value: ModelState
    failed: bool | UnsetType = UNSET


class ModelMeta(msgspec.Struct):
    """A model's figures; sizes are in bytes."""

    n_ctx_train: int
    n_params: int
    n_vocab: int
    size: int


class ModelCard(msgspec.Struct, kw_only=True):
    """A model. What is null is known once it has been loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    permission: list[str] = []
    status: ModelStatus
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None
    max_model_len: int | None = None
    capabilities: list[str] | None = None
    meta: ModelMeta | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """The models there are."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: bool = False


async def list_models(call: Call[None]) -> ModelList:
    """The models there are, in memory or not, and their adapters."""
    cards = [
        _card(call, slot, adapter)
        for slot in call.models.slots
        for adapter in (None, *slot.adapters)
    ]
    return ModelList(data=cards, first_id=cards[0].id, last_id=cards[-1].id)


async def show_model(call: Call[None]) -> ModelCard:
    """One model."""
    name = call.path["model"]
    slot = call.models.find(name)
    return _card(call, slot, untagged(name, slot.adapters))


def _card(call: Call[None], slot: ModelSlot, adapter: str | None) -> ModelCard:
    """What is known of a model, or of it with an adapter.

    In the words of OpenAI and of Anthropic, vLLM and llama.cpp, whose clients ask the same path.
    """
    info = slot.info
    base = slot.source.name
    name = adapter or base
    created = call.state.started.replace(microsecond=0)
    card = ModelCard(
        id=name,
        created=int(created.timestamp()),
        owned_by="blazr",
        root=slot.adapters[adapter].name if adapter else name,
        parent=base if adapter else None,
        status=ModelStatus(slot.status, failed=True if slot.has_failed else UNSET),
        display_name=name,
        created_at=created.isoformat().replace("+00:00", "Z"),
    )
    if slot.capabilities is not None:
        card.capabilities = list(slot.capabilities)
    if info is not None:
        card.owned_by = info.family
    if info is not None and info.max_seq_len is not None:
        card.max_input_tokens = card.max_model_len = info.max_seq_len
        card.meta = ModelMeta(
            n_ctx_train=info.max_seq_len,
            n_params=info.num_parameters,
            n_vocab=info.vocab_size,
            size=info.size_bytes,
        )
    return card
