"""From a model's name to a `TextEngine`: the one place where text and tensors are put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from blazr.core.errors import ConfigError, RequestError, UnknownFamilyError
from blazr.engine.speculation import parse_spec
from blazr.llm.adapters import parse_adapters
from blazr.llm.bundle import ModelBundle, ModelInfo
from blazr.llm.defaults import own_pooling, sampling_defaults
from blazr.llm.draft_model import check_same_tokens
from blazr.llm.missing_tokenizer import MissingTokenizer
from blazr.llm.options import LoadOptions
from blazr.llm.rank_head import read_rank_head
from blazr.llm.text_engine import PLAIN, TextEngine
from blazr.pipelines.kinds import check_gguf_language_model, kind_of
from blazr.text import sidecars
from blazr.text.chat_template import ChatTemplate
from blazr.text.choose_template import choose_template
from blazr.text.reasoning import choose_reasoning
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer
from blazr.text.tool_calls.choose import choose_tool_format

if TYPE_CHECKING:
    from blazr.engine.ranks.processes import RankProcesses
    from blazr.models.loading.load import LoadedModel
    from blazr.models.loading.read import Progress
    from blazr.nn.device import Device
    from blazr.pipelines.fallback import FallbackModel
    from blazr.pipelines.pipeline import Pipeline

_log = logging.getLogger(__name__)

# oxidizr trains without a beginning-of-text token; everybody else has one or means to.
_FAMILIES_WITHOUT_BOS = {"oxidizr"}
_ONLY_FOR_TEXT = (
    *("vocab", "quantize", "tp", "pp", "spec", "adapter", "chat_template", "mmproj"),
    *("cpu_moe", "n_cpu_moe", "place", "exact", "kv_dtype", "state_dtype"),
)


def load_text_engine(options: LoadOptions, *, progress: Progress | None = None) -> TextEngine:
    """Load a model and start its engine.

    Args:
        options: Which, and how.
        progress: Told the bytes of weights read so far, and all of them, while they are read.

    Raises:
        BlazrError: The model cannot be loaded.
    """
    drafters = check_names(options)
    # Imported here and below, because these import torch and the callers must start without it.
    from blazr.models.loading.load import load
    from blazr.nn.device import limit_threads, resolve_device

    limit_threads()
    device = resolve_device(options.device)
    device.use()
    if options.num_ranks > 1:
        return _load_on_ranks(options, device, progress=progress)
    load_again = partial(
        load_weights, options=options, device=device, drafters=drafters, progress=progress
    )
    small = None
    if "draft" in drafters:  # first, as it takes seconds where the other may take minutes
        small = load(
            drafters["draft"], device=device, dtype=options.dtype, quantize=options.quantize
        )
    loaded = load_again(options.model)
    bundle = _bundle(loaded, options, device, load_weights=load_again)
    if small is not None:
        check_same_tokens(bundle.tokenizer, small)
    return start_engine(replace(bundle, draft_model=small))


def check_names(options: LoadOptions) -> dict[str, str]:
    """Refuse unknown names before minutes are spent on weights.

    Returns:
        The drafters; see `parse_spec`.

    Raises:
        BlazrError: An option names what is not known.
    """
    choose_tool_format("", "", name=options.tool_parser or "none")
    choose_reasoning("", "", name=options.reasoning_parser or "none")
    from blazr.nn.operands.kv_dtype import KV_DTYPES
    from blazr.nn.operands.state_dtype import STATE_DTYPES

    KV_DTYPES[options.kv_dtype]
    STATE_DTYPES[options.state_dtype]
    parse_adapters(options.adapter)
    return parse_spec(options.spec)


def _load_on_ranks(
    options: LoadOptions, device: Device, *, progress: Progress | None
) -> TextEngine:
    from blazr.llm.ranks import load_on_ranks

    if ":" in options.device:
        raise ConfigError(
            "each rank computes on a GPU of its own, the first on the first.",
            found=f"--device {options.device:.30}",
            expected="--device cuda",
        )
    weights, processes = load_on_ranks(options, device, progress=progress)
    try:
        bundle = _bundle(
            weights, options, device, load_weights=_refuse_weights, processes=processes
        )
        return start_engine(bundle)
    except BaseException:
        processes.close()
        raise


def load_weights(
    model: str,
    *,
    options: LoadOptions,
    device: Device,
    drafters: Mapping[str, str],
    progress: Progress | None = None,
) -> LoadedModel | FallbackModel:
    """Load a network; one that blazr does not have itself is run by transformers.

    Args:
        model: The model of the options, or the path of another checkpoint of it.
        options: How.
        device: Where it goes.
        drafters: See `parse_spec`; those that are part of the network are loaded with it.
        progress: See `load_text_engine`.

    Raises:
        BlazrError: It cannot be loaded.
    """
    from blazr.models.checkpoint.open import find_model
    from blazr.models.loading.eagle import with_eagle3
    from blazr.models.loading.load import load
    from blazr.pipelines.fallback import load_fallback

    # another checkpoint of the same model is a path
    revision = options.revision if model == options.model else None
    try:
        _check_own_is_wanted(options)
        loaded = load(
            model,
            device=device,
            dtype=options.dtype,
            revision=revision,
            quantize=options.quantize,
            with_mtp="mtp" in drafters,
            progress=progress,
            cpu_experts=options.cpu_experts,
            exact=options.exact,
        )
    except UnknownFamilyError as error:
        for name, chosen, usual in (
            ("kv_dtype", options.kv_dtype, "auto"),
            ("state_dtype", options.state_dtype, "auto"),
            ("exact", options.exact, False),
        ):
            if chosen != usual:
                raise ConfigError(
                    "a model that runs through transformers computes, and keeps its memory, as"
                    " it likes.",
                    found=f"{name} {chosen!r:.50}",
                    expected=repr(usual),
                ) from error
        return load_fallback(model, error, device=device, dtype=options.dtype, revision=revision)
    except ConfigError:
        check_gguf_language_model(find_model(model, revision=revision).path)
        raise
    return with_eagle3(loaded, drafters["eagle3"]) if "eagle3" in drafters else loaded


def _check_own_is_wanted(options: LoadOptions) -> None:
    """Check that the network may be blazr's own.

    Raises:
        UnknownFamilyError: It is to be the library's.
    """
    if options.model_impl == "transformers":
        raise UnknownFamilyError(
            "the model is to run through transformers.", found="model_impl 'transformers'"
        )


def _refuse_weights(path: str) -> LoadedModel:
    raise RequestError(
        "weights are not replaced in a model over several ranks.",
        found=path[:100],
        hint="start it again with the other weights",
    )


def _bundle(
    loaded: LoadedModel | FallbackModel,
    options: LoadOptions,
    device: Device,
    *,
    load_weights: Callable[[str], LoadedModel | FallbackModel],
    processes: RankProcesses | None = None,
) -> ModelBundle:
    """A network and its text side."""
    from blazr.pipelines.load_media_encoder import load_media_encoder

    tokenizer, template = _load_tokenizer(loaded, options)
    reply_format = PLAIN if template is None else template.reply_format
    if options.tool_parser == "none":
        reply_format = replace(reply_format, tool_format=None)
    bundle = ModelBundle(
        weights=loaded,
        load_weights=load_weights,
        device=device,
        config=options,
        info=_model_info(loaded, options, device=str(device)),
        tokenizer=tokenizer,
        template=template,
        reply_format=reply_format,
        media_encoder=(
            load_media_encoder(loaded, tokenizer, options.mmproj) if processes is None else None
        ),
        processes=processes,
        rank_head=read_rank_head(loaded),
    )
    thinking = reply_format.reasoning
    tool_calls = reply_format.tool_format
    _log.debug(
        "vocabulary %s of %d tokens, %s chat template, thinking as %s, tool calls as %s",
        tokenizer.name,
        tokenizer.size,
        "no" if template is None else "a",
        "nothing" if thinking is None else thinking.name,
        "nothing" if tool_calls is None else tool_calls.name,
    )
    return bundle


def load_pipeline(
    options: LoadOptions, *, capabilities: Collection[str] | None = None
) -> Pipeline | None:
    """Load a model that another library runs as a whole; None where it is a language model.

    Args:
        options: Which, and how: of them, device, dtype, revision and max_seq_len.
        capabilities: None is also returned of a model that can do none of these.

    Raises:
        BlazrError: It cannot be loaded.
    """
    from blazr.models.checkpoint.open import find_model
    from blazr.nn.device import limit_threads, resolve_device

    files = find_model(options.model, revision=options.revision)
    kind = kind_of(files.path)
    if kind is None:
        return None
    if capabilities is not None and not set(capabilities) & set(kind.capabilities):
        return None
    usual = LoadOptions()
    unused = [x for x in _ONLY_FOR_TEXT if getattr(options, x) != getattr(usual, x)]
    if unused:  # no error: the flags are those of all models of a server
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        _log.warning("%s is no language model, and loads without %s", files.name, names)
    limit_threads()
    pipeline = kind.load(files, device=resolve_device(options.device), dtype=options.dtype)
    if options.max_seq_len is not None:
        pipeline.limit_texts(options.max_seq_len)
    return pipeline


def start_engine(bundle: ModelBundle) -> TextEngine:
    """Start an engine of a model in memory; there may be one at a time.

    Raises:
        CapacityError: There is no memory for its caches.
    """
    from blazr.engine.build import build_engine
    from blazr.pipelines.fallback import FallbackModel, build_fallback_engine

    weights = bundle.weights
    config = bundle.config
    banned_ids = bundle.tokenizer.unassigned(bundle.info.vocab_size)
    small = bundle.draft_model
    weights.module.to(bundle.device.torch_device)
    if small is not None:
        small.module.to(bundle.device.torch_device)
    if isinstance(weights, FallbackModel):
        runs = build_fallback_engine(weights, config=config, banned_ids=banned_ids)
    else:
        runs = build_engine(
            weights.module,
            bundle.device,
            config=config,
            banned_ids=banned_ids,
            processes=bundle.processes,
            draft_model=None if small is None else small.module,
        )
    text_engine = TextEngine(
        runs,
        bundle.info,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        reply_format=bundle.reply_format,
        bundle=bundle,
    )
    try:
        for name, path in parse_adapters(config.adapter).items():
            text_engine.adapters.load(name, path)
        if config.warm_up:
            text_engine.warm_up()
    except BaseException:
        text_engine.close()
        raise
    return text_engine


def _load_tokenizer(
    loaded: LoadedModel | FallbackModel, options: LoadOptions
) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer of a model, and its chat template where it has a vocabulary."""
    vocab_size = loaded.vocab_size
    declared = loaded.metadata.get("tokenizer_vocab")
    choice = find_tokenizer(
        directory=loaded.directory,
        vocab=options.vocab,
        vocab_size=vocab_size,
        metadata=loaded.gguf,
        declared=declared if isinstance(declared, str) else None,
    )
    tokenizer = load_tokenizer(choice)
    if tokenizer is None:
        return MissingTokenizer(), None
    template = choose_template(
        directory=loaded.directory,
        name_or_path=options.chat_template,
        family=loaded.family,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        metadata=loaded.gguf,
        # calls that are left in the text are still shown as the model knows them
        tool_parser=None if options.tool_parser == "none" else options.tool_parser,
        reasoning_parser=options.reasoning_parser,
    )
    return tokenizer, template


def _model_info(
    loaded: LoadedModel | FallbackModel, options: LoadOptions, *, device: str
) -> ModelInfo:
    from blazr.nn.quant.weight import stored_weights

    weights = list(stored_weights(loaded.module))
    directory = loaded.directory
    pooling, ends_vectors = own_pooling(loaded.gguf)
    return ModelInfo(
        name=loaded.name,
        family=loaded.family,
        vocab_size=loaded.vocab_size,
        max_seq_len=min(loaded.max_seq_len, options.max_seq_len or loaded.max_seq_len),
        num_parameters=loaded.num_parameters,
        size_bytes=options.num_ranks * sum(weight.nbytes for weight in weights),  # of all ranks
        device=device,
        adds_bos=loaded.family not in _FAMILIES_WITHOUT_BOS,
        stop_ids=frozenset(sidecars.eos_ids(directory) if directory is not None else ()),
        is_unbounded=loaded.is_unbounded,
        is_recurrent=loaded.is_recurrent,
        sampling=sampling_defaults(directory, loaded.gguf),
        pooling=pooling,
        ends_vectors=ends_vectors,
    )
