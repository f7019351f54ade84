"""blazr in Ray Data: generates for each row of a dataset.

    dataset.map_batches(
        Processor, fn_constructor_kwargs={"model": "path/to/model"}, batch_size=64, concurrency=2
    )

Ray starts an actor with a model of its own for each of ``concurrency``, sends it batches of rows,
and keeps what it returns; a batch that an actor was lost with is given to another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, chat_request, prompt_requests
from blazr.llm.llm import LLM
from blazr.llm.results import Completion, Usage, by_prompt, fold

Columns = dict[str, Any]


class Processor:
    """Generates for batches of rows.

    A row has ``prompt``, a text, or ``messages``, a chat as OpenAI has it; and ``sampling_params``,
    a mapping, if it is not to be answered as all are. To its columns are added ``generated_text``,
    ``finish_reason``, ``num_input_tokens``, ``num_generated_tokens`` (int64) and ``error``, as
    Ray's own processors name them. ``error`` is empty but where the request or the reply failed;
    the other rows of the batch are answered all the same.

    Args:
        model: A directory, a file or a name, as `LLM` takes it.
        sampling_params: How to sample, for rows that do not say so themselves.
        **options: More of what `LLM` takes.

    Raises:
        ConfigError: The model cannot be loaded so.
        RequestError: ``sampling_params`` are not of `SamplingParams`.
    """

    def __init__(
        self, model: str, sampling_params: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self._params = dict(sampling_params or {})
        _params_of(self._params)
        self._llm = LLM(model, **options)

    def __call__(self, batch: Columns) -> Columns:
        """Answer the rows of a batch.

        Args:
            batch: Columns by name, each an array of one value for each row.

        Returns:
            The same columns, and what is added.

        Raises:
            RequestError: There is no column ``prompt`` or ``messages``.
        """
        name = next((name for name in ("messages", "prompt") if name in batch), None)
        if name is None:
            raise RequestError(
                f"a row has {', '.join(sorted(batch)) or 'no columns'}.",
                param="prompt",
                hint="give rows a column 'prompt' or 'messages', by dataset.map or rename_columns",
            )
        count = len(batch[name])
        given = batch.get("sampling_params", [None] * count)
        answers: list[Columns] = [{}] * count
        requests: dict[int, GenerationRequest] = {}
        for i, (asked, params) in enumerate(zip(batch[name], given, strict=True)):
            try:
                requests[i] = self._request(name, _plain(asked), _plain(params))
            except RequestError as error:
                answers[i] = _answer(error=str(error))
        valid = list(requests.values())
        found = by_prompt(fold(self._llm.events(valid)), valid) if valid else []
        for i, completion in zip(requests, found, strict=True):
            answers[i] = _answer(completion)
        return batch | {key: np.array([each[key] for each in answers]) for key in _answer()}

    def close(self) -> None:
        """Let go of the model."""
        self._llm.close()

    def _request(self, name: str, asked: Any, params: Any) -> GenerationRequest:
        wanted = _params_of(self._params | (params or {}))
        if name == "messages":
            request = chat_request(asked, wanted, tools=None)
        else:
            (request,) = prompt_requests([asked], wanted)
        self._llm.core.prepare(request)  # which refuses what cannot be answered
        return request


def _answer(completion: Completion | None = None, error: str = "") -> Columns:
    """What is added to a row."""
    usage = completion.usage if completion else Usage()
    return {
        "generated_text": completion.text if completion else "",
        "finish_reason": completion.finish_reason if completion else "error",
        "num_input_tokens": usage.prompt_tokens,
        "num_generated_tokens": usage.completion_tokens,
        "error": (completion.error or "") if completion else error,
    }


def _params_of(given: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**given)
    except TypeError as error:
        raise RequestError(
            "sampling_params are unknown.",
            param="sampling_params",
            found=str(error)[:200],
            expected="the arguments of SamplingParams",
        ) from error


def _plain(value: Any) -> Any:
    """Lists where Ray has arrays."""
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return value.item() if isinstance(value, np.generic) else value
