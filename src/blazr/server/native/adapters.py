"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from blazr.core.errors import BlazrError, CapacityError, RequestError
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.native.router import Success
from blazr.server.native.weights import allowed_path
from blazr.server.schema import schema_hint

_MAX_NAME = 200  # characters
_Name = Annotated[str, schema_hint(minLength=1, maxLength=_MAX_NAME)]


class LoadAdapterBody(msgspec.Struct, kw_only=True):
    """A directory below the operator's folder, and what requests will call it.

    With ``load_inplace`` it takes the place of the adapter of that name, if there is one; requests
    that run or wait keep the old one.
    """

    lora_name: _Name | None = None
    lora_path: str | None = None
    load_inplace: bool = False
    model: str | None = None


class UnloadAdapterBody(msgspec.Struct, kw_only=True):
    """Which adapter; requests that use it are answered to their ends."""

    lora_name: _Name | None = None
    model: str | None = None


async def load_adapter(call: Call[LoadAdapterBody]) -> Success:
    """Load an adapter beside a model."""
    body = call.body
    name = _name_of(body.lora_name)
    models = call.models
    folder = call.state.config.adapter_dir
    path = allowed_path(
        folder, body.lora_path or "", kind="adapter", param="lora_path", flag="--adapter-dir"
    )
    owner = models.owner_of_adapter(name)
    replaces = body.load_inplace and owner is not None
    if replaces and body.model and models.find(body.model) is not owner:
        raise RequestError(
            "an adapter of another model has that name.",
            param="lora_name",
            found=repr(name)[:100],
            hint="send that model's name as model, or take another name",
        )
    if models.has(name) and not replaces:
        raise RequestError(
            "a model or an adapter has that name.",
            param="lora_name",
            found=repr(name)[:100],
            hint='send "load_inplace": true to replace it' if owner else "take another name",
        )
    async with models.using_llm(name if replaces else body.model) as language_model:
        adapters = language_model.llm.core.adapters
        try:
            await asyncio.to_thread(adapters.load, name, path, in_place=body.load_inplace)
        except (RequestError, CapacityError):
            raise
        except BlazrError as error:
            # paths are the operator's
            message = f"the adapter cannot be used: {error.message}".replace(str(path), name)
            found, expected, hint = error.found, error.expected, error.hint
            raise RequestError(
                message, param="lora_path", found=found, expected=expected, hint=hint
            ) from error
    return Success(message=f"the adapter {name!r} is loaded")


async def unload_adapter(call: Call[UnloadAdapterBody]) -> Success:
    """Unload an adapter."""
    name, model = _name_of(call.body.lora_name), call.body.model
    try:
        async with call.models.using_llm(model or name) as language_model:
            await asyncio.to_thread(language_model.llm.core.adapters.unload, name)
    except (RequestError, HttpError) as error:
        if not model or error.param == "adapter":
            error.param = "lora_name"
        raise
    return Success(message=f"the adapter {name!r} is unloaded")


def _name_of(given: str | None) -> str:
    if not given:
        raise RequestError("the adapter has no name.", param="lora_name")
    if len(given) > _MAX_NAME:
        raise RequestError(
            "the adapter's name is too long.",
            param="lora_name",
            found=f"{len(given)} characters",
            expected=f"at most {_MAX_NAME}",
        )
    return given
