"""blazr: inference for hybrid language models.

    from blazr import LLM, SamplingParams

    llm = LLM()
    print(llm.generate("Once upon a time", SamplingParams(max_tokens=50))[0].text)

The names below are imported when they are first used, so ``import blazr`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # checkers take it for typing's, whose import would take ten milliseconds
if TYPE_CHECKING:
    from blazr.engine.sampling_params import SamplingParams, StructuredOutputsParams
    from blazr.llm.async_llm import AsyncLLM
    from blazr.llm.llm import LLM
    from blazr.text.messages import Message

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "Message",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "blazr.llm.llm",
    "AsyncLLM": "blazr.llm.async_llm",
    "Message": "blazr.text.messages",
    "SamplingParams": "blazr.engine.sampling_params",
    "StructuredOutputsParams": "blazr.engine.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module 'blazr' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
