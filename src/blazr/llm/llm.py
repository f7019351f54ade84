"""The synchronous face of the Python API."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.face import CHECK_S, RETRY_S, ModelFace
from blazr.llm.generation import (
    GenerationRequest,
    Prompt,
    TruncationMode,
    chat_request,
    prompt_requests,
)
from blazr.llm.reply import Reply
from blazr.llm.results import Completion, fold
from blazr.text.events import Event
from blazr.text.messages import Message

if TYPE_CHECKING:
    from torch import Tensor


class LLM(ModelFace):
    """A language model: text in, text out. Thread-safe. Its arguments are those of `ModelFace`."""

    def events(self, requests: Sequence[GenerationRequest]) -> Iterator[Event]:
        """The events of all replies, as they happen; it raises what `Reply` raises.

        Leaving the loop ends the replies.
        """
        wake = threading.Event()
        prepared = [self.core.prepare(each) for each in requests]
        reply = Reply(self.core.engine, self.core.tokenizer, prepared, notify=wake.set)
        try:
            while not reply.is_done:
                if not wake.wait(RETRY_S if reply.is_starved else CHECK_S):
                    self.core.check()
                wake.clear()
                yield from reply.take()
        finally:
            reply.abort()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Continue one prompt or many (text or token ids); ``n`` completions to each, in order."""
        return fold(self.events(prompt_requests(prompts, params)))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Event]:
        """Continue one prompt, event by event."""
        return self.events(prompt_requests([prompt], params))

    def chat(
        self,
        messages: Sequence[Message | Mapping[str, object]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        truncation: TruncationMode = "disabled",
    ) -> Completion:
        """Answer a chat; the first of ``n`` answers.

        ``truncation="auto"`` leaves out the oldest turns of a chat that does not fit the context;
        the completion's ``num_dropped_messages`` says how many messages.
        """
        return fold(self.events([chat_request(messages, params, tools, truncation)]))[0]

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each token, (T, V) float32."""
        return self.core.engine.logits(token_ids)

    def close(self) -> None:
        """Stop the engine."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
