"""From a model's name to a `TextEngine`: the one place where text and tensors are put together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from blazr.llm.form import PLAIN
from blazr.llm.no_tokenizer import NoTokenizer
from blazr.llm.text_engine import ModelInfo, TextEngine
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

_log = logging.getLogger(__name__)

# oxidizr trains without a beginning-of-text token; everybody else has one or means to.
_FAMILIES_WITHOUT_BOS = {"oxidizr"}


def open_model(
    model: str = "nano",
    *,
    device: str = "auto",
    dtype: str = "auto",
    vocab: str | None = None,
    chat_template: str | None = None,
    engine: EngineConfig | None = None,
    quantize: str | None = None,
) -> TextEngine:
    """Load a model and start its engine; the arguments are those of `ModelFace`.

    Raises:
        BlazrError: The model cannot be loaded.
    """
    # Imported here, because these import torch and the callers must start without it.
    from blazr.engine.build import build_engine
    from blazr.engine.config import EngineConfig
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device

    place = resolve_device(device)
    loaded = load(model, device=place, dtype=dtype, quantize=quantize)
    tokenizer, template, reply_format = _open_text(loaded, vocab=vocab, chat_template=chat_template)
    config = engine or EngineConfig()
    return TextEngine(
        build_engine(
            loaded.module,
            place,
            config=config,
            banned_ids=tokenizer.unassigned(loaded.config.vocab_size),
        ),
        _describe(loaded, device=str(place), max_seq_len=config.max_seq_len),
        tokenizer=tokenizer,
        template=template,
        reply_format=reply_format,
    )


def _open_text(
    loaded: LoadedModel, *, vocab: str | None, chat_template: str | None
) -> tuple[Tokenizer, ChatTemplate | None, ReplyFormat]:
    vocab_size = loaded.config.vocab_size
    if vocab is None:
        declared = loaded.metadata.get("tokenizer_vocab")
        vocab = declared if isinstance(declared, str) else None
    tokenizer = choose_tokenizer(
        directory=loaded.directory, vocab=vocab, vocab_size=vocab_size, metadata=loaded.gguf
    )
    if tokenizer is None:
        _log.warning("no vocabulary is known for %s: token ids only (see --vocab)", loaded.name)
        return NoTokenizer(), None, PLAIN
    template = choose_template(
        directory=loaded.directory,
        name_or_path=chat_template,
        family=loaded.family,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        metadata=loaded.gguf,
    )
    about = (template.source, loaded.family, tokenizer.special_ids)
    reply_format = ReplyFormat(
        reasoning=choose_reasoning(*about), tool_format=choose_tool_format(*about)
    )
    return tokenizer, template, reply_format


def _describe(loaded: LoadedModel, *, device: str, max_seq_len: int | None) -> ModelInfo:
    from blazr.nn.quant.weight import stored_weights

    config, module = loaded.config, loaded.module
    weights = list(stored_weights(module))
    directory = loaded.directory
    specs = [layer.mixer.cache_spec(module.dtype) for layer in config.layers]
    return ModelInfo(
        name=loaded.name,
        family=loaded.family,
        vocab_size=config.vocab_size,
        max_seq_len=min(config.max_seq_len, max_seq_len or config.max_seq_len),
        num_parameters=sum(weight.numel() for weight in weights),
        size_bytes=sum(weight.nbytes for weight in weights),
        device=device,
        adds_bos=loaded.family not in _FAMILIES_WITHOUT_BOS,
        stop_ids=frozenset(sidecars.eos_ids(directory) if directory is not None else ()),
        is_unbounded=not any(spec.paged for spec in specs),
    )
