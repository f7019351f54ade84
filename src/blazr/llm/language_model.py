"""What `LLM` and `AsyncLLM` have in common."""

from __future__ import annotations

import atexit
import inspect
import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, cast
from weakref import finalize

from blazr.core.errors import RequestError
from blazr.llm.encoder_calls import METHODS, EncoderCalls, EncoderReading
from blazr.llm.generation import GenerationRequest, PromptInput, Truncation, as_prompts
from blazr.llm.load import check_names, load_pipeline, load_text_engine
from blazr.llm.options import LoadOptions, check_cache_disk, takes
from blazr.llm.results import Classification, Completion, Embedding, Score
from blazr.llm.text_engine import TextEngine
from blazr.llm.vectors import (
    distinct,
    embedding_requests,
    embeddings,
    score_pairs,
    unit_vectors,
    vector_of,
)
from blazr.llm.vllm_names import dtype_name, translate
from blazr.pipelines.encoders.request import without_prompts
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.llm.bundle import ModelInfo
    from blazr.llm.rank_head import RankHead
    from blazr.pipelines.encoders.encoder import Encoder
    from blazr.pipelines.pipeline import PipelineInfo

T = TypeVar("T")
# How long to wait in silence before asking whether the engine still lives.
CHECK_S = 5.0
# How long a reply that is wanted whole may go on before its new tokens are looked at.
WHOLE_PAUSE_S = 0.01
# How long the end of Python waits until a model that nobody uses any more is closed.
EXIT_S = 10.0

_NAMES = frozenset(each.name for each in fields(LoadOptions)) - {"model"}


class _Closer:
    """Closes models that nobody uses any more, and lets Python end when they are closed."""

    def __init__(self) -> None:
        self._under_way: set[LockType] = set()  # one for each model, held until it is closed

    def begin(self, close: Callable[[], None]) -> None:
        """Close a model without waiting, for which it may have to end a step.

        A garbage collection calls this, whose caller may hold what other threads need. That is also
        why this starts no `threading.Thread`, which would wait for its start.
        """
        is_open = allocate_lock()
        is_open.acquire()
        self._under_way.add(is_open)
        start_new_thread(self._close, ([close], is_open))

    def wait(self) -> None:
        """Let no thread be freeing weights when Python ends, which would abort the process."""
        for is_open in list(self._under_way):
            is_open.acquire(timeout=EXIT_S)

    def forget(self) -> None:
        """Wait for none, in a fork: the threads that close them are its parent's."""
        self._under_way.clear()

    def _close(self, model: list[Callable[[], None]], is_open: LockType) -> None:
        try:
            model.pop()()  # the list, which stays until the thread ends, does not keep the model
        finally:
            self._under_way.discard(is_open)
            is_open.release()


_CLOSER = _Closer()
atexit.register(_CLOSER.wait)
os.register_at_fork(after_in_child=_CLOSER.forget)


@dataclass(frozen=True, slots=True)
class ModelReading(Generic[T]):
    """What a language model reads, and what is made of what it gives.

    Args:
        requests: What makes the requests, which may tokenize long texts.
        finish: What makes the results of the replies.
    """

    requests: Callable[[], Sequence[GenerationRequest]]
    finish: Callable[[Sequence[Completion]], list[T]]


Reading = EncoderReading[T] | ModelReading[T]


class LanguageModel:
    """A language model, loaded.

    It may also be an encoder (BERT, XLM-R, a model of sentence-transformers, a cross-encoder, a
    classifier), of which it has `embed`, `score` or `classify` alone; other methods raise a
    `RequestError`.

    It is closed when it is no longer used, at the latest.

    The arguments are the fields of `LoadOptions`; vLLM's names are understood where they mean the
    same: ``max_model_len``, ``max_num_seqs``, ``tokenizer``.

    Raises:
        BlazrError: The model cannot be loaded.
        TypeError: There is no such argument; the message says what to write instead.
    """

    _core: TextEngine | None = None
    _encoder: EncoderCalls | None = None

    @takes(LoadOptions)
    def __init__(self, model: str = "nano", **given: Any) -> None:
        options: dict[str, Any] = translate(given, _NAMES)
        if "dtype" in options:
            options["dtype"] = dtype_name(options["dtype"])
        if "device" in options:
            options["device"] = str(options["device"])  # it may be a torch.device
        load_options = LoadOptions(model, **options)
        check_cache_disk([load_options])
        close = self._load(load_options)
        # Its thread keeps an engine, and with that the weights.
        finalizer = finalize(self, _CLOSER.begin, close)
        finalizer.atexit = False  # there engines are closed anyway

    # what help() and notebooks show
    __signature__ = inspect.signature(LoadOptions)

    @classmethod
    def of(cls, core: TextEngine) -> Self:
        """Return one that runs on a text engine, which is loaded already."""
        llm = cls.__new__(cls)
        llm._core = core
        return llm

    def _load(self, options: LoadOptions) -> Callable[[], None]:
        """Load the model, and return what closes it."""
        check_names(options)  # before the model is looked for
        pipeline = load_pipeline(options, capabilities=METHODS)
        if pipeline is not None:
            self._encoder = EncoderCalls(cast("Encoder", pipeline))
            return self._encoder.close
        self._core = load_text_engine(options)
        return self._core.close

    @property
    def core(self) -> TextEngine:
        """What joins text and engine.

        Raises:
            RequestError: The model is an encoder, which has none.
        """
        if self._encoder is not None:
            raise self._encoder.refusal("generate text")
        assert self._core is not None
        return self._core

    @property
    def _info(self) -> ModelInfo | PipelineInfo:
        return self.core.info if self._encoder is None else self._encoder.info

    def _close(self) -> None:
        """Stop the model, and free the weights and caches."""
        if self._encoder is not None:
            self._encoder.close()
        else:
            self.core.close()

    def __repr__(self) -> str:
        """Name the model and where it runs."""
        return f"<{type(self).__name__} {self._info.name!r} on {self._info.device}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied, as threads are, which an engine has.

        Raises:
            TypeError: Always; the message says what to do instead.
        """
        message = (
            f"{type(self).__name__} cannot be pickled or copied, as it runs in this process: load "
            "the model in each process that uses it, or share one through `blazr serve`"
        )
        raise TypeError(message)

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text to token ids and back."""
        return self.core.tokenizer

    def _to_embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        dimensions: int | None,
        truncation: Truncation | None,
        prompt_name: str | None,
        normalize: bool,
    ) -> Reading[Embedding]:
        """What `LLM.embed` reads, and makes of it."""
        if self._encoder is not None:
            return self._encoder.embed(
                as_prompts(prompts),
                dimensions=dimensions,
                truncation=truncation,
                prompt_name=prompt_name,
                normalize=normalize,
            )
        if prompt_name is not None:
            raise without_prompts()
        requests = embedding_requests(as_prompts(prompts), self.core.info.pooling, truncation)
        return ModelReading(lambda: requests, lambda replies: embeddings(replies, dimensions))

    def _to_score(
        self, pairs: Sequence[tuple[str, str]], truncation: Truncation | None
    ) -> Reading[Score]:
        """What `LLM.score` reads, and makes of it."""
        if self._encoder is not None:
            return self._encoder.score(pairs, truncation=truncation)
        bundle = self.core.bundle
        if bundle is not None and bundle.rank_head is not None:
            return self._to_rank(pairs, bundle.rank_head, truncation)
        requests = embedding_requests(distinct(pairs), self.core.info.pooling, truncation)
        return ModelReading(
            lambda: requests, lambda replies: score_pairs(pairs, unit_vectors(replies))
        )

    def _to_rank(
        self, pairs: Sequence[tuple[str, str]], head: RankHead, truncation: Truncation | None
    ) -> ModelReading[Score]:
        if truncation is not None:
            raise RequestError(
                "this model reads a pair as a question, which cannot be cut.",
                param="truncate_prompt_tokens",
                expected="None",
            )
        return ModelReading(
            lambda: head.requests(pairs, self.core.tokenizer),
            lambda replies: [Score(score=head.score(vector_of(each))) for each in replies],
        )

    def _to_classify(
        self, prompts: PromptInput | Sequence[PromptInput], truncation: Truncation | None
    ) -> EncoderReading[Classification]:
        """What `LLM.classify` reads, and makes of it."""
        if self._encoder is None:
            raise RequestError(
                "this model cannot classify.",
                found="a language model",
                expected="an encoder whose architecture ends in ForSequenceClassification",
            )
        return self._encoder.classify(as_prompts(prompts), truncation=truncation)
