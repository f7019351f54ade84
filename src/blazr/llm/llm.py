"""`LLM`, the synchronous Python API."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, Self, TypeVar, overload

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import (
    Chat,
    GenerationRequest,
    Params,
    Prompt,
    PromptInput,
    Truncation,
    TruncationMode,
    as_chats,
    as_prompt,
    as_token_ids,
    chat_request,
    params_of_each,
    prompt_requests,
)
from blazr.llm.language_model import (
    CHECK_S,
    WHOLE_PAUSE_S,
    LanguageModel,
    ModelReading,
    Reading,
)
from blazr.llm.reply import Reply
from blazr.llm.results import Classification, Completion, Embedding, Score, by_prompt, fold
from blazr.llm.room import RETRY_S
from blazr.llm.vectors import pairs_of
from blazr.text.events import Event, Finished
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class LLM(LanguageModel):
    """A language model: text in, text out; or an encoder. Thread-safe.

    Its arguments are those of `LanguageModel`.
    """

    def events(
        self, requests: Sequence[GenerationRequest], *, pause_s: float = 0.0
    ) -> Generator[Event, None, None]:
        """The events of all replies, as they happen; it raises what `Reply` raises.

        Where the queue is full, it waits for room. Leaving the loop ends the replies.

        Args:
            requests: What to generate.
            pause_s: Seconds that events may wait for later ones; to take many at once costs less.
        """
        arrivals: SimpleQueue[None] = SimpleQueue()  # an Event would cost the engine more
        prepared = [self.core.prepare(each) for each in requests]
        notify = partial(arrivals.put, None)
        reply = Reply(
            self.core.engine,
            self.core.tokenizer,
            prepared,
            notify=notify,
            pause_s=pause_s,
            waits=True,
        )
        try:
            while not reply.is_done:
                try:
                    arrivals.get(timeout=RETRY_S if reply.is_starved else CHECK_S)
                except Empty:
                    self.core.check()
                while not arrivals.empty():  # one call takes all there is
                    arrivals.get()
                yield from reply.take()
        finally:
            reply.abort()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        *,
        sampling_params: Params = None,
        adapter: str | None = None,
        use_tqdm: bool = False,
    ) -> list[Completion]:
        """Continue one prompt or many.

        Args:
            prompts: Text, token ids, or a dictionary with either (``{"prompt": "..."}``,
                ``{"prompt_token_ids": [...]}``).
            params: How to sample, for all prompts or one for each.
            sampling_params: vLLM's name of ``params``.
            adapter: The name of an adapter that changes the model.
            use_tqdm: Show a progress bar on stderr.

        Returns:
            One completion for each prompt, in order; its ``outputs`` are all ``n`` of them.
        """
        requests = prompt_requests(prompts, sampling_params or params, adapter)
        return by_prompt(self._fold(requests, show=use_tqdm), requests)

    def _fold(
        self, requests: Sequence[GenerationRequest], *, show: bool = False
    ) -> list[Completion]:
        # closed whatever happens: the traceback of a Ctrl-C keeps it, and with that what it runs
        with closing(self.events(requests, pause_s=WHOLE_PAUSE_S)) as events:
            return fold(_shown(events, requests) if show else events)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> Iterator[Event]:
        """Continue one prompt, event by event."""
        return self.events(prompt_requests([as_prompt(prompt)], params, adapter))

    @overload
    def chat(
        self,
        messages: Chat,
        params: Params = None,
        *,
        sampling_params: Params = None,
        adapter: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        truncation: TruncationMode = "disabled",
        use_tqdm: bool = False,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Chat],
        params: Params = None,
        *,
        sampling_params: Params = None,
        adapter: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        truncation: TruncationMode = "disabled",
        use_tqdm: bool = False,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Chat | Sequence[Chat],
        params: Params = None,
        *,
        sampling_params: Params = None,
        adapter: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        truncation: TruncationMode = "disabled",
        use_tqdm: bool = False,
    ) -> Completion | list[Completion]:
        """Answer one chat or many.

        Args:
            messages: A chat as a list of messages, or a list of chats.
            params: How to sample, for all chats or one for each.
            sampling_params: vLLM's name of ``params``.
            adapter: The name of an adapter that changes the model.
            tools: Functions that may be called, in OpenAI's shape.
            truncation: ``"auto"`` leaves out the oldest turns of a chat that does not fit; the
                completion's ``num_dropped_messages`` says how many messages.
            use_tqdm: Show a progress bar on stderr.

        Returns:
            The completion, or a list of them for a list of chats.
        """
        chats, is_batch = as_chats(messages)
        wanted = params_of_each(sampling_params or params, len(chats))
        requests = [
            replace(chat_request(*each, tools, truncation), adapter=adapter)
            for each in zip(chats, wanted, strict=True)
        ]
        found = by_prompt(self._fold(requests, show=use_tqdm), requests)
        return found if is_batch else found[0]

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
        prompt_name: str | None = None,
        normalize: bool = False,
    ) -> list[Embedding]:
        """Return each prompt as a vector.

        By a language model it is the mean of its hidden states, or the last one where a GGUF file
        says so, with length 1. By an encoder it is made as the model's files say.

        Args:
            prompts: As `generate` takes them; an encoder reads text alone.
            dimensions: Keep this many numbers of each vector; where vectors have length 1, the
                shorter ones get that length again.
            truncate_prompt_tokens: Tokens that a prompt may have, what is special among them; -1
                is as many as fit. None refuses a prompt that is too long.
            truncation_side: Where tokens go; None is the left.
            prompt_name: Of an encoder's prompts (``config_sentence_transformers.json``), the one
                before each text; None is the model's default.
            normalize: Give vectors length 1 where the encoder does not do so.

        Raises:
            RequestError: The model cannot embed; or a prompt is empty or too long, there are fewer
                dimensions, or there is no such prompt.
        """
        return self._read(
            self._to_embed(
                prompts,
                dimensions=dimensions,
                truncation=Truncation.of_tokens(truncate_prompt_tokens, truncation_side),
                prompt_name=prompt_name,
                normalize=normalize,
            )
        )

    encode = embed

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
    ) -> list[Score]:
        """Return how well pairs of texts fit each other: one with many, or many with as many.

        That is the cosine of their vectors, or what a cross-encoder or a GGUF file of a language
        model that was made to rank (Qwen3-Reranker) says of each pair.

        Args:
            text_1: A text, or as many as there are in ``text_2``.
            text_2: What each is compared with.
            truncate_prompt_tokens: Tokens that a text may have, or a pair that a cross-encoder
                reads; -1 is as many as fit. None refuses what is too long.
            truncation_side: Where tokens go; None is the left.

        Raises:
            RequestError: The texts form no pairs, one is empty or too long, or the model cannot
                score texts.
        """
        pairs = pairs_of(text_1, text_2)
        truncation = Truncation.of_tokens(truncate_prompt_tokens, truncation_side)
        return self._read(self._to_score(pairs, truncation))

    def classify(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        truncate_prompt_tokens: int | None = None,
        truncation_side: Literal["left", "right"] | None = None,
    ) -> list[Classification]:
        """Return the labels of each text, and how likely each is.

        Args:
            prompts: Texts.
            truncate_prompt_tokens: See `embed`.
            truncation_side: See `embed`.

        Raises:
            RequestError: The model is no classifier, or a text is empty or too long.
        """
        truncation = Truncation.of_tokens(truncate_prompt_tokens, truncation_side)
        return self._read(self._to_classify(prompts, truncation))

    def _read(self, reading: Reading[T]) -> list[T]:
        if isinstance(reading, ModelReading):
            return reading.finish(self._fold(reading.requests()))
        assert self._encoder is not None
        return self._encoder.read(reading)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that the model came with, or blazr's own."""
        return SamplingParams().with_defaults(self.core.info.sampling)

    def get_tokenizer(self) -> Tokenizer:
        """Return what turns text to token ids and back; the same as `tokenizer`."""
        return self.tokenizer

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, (T, V) float32."""
        ids = as_token_ids(token_ids)
        return self.core.engine.logits(ids)

    def close(self) -> None:
        """Stop the engine, and free the weights and caches."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _shown(events: Iterator[Event], requests: Sequence[GenerationRequest]) -> Iterator[Event]:
    """The events, while a progress bar counts the replies that have ended."""
    from tqdm import tqdm

    with tqdm(total=sum(each.params.n for each in requests), unit="reply") as bar:
        for event in events:
            bar.update(isinstance(event, Finished))
            yield event
