"""A second network that a model needs and another repository holds: a vocoder, a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.open import open_checkpoint
from blazr.pipelines.network import network_from

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Where a second network lies, and which it is.

    Args:
        inside: The name of its folder in the model's directory, and of it in the model's network.
        beside: The name of its folder beside that directory.
        network: The class of transformers.
    """

    inside: str
    beside: str
    network: str

    def read(self, directory: Path, dtype: str) -> nn.Module:
        """Read the network that belongs to a model.

        Args:
            directory: Where the model lies.
            dtype: What to compute in; ``auto`` is the checkpoint's.

        Raises:
            CheckpointError: It is not there, or not whole.
        """
        places = (directory / self.inside, directory.absolute().parent / self.beside)
        place = next((each for each in places if each.is_dir()), None)
        if place is None:
            raise CheckpointError(
                f"the {self.inside} of this model is missing.",
                found="neither folder",
                expected=f"a folder {self.inside!r} in {directory.name!r}, or {self.beside!r}"
                f" beside it, that save_pretrained of {self.network} has written",
                hint="fetch it, and save it there",
            )
        return network_from(open_checkpoint(place), self.network, dtype=dtype)
