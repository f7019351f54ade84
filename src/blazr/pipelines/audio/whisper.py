"""Whisper, as transformers has it."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from blazr.core.errors import RequestError
from blazr.pipelines.audio.observer import INCOMPLETE, GenerationObserver
from blazr.pipelines.audio.transcriber import Transcriber, Window
from blazr.pipelines.audio.transcript import (
    LanguageFound,
    Segment,
    TranscriptEvent,
    TranscriptionRequest,
    Word,
)
from blazr.pipelines.audio.voice_activity import RATE
from blazr.pipelines.network import generation_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blazr.models.checkpoint.base import Checkpoint

_log = logging.getLogger(__name__)

# Languages that put no space between words.
_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_NAMED = 5


class Whisper(Transcriber):
    """Whisper and its relatives (Distil-Whisper, fine-tuned ones)."""

    auto: ClassVar[str] = "AutoModelForSpeechSeq2Seq"

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the processor, and how the model generates."""
        from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

        super().prepare(checkpoint)
        config: Any = generation_config(self.network, checkpoint.directory)
        self.network.generation_config = config
        own: Mapping[str, int] = getattr(config, "lang_to_id", None) or {}
        self._codes = {token_id: name.strip("<|>") for name, token_id in own.items()}
        known = frozenset(self._codes.values())
        self._names: Mapping[str, str] = {
            code: LANGUAGES.get(code, code) for code in self._codes.values()
        }
        self._by_name = {name: code for name, code in TO_LANGUAGE_CODE.items() if code in known}
        self._is_multilingual = bool(getattr(config, "is_multilingual", True)) and bool(own)
        first = getattr(config, "no_timestamps_token_id", None)
        self._first_time_id = None if first is None else first + 1
        if getattr(config, "alignment_heads", None) is None:
            # as OpenAI's code has it where none are known: all heads of the upper layers
            layers = self.network.config.decoder_layers
            heads = range(self.network.config.decoder_attention_heads)
            config.alignment_heads = [
                [layer, head] for layer in range(layers // 2, layers) for head in heads
            ]

    def check_request(self, request: TranscriptionRequest) -> None:
        """Refuse a language that the model does not know, and times that it cannot tell."""
        self._code_of(request.language)
        if request.task == "translate" and not self._is_multilingual:
            raise RequestError("this model hears English alone, and translates nothing.")
        if (request.has_segments or request.has_words) and self._first_time_id is None:
            raise RequestError("this model tells no times.", param="timestamp_granularities")
        if request.prompt:
            self._prompt_ids(request.prompt)

    def begin(
        self, request: TranscriptionRequest, first: NDArray[np.float32]
    ) -> tuple[TranscriptionRequest, Sequence[TranscriptEvent]]:
        """Find out which language is spoken."""
        code = self._code_of(request.language)
        if not self._is_multilingual:
            return request, [LanguageFound("english")]
        if code is None:
            with torch.inference_mode():
                found = self.network.detect_language(self.features(first)["input_features"])
            code = self._codes[int(found[0])]
        return replace(request, language=code), [LanguageFound(self._names[code])]

    @torch.inference_mode()
    def transcribe_window(self, window: Window) -> list[Segment]:
        """Write down a window."""
        request = window.request
        has_times = request.has_segments or request.has_words
        observer = GenerationObserver(
            window.check, lambda ids: None if has_times else self._text(ids)
        )
        observer.say = window.say
        options: dict[str, Any] = {}
        if self._is_multilingual:
            options |= {"language": request.language, "task": request.task}
        if request.prompt:
            options["prompt_ids"] = self._prompt_ids(request.prompt)
        if request.has_words:
            options["return_token_timestamps"] = True
        found = self.network.generate(
            **self.features(window.samples, return_attention_mask=True),
            **options,
            temperature=request.temperature,
            logits_processor=[observer],
            return_timestamps=has_times,
            return_segments=True,
        )
        parts = found["segments"][0]
        if has_times:
            segments = [self._segment(part, window) for part in parts]
        else:
            token_ids = [int(each) for part in parts for each in part["tokens"]]
            end = len(window.samples) / RATE
            text = self._text(token_ids)
            text = text if text.startswith(observer.said) else observer.said
            segments = [Segment(start=0.0, end=end, text=text, token_ids=tuple(token_ids))]
        written = "".join(each.text for each in segments)
        if written.startswith(observer.said):
            window.say(written[len(observer.said) :])
        return [replace(each, avg_logprob=observer.mean_logprob()) for each in segments]

    def _segment(self, part: Mapping[str, Any], window: Window) -> Segment:
        length_s = len(window.samples) / RATE
        token_ids = [int(each) for each in part["tokens"]]
        start, end = (min(max(float(part[name]), 0.0), length_s) for name in ("start", "end"))
        words: tuple[Word, ...] = ()
        if window.request.has_words:
            ends = [min(max(float(each), start), length_s) for each in part["token_timestamps"]]
            words = tuple(self._words(token_ids, [start, *ends], window.request.language))
        text = self._text(token_ids)
        return Segment(start=start, end=end, text=text, token_ids=tuple(token_ids), words=words)

    def _words(
        self, token_ids: Sequence[int], times: Sequence[float], language: str | None
    ) -> Iterator[Word]:
        """The words of some tokens.

        Args:
            token_ids: The tokens.
            times: When each begins, and when the last one ends.
            language: Which says where a word ends.
        """
        pending: list[int] = []
        pieces: list[Word] = []
        began = times[0]
        for index, token_id in enumerate(token_ids):
            began = began if pending else times[index]
            pending.append(token_id)
            text = self._text(pending)
            if not text.endswith(INCOMPLETE):
                pieces.append(Word(text, began, times[index + 1]))
                pending = []
        if pending:
            pieces.append(Word(self._text(pending), began, times[len(token_ids)]))
        yield from words_of(
            [each for each in pieces if each.text], has_spaces=language not in _WITHOUT_SPACES
        )

    def _prompt_ids(self, prompt: str) -> Tensor:
        most = self.network.config.max_target_positions // 2 - 1
        try:
            found: Tensor = self.processor.get_prompt_ids(prompt, return_tensors="pt")
        except ValueError as error:
            raise RequestError(
                "the prompt holds special tokens.", param="prompt", found=str(error)[:100]
            ) from error
        # its end alone, as Whisper does itself; the first id says that it is a prompt
        kept = torch.cat([found[:1], found[1:][-(most - 1) :]])
        return kept.to(self.device)

    def _code_of(self, language: str | None) -> str | None:
        """The code of a language; None where it is to be found out, or there is only English.

        Raises:
            RequestError: The model does not know it.
        """
        if not language:
            return None
        name = language.lower().strip()
        code = self._by_name.get(name, name.partition("-")[0])
        if not self._is_multilingual and code in {"en", "english"}:
            return None
        if code not in self._names:
            some = ", ".join(list(self._names)[:_NAMED]) or "en"
            raise RequestError(
                "this model does not know the language.",
                param="language",
                found=repr(language)[:50],
                expected=f"a code, such as {some}",
            )
        return code

    def _text(self, token_ids: Sequence[int]) -> str:
        first = self._first_time_id
        own = [each for each in token_ids if first is None or each < first]
        text: str = self.processor.tokenizer.decode(
            own, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def words_of(pieces: Sequence[Word], *, has_spaces: bool) -> Iterator[Word]:
    """Words of pieces of words; punctuation belongs to the word before it.

    Args:
        pieces: In their order, each of whole characters.
        has_spaces: Whether a word begins with a space; otherwise each piece is one.
    """
    word: Word | None = None
    for piece in pieces:
        begins = piece.text[0].isspace() if has_spaces else not _is_punctuation(piece.text)
        if word is not None and not begins:
            word = Word(word.text + piece.text, word.start, max(word.end, piece.end))
            continue
        if word is not None and word.text.strip():
            yield replace(word, text=word.text.strip())
        word = piece
    if word is not None and word.text.strip():
        yield replace(word, text=word.text.strip())


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(each)[0] == "P" or each.isspace() for each in text)
