"""``GET /props``: what a client of llama.cpp's server asks first."""

from __future__ import annotations

from starlette.responses import Response

import blazr
from blazr.engine.sampling_params import SamplingParams
from blazr.server.native.pieces import settings
from blazr.server.native.tokens import special_names
from blazr.server.params import LAST_N
from blazr.server.service import Call, json_response


async def show_props(call: Call[None]) -> Response:
    """The context, the defaults, the chat template."""
    core = call.service.llm.core
    bos, eos = special_names(core.tokenizer)
    defaults = {
        "n_ctx": core.info.max_seq_len,
        "params": settings(SamplingParams(max_tokens=None, repeat_last_n=LAST_N), core.info),
    }
    return json_response(
        {
            "default_generation_settings": defaults,
            "total_slots": int(core.engine.stats().get("max_running", 0)),
            "model_alias": call.service.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": core.template.source if core.template else "",
            "bos_token": bos or "",
            "eos_token": eos or "",
            "build_info": f"blazr-{blazr.__version__}",
        }
    )
