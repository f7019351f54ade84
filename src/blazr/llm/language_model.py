"""What `LLM` and `AsyncLLM` have in common."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

from blazr.engine.config import EngineConfig
from blazr.llm.load import load_text_engine
from blazr.llm.text_engine import TextEngine
from blazr.llm.vllm_names import dtype_name, translate
from blazr.text.tokenizer import Tokenizer

# How long to wait in silence before asking whether the engine still lives.
CHECK_S = 5.0
# How long to wait before trying again to get into a queue that others fill.
RETRY_S = 0.05

_ENGINE_SETTINGS = frozenset(each.name for each in fields(EngineConfig))


class LanguageModel:
    """A language model, loaded.

    Args:
        model: A path, a Hugging Face id, or the name of the built-in model; or a `TextEngine`.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        dtype: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        vocab: Name of the vocabulary, where the checkpoint does not tell.
        chat_template: Name or file of the chat template, where the checkpoint's is not wanted.
        engine: Sizes and limits of the engine; None takes the defaults.
        settings: Fields of `EngineConfig`, which go before those of ``engine``:
            ``max_seq_len=4096``, ``memory="8GiB"``. vLLM's names are understood where they mean the
            same: ``max_model_len``, ``max_num_seqs``, ``tokenizer``.
        quantize: Pack plain weights while loading: ``"q8_0"``, ``"q4_0"``, or by part
            (``"experts=q4_0,lm_head=q8_0"``).
        tool_parser: How it writes calls of tools: a row of TOOL_FORMATS, or ``"none"``; None is
            found out.
        reasoning_parser: How it marks its thinking: a row of REASONING, or ``"none"``; None is
            found out.

    Raises:
        BlazrError: The model cannot be loaded.
        TypeError: There is no such setting; the message says what to write instead.
    """

    def __init__(  # noqa: PLR0913  (what can be said of a model)
        self,
        model: str | TextEngine = "nano",
        *,
        device: str = "auto",
        dtype: str = "auto",
        vocab: str | None = None,
        chat_template: str | None = None,
        engine: EngineConfig | None = None,
        quantize: str | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        **settings: object,
    ) -> None:
        given: dict[str, Any] = translate(settings, _ENGINE_SETTINGS | {"vocab"})
        vocab = cast("str | None", given.pop("vocab", vocab))
        if given:
            engine = replace(engine or EngineConfig(), **given)
        if not isinstance(model, TextEngine):
            model = load_text_engine(
                model,
                device=device,
                dtype=dtype_name(dtype),
                vocab=vocab,
                chat_template=chat_template,
                engine=engine,
                quantize=quantize,
                tool_parser=tool_parser,
                reasoning_parser=reasoning_parser,
            )
        self.core = model

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text to token ids and back."""
        return self.core.tokenizer
