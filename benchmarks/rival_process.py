"""Other engines in a process of their own, where blazr's is not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from blazr.core.errors import EngineError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_BATCH = 512


@dataclass(frozen=True, slots=True)
class Job:
    """What to run.

    Args:
        prompts: Token ids, one sequence each.
        output_tokens: To decode greedily; 1 measures the prompts alone.
    """

    prompts: Sequence[Sequence[int]]
    output_tokens: int


def serve(pipe: Connection, rival: str, path: str, **sizes: int) -> None:
    """Load a model, say 0.0, then answer each `Job` with its tokens per second, or a message."""
    try:
        model = _ENGINES[rival](path, **sizes)
    except (OSError, EngineError, ValueError) as error:
        pipe.send(f"it does not load: {error}")
        return
    pipe.send(0.0)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(model.run(job))
        except EngineError as error:
            pipe.send(str(error))


class _LlamaCpp:
    """A model and a context of llama.cpp."""

    def __init__(self, path: str, *, threads: int, context: int, streams: int) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        if not model:
            raise EngineError("llama.cpp cannot read the file.")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context * streams
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_seq_max = streams
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama_cpp.llama_init_from_model(model, settings)
        if not self._context:
            raise EngineError("llama.cpp has no memory for its caches.")
        self._size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def run(self, job: Job) -> float:
        """Tokens per second, as `benchmarks.rival.Side` has them."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), 1)
        started = perf_counter()
        tokens = [self._prefill(ids, stream) for stream, ids in enumerate(job.prompts)]
        if job.output_tokens == 1:
            return sum(map(len, job.prompts)) / (perf_counter() - started)
        started = perf_counter()
        for step in range(job.output_tokens - 1):
            rows = [
                (token, len(ids) + step, stream)
                for stream, (token, ids) in enumerate(zip(tokens, job.prompts, strict=True))
            ]
            self._decode(rows, logits=range(len(rows)))
            tokens = [self._greedy(row) for row in range(len(rows))]
        return len(tokens) * (job.output_tokens - 1) / (perf_counter() - started)

    def _prefill(self, ids: Sequence[int], stream: int) -> int:
        for low in range(0, len(ids), _BATCH):
            part = ids[low : low + _BATCH]
            rows = [(token, low + place, stream) for place, token in enumerate(part)]
            self._decode(rows, logits=[len(rows) - 1])
        return self._greedy(len(rows) - 1)

    def _decode(self, rows: Sequence[tuple[int, int, int]], *, logits: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, stream) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, stream
            batch.logits[index] = index in logits
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise EngineError("llama_decode failed.", found=str(status))

    def _greedy(self, row: int) -> int:
        import numpy as np

        scores = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(scores, (self._size,)).argmax())


class _Transformers:
    """A model of the transformers library, in the dtype of its files.

    Sequences are of one length, so a batch needs no padding.
    """

    def __init__(self, path: str, *, threads: int, context: int, streams: int) -> None:  # noqa: ARG002
        import torch
        import transformers

        from blazr.pipelines.padded import cache_name

        torch.set_num_threads(threads)
        self._torch = torch
        auto = transformers.AutoModelForCausalLM
        model: Any = auto.from_pretrained(path, dtype="auto", local_files_only=True)
        self._model = model.eval()
        self._cache_name = cache_name(model)

    def run(self, job: Job) -> float:
        """Tokens per second."""
        torch = self._torch
        with torch.inference_mode():
            started = perf_counter()
            out = self._step(torch.tensor(job.prompts), None)
            if job.output_tokens == 1:
                return sum(map(len, job.prompts)) / (perf_counter() - started)
            started = perf_counter()
            for _ in range(job.output_tokens - 1):
                out = self._step(out.logits[:, -1].argmax(-1, keepdim=True), out[self._cache_name])
            return len(job.prompts) * (job.output_tokens - 1) / (perf_counter() - started)

    def _step(self, ids: Any, cache: Any) -> Any:
        out = self._model(ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
        if out.get(self._cache_name) is None:
            raise EngineError("transformers gave no cache.")
        return out


_ENGINES: dict[str, Callable[..., _LlamaCpp | _Transformers]] = {
    "llama.cpp": _LlamaCpp,
    "transformers": _Transformers,
}
