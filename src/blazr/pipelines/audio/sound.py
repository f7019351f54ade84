"""From the bytes of a sound file, which nobody trusts, to samples of one channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from blazr.core.errors import RequestError, said_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SOUND_S = 7200  # 460 MB as float32 at 16 kHz
EXPECTED = "WAV, FLAC, OGG (Vorbis, Opus), MP3 or AIFF"
# libsndfile reads two dozen formats more, which nobody sends and whose parsers few have tried.
_FORMATS = frozenset({"WAV", "WAVEX", "FLAC", "OGG", "MP3", "AIFF"})
_MAX_CHANNELS = 16
_MIN_RATE, _MAX_RATE = 1000, 384_000
_BLOCK_S = 10


def read_sound(
    data: bytes,
    *,
    rate: int,
    check: Callable[[], None] = lambda: None,
    max_s: float = MAX_SOUND_S,
) -> NDArray[np.float32]:
    """Decode a sound file, mixed to one channel and resampled.

    It is decoded in blocks, so that a small file that stands for hours is refused before it has
    taken the memory of hours, whatever its header says.

    Args:
        data: The file.
        rate: Wanted samples per second.
        check: Called between blocks; what it raises ends the work.
        max_s: Most seconds.

    Returns:
        Samples within -1 and 1, (N,).

    Raises:
        RequestError: It is no sound, damaged, empty, too long, or in another format.
    """
    import soxr

    if not data:
        raise _refusal("the sound file is empty.", "0 bytes")
    parts: list[NDArray[np.float32]] = []
    resampler: soxr.ResampleStream | None = None
    for own_rate, block in _blocks(data, check, max_s):
        if own_rate == rate:
            parts.append(block)
            continue
        resampler = resampler or soxr.ResampleStream(own_rate, rate, 1, dtype="float32")
        parts.append(resampler.resample_chunk(block, last=not len(block)))
    samples = np.concatenate(parts)
    if not len(samples):
        raise _refusal("the sound file holds no sound.", "0 samples")
    return samples


def _blocks(
    data: bytes, check: Callable[[], None], max_s: float
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The sound in blocks of one channel, each with its rate; the last block is empty."""
    import soundfile

    class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
        """Never seeks, which fails after a FLAC that was made as a stream and tells no length."""

        def seekable(self) -> bool:
            return False

    num_frames = 0
    is_last = False
    try:
        with ForwardFile(BytesIO(data)) as file:
            rate = file.samplerate
            _check_form(file.format, rate, file.channels)
            while not is_last:
                check()
                block = file.read(_BLOCK_S * rate, dtype="float32", always_2d=True)
                is_last = not len(block)
                num_frames += len(block)
                _check_length(num_frames / rate, max_s)
                yield rate, np.nan_to_num(block.mean(axis=1), posinf=1, neginf=-1).clip(-1, 1)
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise _refusal("the sound cannot be read.", said_by(error)[-100:]) from error


def _check_length(seconds: float, max_s: float) -> None:
    if seconds > max_s:
        found = f"more than {max_s / 60:g} minutes"
        raise _refusal("the sound is too long.", found, "it in shorter parts")


def _check_form(form: str, rate: int, channels: int) -> None:
    if form not in _FORMATS:
        raise _refusal("the sound is in another format.", form)
    if not (_MIN_RATE <= rate <= _MAX_RATE and 0 < channels <= _MAX_CHANNELS):
        raise _refusal(
            "the sound has an odd form.",
            f"{rate} samples per second, {channels} channels",
            f"{_MIN_RATE} to {_MAX_RATE} samples, at most {_MAX_CHANNELS} channels",
        )


def _refusal(message: str, found: str, expected: str = EXPECTED) -> RequestError:
    return RequestError(message, param="file", found=found, expected=expected)
