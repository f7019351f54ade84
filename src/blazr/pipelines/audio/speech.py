"""What is to be said, and the sound that comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A text to say.

    Args:
        text: The text.
        voice: The name of one of the model's voices, or its number from 0 on; one of OpenAI's names
            stands for the first.
        speed: 1 is that of the model.
        seed: Of what is drawn at random; the same gives the same sound.
    """

    text: str
    voice: str = "0"
    speed: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SoundMade:
    """More sound: samples within -1 and 1, (N,), and how many make a second."""

    samples: NDArray[np.float32]
    rate: int
