"""Where in a recording somebody speaks: the network Silero VAD, and the marks made of it.

The network hears 32 ms at a time and says how likely that is speech
[https://github.com/snakers4/silero-vad]. Its weights lie in ``blazr/data/silero-vad``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 16_000
FRAME = 512  # samples of which one probability tells
_CONTEXT = 64  # samples before a frame that are heard with it
_PADDING = 64  # samples after it, mirrored
_HOP = 128
_NUM_FREQUENCIES = 129
_STRIDES = (1, 2, 2, 1)
_SIZE = 128
_FRAMES_AT_ONCE = 2048


class Span(NamedTuple):
    """A part of a recording: its first sample, and the first one after it."""

    start: int
    end: int


class VoiceActivity:
    """The network, loaded."""

    def __init__(self) -> None:
        place = files("blazr") / "data" / "silero-vad" / "silero_vad_16k.safetensors"
        self._weights = load(place.read_bytes())
        self._lstm = torch.nn.LSTM(_SIZE, _SIZE)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own = {f"{name}_l0": self._weights[f"lstm_cell.{name}"] for name in names}
        self._lstm.load_state_dict(own)

    @torch.inference_mode()
    def probabilities(
        self, samples: NDArray[np.float32], check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float32]:
        """How likely each frame is speech.

        Args:
            samples: At `RATE`, (N,).
            check: Called now and then; what it raises ends the work.

        Returns:
            (N / `FRAME`,), rounded up; the end of the last frame is silence.
        """
        missing = -len(samples) % FRAME
        sound = F.pad(torch.from_numpy(samples), (_CONTEXT, missing))
        frames = sound.unfold(0, _CONTEXT + FRAME, FRAME)  # (frames, samples)
        found = []
        state: tuple[Tensor, Tensor] | None = None
        for part in frames.split(_FRAMES_AT_ONCE):
            check()
            hidden, state = self._lstm(self._features(part), state)
            speech = F.conv1d(
                hidden.relu()[:, :, None],
                self._weights["final_conv.weight"],
                self._weights["final_conv.bias"],
            )
            found.append(speech.sigmoid().flatten())
        return torch.cat(found).numpy() if found else np.zeros(0, np.float32)

    def _features(self, frames: Tensor) -> Tensor:
        """What the recurrent layer hears of some frames, (frames, features)."""
        padded = F.pad(frames[:, None], (0, _PADDING), mode="reflect")
        waves = F.conv1d(padded, self._weights["stft_conv.weight"], stride=_HOP)
        real, imaginary = waves[:, :_NUM_FREQUENCIES], waves[:, _NUM_FREQUENCIES:]
        x = (real.square() + imaginary.square()).sqrt()
        for index, stride in enumerate(_STRIDES, start=1):
            weight = self._weights[f"conv{index}.weight"]
            bias = self._weights[f"conv{index}.bias"]
            x = F.conv1d(x, weight, bias, stride=stride, padding=1).relu()
        return x.squeeze(-1)


def speech_marks(
    probabilities: Sequence[float] | NDArray[np.float32],
    num_samples: int,
    *,
    threshold: float = 0.5,
    min_speech_s: float = 0.25,
    min_silence_s: float = 0.1,
    pad_s: float = 0.03,
) -> list[Span]:
    """Where somebody speaks, as Silero's ``get_speech_timestamps`` marks it.

    Speech begins with a frame above the threshold, and ends where frames stay below a lower one.

    Args:
        probabilities: Of each frame.
        num_samples: Of the recording.
        threshold: From which probability on a frame is speech.
        min_speech_s: What is shorter is none.
        min_silence_s: A pause that is shorter is none.
        pad_s: Put before and after each; a pause that is too short for that is shared.

    Returns:
        Spans in their order, which do not overlap.
    """
    found = [
        span
        for span in _runs(probabilities, num_samples, threshold, min_silence_s * RATE)
        if span.end - span.start > min_speech_s * RATE
    ]
    return widened(found, int(pad_s * RATE), num_samples)


def widened(spans: Sequence[Span], margin: int, num_samples: int) -> list[Span]:
    """Spans with more before and after each; a pause that is too short for that is shared.

    Args:
        spans: In their order, without overlap.
        margin: Samples that are added on each side.
        num_samples: Of the recording.
    """
    starts = [max(0, each.start - margin) for each in spans]
    ends = [min(num_samples, each.end + margin) for each in spans]
    for index, (one, other) in enumerate(pairwise(spans)):
        middle = (one.end + other.start) // 2
        ends[index] = min(ends[index], middle)
        starts[index + 1] = max(starts[index + 1], middle)
    return [Span(start, end) for start, end in zip(starts, ends, strict=True)]


def _runs(
    probabilities: Sequence[float] | NDArray[np.float32],
    num_samples: int,
    threshold: float,
    min_silence: float,
) -> Iterator[Span]:
    """Runs of speech, each up to a pause of at least ``min_silence`` samples."""
    low = max(threshold - 0.15, 0.01)
    start: int | None = None
    pause: int | None = None  # where the present pause began
    for index, probability in enumerate(probabilities):
        here = index * FRAME
        if probability >= threshold:
            pause = None
            start = here if start is None else start
        elif probability < low and start is not None:
            pause = here if pause is None else pause
            if here - pause >= min_silence:
                yield Span(start, pause)
                start = pause = None
    if start is not None:
        yield Span(start, num_samples)
