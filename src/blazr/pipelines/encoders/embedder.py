"""`Embedder`: an encoder whose hidden states become one vector for each text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.pipelines.encoders.encoder import Encoder
from blazr.pipelines.encoders.gguf import gguf_modules
from blazr.pipelines.encoders.modules import Modules, read_modules
from blazr.pipelines.encoders.request import ReadRequest, first_numbers, unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

# Of the prompts of sentence-transformers' models, those for what is looked for, and in what.
_ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}


class Embedder(Encoder):
    """A model that makes vectors of texts."""

    auto: ClassVar[str] = "AutoModel"
    output: ClassVar[str] = "last_hidden_state"
    unused: ClassVar[tuple[str, ...]] = ("pooler.",)  # models trained to fill gaps have none

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, and what follows the network."""
        super().prepare(checkpoint)
        self._modules: Modules = (
            gguf_modules(checkpoint) if checkpoint.metadata else read_modules(checkpoint.directory)
        )
        for dense in self._modules.dense:
            dense.to(self.device, self.dtype)
        self.max_tokens = min(self.max_tokens, self._modules.max_tokens or self.max_tokens)

    @property
    @override
    def vector_size(self) -> int:
        size = getattr(self.network.config, "hidden_size", 0)
        states = torch.zeros(1, 1, size, device=self.device, dtype=self.dtype)
        mask = torch.ones(1, 1, dtype=torch.long, device=self.device)
        with torch.inference_mode():
            return self.finish(states, mask, num_hidden=0).shape[1] if size else 0

    @property
    def pooling(self) -> str:
        """How it makes a vector of hidden states; see `Modules.pooling`."""
        return self._modules.pooling

    @property
    def normalizes(self) -> bool:
        """Whether its vectors have length 1."""
        return self._modules.normalizes

    def prompt_of(self, request: ReadRequest) -> str:
        """The model's prompt of the wanted name, or for the role; else its default."""
        known = self._modules.prompts
        name = request.prompt_name
        if name is None and request.role is not None:
            name = next((each for each in _ROLES[request.role] if each in known), None)
        name = name or self._modules.default_prompt
        if name is None:
            return ""
        if name not in known:
            raise RequestError(
                "the model has no such prompt.",
                param="prompt_name",
                found=repr(name[:50]),
                expected=", ".join(known)[:200] or "none",
            )
        return known[name]

    def clean(self, text: str) -> str:
        """A text, in small letters where the model wants it."""
        return text.lower() if self._modules.lowers else text

    def finish(self, out: Tensor, mask: Tensor, num_hidden: int) -> Tensor:
        """Vectors, (B, C)."""
        if not self._modules.pools_prompt and num_hidden:
            mask = mask.clone()
            mask[:, :num_hidden] = 0
        vectors = self._modules.pool(out, mask)
        for dense in self._modules.dense:
            vectors = dense(vectors)
        if self._modules.normalizes:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors

    def shorten(self, vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
        """Keep the first numbers of vectors [Kusupati et al., 2022, Matryoshka].

        Those of a model whose vectors have length 1 get that length again.

        Raises:
            RequestError: There are fewer.
        """
        found = first_numbers(vectors, dimensions)
        return unit(found) if self.normalizes and dimensions is not None else found
