"""From a model's name to a `TextEngine`: the one place where text and tensors are put together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from blazr.core.errors import UnknownFamilyError
from blazr.llm.bundle import ModelBundle, ModelInfo
from blazr.llm.defaults import sampling_defaults
from blazr.llm.missing_tokenizer import MissingTokenizer
from blazr.llm.text_engine import PLAIN, TextEngine
from blazr.text import sidecars
from blazr.text.chat_template import ChatTemplate, choose_template
from blazr.text.reasoning import choose_reasoning
from blazr.text.stream import ReplyFormat
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.choose import choose_tokenizer
from blazr.text.tool_calls.choose import choose_tool_format

if TYPE_CHECKING:
    from blazr.engine.config import EngineConfig
    from blazr.models.loading.load import LoadedModel
    from blazr.pipelines.fallback import FallbackModel

_log = logging.getLogger(__name__)

# oxidizr trains without a beginning-of-text token; everybody else has one or means to.
_FAMILIES_WITHOUT_BOS = {"oxidizr"}


def load_text_engine(  # noqa: PLR0913  (what can be said of a model)
    model: str = "nano",
    *,
    device: str = "auto",
    dtype: str = "auto",
    vocab: str | None = None,
    chat_template: str | None = None,
    engine: EngineConfig | None = None,
    quantize: str | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TextEngine:
    """Load a model and start its engine; the arguments are those of `LanguageModel`.

    While weights are read, ``progress`` is told the bytes read so far, and all of them.

    Raises:
        BlazrError: The model cannot be loaded.
    """
    _check_parsers(tool_parser, reasoning_parser)  # before minutes are spent on weights
    # Imported here, because these import torch and the callers must start without it.
    from blazr.engine.config import EngineConfig
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device
    from blazr.pipelines.fallback import load_fallback

    place, config = resolve_device(device), engine or EngineConfig()

    def load_weights(model: str) -> LoadedModel | FallbackModel:
        try:
            return load(model, device=place, dtype=dtype, quantize=quantize, progress=progress)
        except UnknownFamilyError as error:
            return load_fallback(model, error, device=place, dtype=dtype)

    loaded = load_weights(model)
    tokenizer, template = _open_text(loaded, vocab=vocab, chat_template=chat_template)
    reply_format = _choose_format(
        loaded, tokenizer, template, tool_parser=tool_parser, reasoning_parser=reasoning_parser
    )
    bundle = ModelBundle(
        weights=loaded,
        load_weights=load_weights,
        device=place,
        config=config,
        info=_describe(loaded, device=str(place), max_seq_len=config.max_seq_len),
        tokenizer=tokenizer,
        template=template,
        reply_format=reply_format,
    )
    _log.debug(
        "vocabulary %s of %d tokens, %s chat template, thinking as %s, tool calls as %s",
        *(tokenizer.name, tokenizer.size, "no" if template is None else "a"),
        *(
            "nothing" if part is None else part.name
            for part in (reply_format.reasoning, reply_format.tool_format)
        ),
    )
    return start_engine(bundle)


def start_engine(bundle: ModelBundle) -> TextEngine:
    """Start an engine of a model in memory; there may be one at a time.

    Raises:
        CapacityError: There is no memory for its caches.
    """
    from blazr.engine.build import build_engine
    from blazr.pipelines.fallback import FallbackModel, build_fallback_engine

    weights, config = bundle.weights, bundle.config
    banned_ids = bundle.tokenizer.unassigned(bundle.info.vocab_size)
    weights.module.to(bundle.device.torch_device)
    if isinstance(weights, FallbackModel):
        runs = build_fallback_engine(weights, config=config, banned_ids=banned_ids)
    else:
        runs = build_engine(weights.module, bundle.device, config=config, banned_ids=banned_ids)
    return TextEngine(
        runs,
        bundle.info,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        reply_format=bundle.reply_format,
        bundle=bundle,
    )


def _open_text(
    loaded: LoadedModel | FallbackModel, *, vocab: str | None, chat_template: str | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    vocab_size, declared = loaded.vocab_size, loaded.metadata.get("tokenizer_vocab")
    tokenizer = choose_tokenizer(
        directory=loaded.directory,
        vocab=vocab,
        vocab_size=vocab_size,
        metadata=loaded.gguf,
        declared=declared if isinstance(declared, str) else None,
    )
    if tokenizer is None:
        return MissingTokenizer(), None
    template = choose_template(
        directory=loaded.directory,
        name_or_path=chat_template,
        family=loaded.family,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        metadata=loaded.gguf,
    )
    return tokenizer, template


def _check_parsers(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Refuse the name of a format that there is not."""
    choose_tool_format("", "", name=tool_parser or "none")
    choose_reasoning("", "", name=reasoning_parser or "none")


def _choose_format(
    loaded: LoadedModel | FallbackModel,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    tool_parser: str | None,
    reasoning_parser: str | None,
) -> ReplyFormat:
    if template is None:
        return PLAIN
    about = (template.source, loaded.family, tokenizer.special_ids)
    return ReplyFormat(
        reasoning=choose_reasoning(*about, name=reasoning_parser),
        tool_format=choose_tool_format(*about, name=tool_parser),
    )


def _describe(
    loaded: LoadedModel | FallbackModel, *, device: str, max_seq_len: int | None
) -> ModelInfo:
    from blazr.nn.quant.weight import stored_weights

    weights = list(stored_weights(loaded.module))
    directory = loaded.directory
    return ModelInfo(
        name=loaded.name,
        family=loaded.family,
        vocab_size=loaded.vocab_size,
        max_seq_len=min(loaded.max_seq_len, max_seq_len or loaded.max_seq_len),
        num_parameters=sum(weight.numel() for weight in weights),
        size_bytes=sum(weight.nbytes for weight in weights),
        device=device,
        adds_bos=loaded.family not in _FAMILIES_WITHOUT_BOS,
        stop_ids=frozenset(sidecars.eos_ids(directory) if directory is not None else ()),
        is_unbounded=loaded.is_unbounded,
        is_recurrent=loaded.is_recurrent,
        sampling=sampling_defaults(directory, loaded.gguf),
    )
