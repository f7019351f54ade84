"""Sounds to what a language model reads in their place."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.pipelines.audio.sound import read_sound
from blazr.pipelines.media import MediaTokens
from blazr.pipelines.tower_encoder import EncoderParts, TowerEncoder

RATE = 16_000  # samples per second, of all of the library's encoders
MAX_SOUND_S = 600


class AudioEncoder(TowerEncoder):
    """The audio encoder of a model."""

    medium: ClassVar = "audio"
    noun: ClassVar = "a sound"
    auto: ClassVar = "AutoModelForSeq2SeqLM"
    extra: ClassVar = "audio"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "soundfile", "soxr")

    @override
    def _open(self, data: bytes) -> tuple[Any, str]:
        try:
            samples = read_sound(data, rate=RATE, max_s=MAX_SOUND_S)
        except RequestError as error:
            error.param = "messages"
            raise
        return samples, f"{len(samples) / RATE:.2f} seconds"

    @override
    @torch.inference_mode()
    def _run(self, parts: EncoderParts, opened: Any, digest: bytes, num_copies: int) -> MediaTokens:
        samples, processor = opened, parts.processor
        extractor = processor.feature_extractor
        longest = getattr(processor, "max_audio_len", extractor.chunk_length)
        if len(samples) > longest * RATE:
            raise RequestError(
                "a sound is too long for this model.",
                param="messages",
                found=f"{len(samples) / RATE:.1f} seconds",
                expected=f"at most {longest}",
                hint="send it in parts",
            )
        batch = processor(
            text=[processor.audio_token],
            audio=[samples],
            sampling_rate=RATE,
            add_special_tokens=False,
            return_tensors="pt",
        )
        token_ids: list[int] = batch["input_ids"][0].tolist()
        # Not every network has a method for its vectors, but each hands them to its language model.
        network = parts.tower.model
        network.language_model = _Reader()
        network.get_input_embeddings = lambda: self._no_embeddings
        wanted = signature(network.forward).parameters.keys() - {"attention_mask"}
        inputs = {name: each for name, each in batch.items() if name in wanted}
        found: Tensor = network(**self._placed(inputs)).last_hidden_state[0]
        vectors = found[torch.tensor(token_ids) == parts.token_id] * parts.scale
        return self._tokens_of(parts, token_ids, vectors[None], digest)

    def _no_embeddings(self, token_ids: Tensor) -> Tensor:
        """Zeros in the place of embeddings, (B, T, C)."""
        size = self._hidden_size
        return torch.zeros(*token_ids.shape, size, dtype=self._dtype, device=self._device)


class _Reader(nn.Module):
    """Stands in for a language model, and gives back what that would read."""

    def forward(self, inputs_embeds: Tensor, **_: object) -> SimpleNamespace:
        """As the library's models answer."""
        return SimpleNamespace(
            last_hidden_state=inputs_embeds, cache=None, hidden_states=None, attentions=None
        )
