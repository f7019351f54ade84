"""``GET /props``: what a client of llama.cpp's server asks first."""

from __future__ import annotations

import msgspec

import blazr
from blazr.engine.sampling_params import SamplingParams
from blazr.server.endpoint import Call
from blazr.server.native.llama_cpp import Settings, settings_of
from blazr.server.native.tokens import special_names
from blazr.server.params import LAST_N
from blazr.server.served import ServedPipeline


class Defaults(msgspec.Struct):
    """The context, and how replies are sampled where a request does not say."""

    n_ctx: int
    params: Settings


class Modalities(msgspec.Struct):
    """What is read besides text."""

    vision: bool = False
    audio: bool = False


class Props(msgspec.Struct):
    """What a client of llama.cpp's server asks first."""

    default_generation_settings: Defaults
    total_slots: int
    model_alias: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


async def show_props(call: Call[None]) -> Props:
    """The context, the defaults, the chat template."""
    params = SamplingParams(max_tokens=None, repeat_last_n=LAST_N)
    info = call.model.info
    props = Props(
        default_generation_settings=Defaults(info.max_seq_len or 0, settings_of(params, {})),
        total_slots=1,
        model_alias=call.name,
        modalities=Modalities(),
        chat_template="",
        bos_token="",
        eos_token="",
        build_info=f"blazr-{blazr.__version__}",
    )
    if isinstance(call.model, ServedPipeline):  # it does one thing after the other
        return props
    core = call.llm.core
    bos, eos = special_names(core.tokenizer)
    props.default_generation_settings.params = settings_of(params, core.info.sampling)
    props.total_slots = int(core.engine.stats().get("max_running", 0))
    props.modalities = Modalities(vision=core.reads_images, audio=core.reads_audio)
    props.chat_template = core.template.source if core.template else ""
    props.bos_token, props.eos_token = bos or "", eos or ""
    return props
