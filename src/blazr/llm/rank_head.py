"""`RankHead`: how a language model in a GGUF file scores documents, where it was made for that.

llama.cpp's converter stores of Qwen3-Reranker a matrix for the words that answer, "yes" first, and
the question as a template of its own.

Source: GitHub ggml-org/llama.cpp, ``conversion/qwen.py``, ``src/llama-graph.cpp`` (build_pooling).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blazr.llm.generation import GenerationRequest
from blazr.llm.vectors import ONLY_READ
from blazr.text.tokenizer import Tokenizer, longest_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blazr.models.loading.load import LoadedModel
    from blazr.pipelines.fallback import FallbackModel

_WEIGHT = "cls.output.weight"
_TEMPLATE = "tokenizer.chat_template.rerank"
_FIELDS = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True, slots=True)
class RankHead:
    """What makes a score of the last hidden state of a question.

    Args:
        weight: A row for each answer, the first of which says that the document fits, (L, C)
            float32.
        template: The question, with ``{query}`` and ``{document}`` in it.
    """

    weight: NDArray[np.float32]
    template: str

    def requests(
        self, pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer
    ) -> list[GenerationRequest]:
        """A request for the last hidden state of each question.

        Special tokens that the template spells stand for themselves; those in a text do not.
        """
        special_ids = tokenizer.special_ids
        pieces = longest_of(special_ids).split(self.template)
        found = []
        for query, document in pairs:
            texts = {"query": query, "document": document}
            parts: list[str | int] = []
            for place, piece in enumerate(pieces):
                if place % 2:
                    parts.append(special_ids[piece])
                elif piece:
                    parts.append(_FIELDS.sub(lambda each: texts[each[1]], piece))  # noqa: B023
            found.append(
                GenerationRequest(
                    prompt=tokenizer.encode_parts(parts), params=ONLY_READ, pooling="last"
                )
            )
        return found

    def score(self, state: Sequence[float]) -> float:
        """How well a document fits, from 0 to 1: the probability of the first answer."""
        logits = self.weight.astype(np.float64) @ np.asarray(state, np.float64)
        if len(logits) == 1:
            return float(1 / (1 + np.exp(-logits[0])))
        weights = np.exp(logits - logits.max())
        return float(weights[0] / weights.sum())


def read_rank_head(loaded: LoadedModel | FallbackModel) -> RankHead | None:
    """The head of a model; None where it has none.

    Raises:
        CheckpointError: It does not fit the model, or its file has gone.
    """
    from blazr.core.errors import CheckpointError
    from blazr.models.checkpoint.open import open_checkpoint
    from blazr.models.loading.load import LoadedModel
    from blazr.pipelines.network import decoded

    template = loaded.gguf.get(_TEMPLATE)
    if not isinstance(loaded, LoadedModel) or not isinstance(template, str):
        return None
    checkpoint = open_checkpoint(loaded.path)
    info = checkpoint.tensors.get(_WEIGHT)
    if info is None:
        return None
    if len(info.shape) != 2 or info.shape[1] != loaded.config.hidden_size:
        raise CheckpointError(
            f"{loaded.path.name}: tensor {_WEIGHT} does not fit the model.",
            found=f"shape {list(info.shape)}",
            expected=f"rows of {loaded.config.hidden_size}",
        )
    return RankHead(decoded(checkpoint, info).numpy(), template)
