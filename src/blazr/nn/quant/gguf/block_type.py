"""One way of storing a run of numbers in a run of bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Elements decoded at a time: what a product needs besides the weight is a few times this.
TILE = 2**18


@dataclass(frozen=True, slots=True)
class BlockType:
    """A GGML type.

    Args:
        name: As llama.cpp spells it, for example ``"Q4_K"``.
        number: Its number in GGUF files.
        length: Elements in a block.
        nbytes: Bytes of a block.
        target: ``"module:function"`` of its decoder.
    """

    name: str
    number: int
    length: int
    nbytes: int
    target: str

    @property
    def is_packed(self) -> bool:
        """Whether several numbers share a block."""
        return self.length > 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of so many elements, a multiple of ``length``."""
        return columns // self.length * self.nbytes

    @property
    def decoder(self) -> Callable[[Tensor], Tensor]:
        """From (N, nbytes) uint8 to (N, length) float32."""
        module, _, name = self.target.partition(":")
        decoder: Callable[[Tensor], Tensor] = getattr(import_module(module), name)
        return decoder

    def decode(self, data: Tensor) -> Tensor:
        """The numbers in rows of blocks.

        Args:
            data: (..., B * nbytes), uint8.

        Returns:
            (..., B * length), float32.
        """
        rows = data.shape[:-1]
        return self.decoder(data.reshape(-1, self.nbytes)).reshape(*rows, -1)
