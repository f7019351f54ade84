"""Sound as the bytes of a file, made at once or as it comes."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PCM_RATE = 24_000  # as OpenAI has it
MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "mp3": "audio/mpeg",
}
_FORMS = {"flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS"), "mp3": ("MP3", "MPEG_LAYER_III")}
_OPUS_RATES = (8000, 12_000, 16_000, 24_000, 48_000)
_MP3_RATES = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_UNKNOWN = 0xFFFFFFFF


class SoundEncoder:
    """Encodes sound that comes in parts.

    Args:
        form: ``wav``, ``pcm``, ``flac``, ``opus`` or ``mp3``; pcm is of 16 bits at 24 kHz.
        rate: Samples per second of what comes.
    """

    def __init__(self, form: str, rate: int) -> None:
        import soundfile
        import soxr

        self._form = form
        own = {"pcm": (PCM_RATE,), "opus": _OPUS_RATES, "mp3": _MP3_RATES}.get(form, (rate,))
        # the next rate above, which loses nothing
        self._rate = next((each for each in own if each >= rate), own[-1])
        self._resampler = (
            None
            if self._rate == rate
            else soxr.ResampleStream(rate, self._rate, 1, dtype="float32")
        )
        self._buffer = BytesIO()
        self._sent = 0
        self._has_begun = False
        self._file = None
        if form in _FORMS:
            kind, subtype = _FORMS[form]
            self._file = soundfile.SoundFile(
                self._buffer, "w", self._rate, 1, format=kind, subtype=subtype
            )

    def push(self, samples: NDArray[np.float32], *, is_last: bool = False) -> bytes:
        """Encode more; some of it may come with a later part."""
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=is_last)
        if self._file is None:
            # loud sound overshoots where it is resampled, and integers would wrap around
            data = (samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes()
            head = b"" if self._has_begun or self._form == "pcm" else wav_header(self._rate)
            self._has_begun = True
            return head + data
        if len(samples):
            self._file.write(samples)
        if is_last:
            self._file.close()
        elif self._form in {"flac", "mp3"}:  # their headers tell of the length
            return b""
        data = self._buffer.getvalue()[self._sent :]
        self._sent += len(data)
        return data

    def whole(self, samples: NDArray[np.float32]) -> bytes:
        """Encode everything: headers then tell of its length."""
        data = self.push(samples, is_last=True)
        if self._form == "wav":
            head = wav_header(self._rate, len(data) - len(wav_header(self._rate)))
            return head + data[len(head) :]
        return data if self._file is None else self._buffer.getvalue()


def wav_header(rate: int, num_bytes: int = _UNKNOWN) -> bytes:
    """The header of a WAV file of 16 bits and one channel; of unknown length by default."""
    whole = _UNKNOWN if num_bytes == _UNKNOWN else num_bytes + 36
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", whole, b"WAVE")
        + form
        + struct.pack("<4sI", b"data", num_bytes)
    )
