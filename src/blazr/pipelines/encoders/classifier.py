"""`Classifier`: an encoder with a number for each label, or one for how well two texts fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from blazr.core.errors import CheckpointError
from blazr.pipelines.encoders.encoder import Encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint

_IDENTITY = "torch.nn.modules.linear.Identity"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"


class Classifier(Encoder):
    """A model that labels texts, or says how well pairs of them fit."""

    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    output: ClassVar[str] = "logits"

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer, and what a score is made by."""
        super().prepare(checkpoint)
        config = self.network.config
        own = getattr(config, "sentence_transformers", None) or {}
        older = getattr(config, "sbert_ce_default_activation_function", None)
        self._activation = own.get("activation_fn") or older or _SIGMOID
        if self._activation not in {_IDENTITY, _SIGMOID}:
            raise CheckpointError(
                "the model's scores are made by a function that is not known.",
                found=str(self._activation)[:100],
                expected=f"{_IDENTITY} or {_SIGMOID}",
            )

    @property
    def labels(self) -> list[str]:
        """Its labels."""
        named = self.network.config.id2label
        return [str(named[place]) for place in range(self.network.config.num_labels)]

    def finish(self, out: Tensor, mask: Tensor, num_hidden: int) -> Tensor:
        """A number for each label, (B, L)."""
        del mask, num_hidden
        return out

    def scores(self, logits: NDArray[np.float32]) -> list[float]:
        """How well pairs fit, by the numbers (B, 1) that `read_texts` gives for them."""
        found = torch.from_numpy(logits)[:, 0]
        return (found if self._activation == _IDENTITY else found.sigmoid()).tolist()

    def probabilities(
        self, logits: NDArray[np.float32], *, is_single_label: bool = False
    ) -> NDArray[np.float32]:
        """The probability of each label, (B, L): they sum to 1 where only one can be right.

        Of a model of regression, whose numbers are no probabilities, they are what they were.

        Args:
            logits: What `read_texts` gives for texts, (B, L).
            is_single_label: Take only one of several labels to be right, whatever the config says.
        """
        found = torch.from_numpy(logits)
        problem = None if is_single_label else self.network.config.problem_type
        if problem == "regression":
            return logits
        if logits.shape[1] == 1 or problem == "multi_label_classification":
            return found.sigmoid().numpy()
        return found.softmax(-1).numpy()
