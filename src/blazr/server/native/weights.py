"""``POST /update_weights``: go on with the weights of another checkpoint of the same model.

Source: ``update_weights_from_disk`` of SGLang, whose body and answer these are.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from blazr.core.detached import run_detached
from blazr.core.errors import BlazrError, CapacityError, RequestError
from blazr.server.endpoint import Call
from blazr.server.native.router import Success


class WeightsBody(msgspec.Struct, kw_only=True):
    """Which checkpoint, below the operator's folder; ``path`` is another word for it."""

    model_path: str | None = None
    path: str | None = None
    model: str | None = None
    abort_all_requests: bool | None = None
    load_format: Literal["auto", "safetensors", "gguf"] | None = None
    flush_cache: Literal[True] | None = None
    update_info: dict[str, Any] | None = None


async def update_weights(call: Call[WeightsBody]) -> Success:
    """Read weights beside the present ones, try them, finish what runs, and go on with them."""
    body = call.body
    models = call.models
    if body.update_info is not None:
        raise RequestError(
            "weights are read from a checkpoint.", param="update_info", hint="send model_path"
        )
    path = allowed_path(
        call.state.config.weights_dir,
        body.model_path or body.path or "",
        kind="checkpoint",
        param="model_path",
        flag="--weights-dir",
    )
    slot = models.find(body.model)

    async def update() -> None:
        async with models.updating, models.using_llm(slot.source.name) as language_model:
            core = language_model.llm.core
            if core.bundle is None:
                raise RequestError("the weights of this model cannot be changed.", param="model")
            try:
                bundle = await run_detached(partial(core.bundle.with_weights, str(path)))
                await asyncio.to_thread(core.check_weights, bundle)
            except CapacityError:
                raise
            except BlazrError as error:
                message = f"the weights cannot be used: {error.message}"
                raise RequestError(message, param="model_path") from error
            if body.abort_all_requests:
                language_model.abort()
            was_paused = core.engine.is_paused
            try:
                if not was_paused:
                    await asyncio.wrap_future(core.engine.pause(finishes=True))
                await asyncio.to_thread(core.replace_weights, bundle)
            finally:
                if not was_paused:
                    await asyncio.to_thread(core.engine.resume)
            slot.loader = bundle.loader_of(str(path))

    await asyncio.shield(models.begin(update()))
    return Success(message="Weights updated")


def allowed_path(folder: Path | None, given: str, *, kind: str, param: str, flag: str) -> Path:
    """A path below the operator's folder; errors do not say whether others exist.

    Args:
        folder: The folder.
        given: A path in it.
        kind: What lies there.
        param: The field that gave it.
        flag: The flag that names the folder.

    Raises:
        RequestError: There is no folder, or no such path below it.
    """
    if folder is None:
        hint = f"start the server with {flag}"
        raise RequestError(f"no {kind} may be read.", param=param, hint=hint)
    if not given:
        raise RequestError(
            f"{param} is missing.", param=param, expected=f"a path below the {flag} folder"
        )
    try:
        root = folder.resolve(strict=True)
        path = (root / given).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        path = None
    if path is None or not path.is_relative_to(root):
        raise RequestError(
            f"there is no such {kind} below the {flag} folder.",
            param=param,
            found=repr(given)[:100],
        )
    return path
