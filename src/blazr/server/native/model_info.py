"""``GET /model_info``: what a client of SGLang asks first.

Source: GitHub sgl-project/sglang, ``python/sglang/lang/backend/runtime_endpoint.py``.
"""

from __future__ import annotations

import msgspec

from blazr.pipelines.kinds import AUDIO, COMPLETION, VISION
from blazr.server.endpoint import Call


class SglangModel(msgspec.Struct):
    """Which model is served. Its paths are its name, by which clients choose a chat template."""

    model_path: str
    tokenizer_path: str
    is_generation: bool
    has_image_understanding: bool
    has_audio_understanding: bool
    preferred_sampling_params: None = None


async def show_model(call: Call[None]) -> SglangModel:
    """Which model is served, as SGLang tells it."""
    capabilities = call.model.capabilities
    return SglangModel(
        model_path=call.name,
        tokenizer_path=call.name,
        is_generation=COMPLETION in capabilities,
        has_image_understanding=VISION in capabilities,
        has_audio_understanding=AUDIO in capabilities,
    )
