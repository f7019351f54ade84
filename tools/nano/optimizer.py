"""Muon for matrices, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def orthogonalize(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrix, roughly, by a quintic Newton-Schulz iteration.

    Args:
        matrix: (..., rows, columns).
        steps: Iterations.

    Source: Jordan 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal.

    Args:
        params: Matrices, or stacks of them.
        lr: Learning rate; the update of every matrix has about this root mean square times 0.2.
        momentum: Of the gradient's running sum.
        weight_decay: Times the learning rate.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        *,
        lr: float = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["sum"] = torch.zeros_like(param)
                running = state["sum"].mul_(group["momentum"]).add_(param.grad)
                update = orthogonalize(param.grad.add(running, alpha=group["momentum"]))
                scale = 0.2 * max(param.shape[-2:]) ** 0.5
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the layers' matrices; AdamW for the embedding, norms, biases and filters."""
    matrices, decayed, plain = [], [], []
    for name, param in model.named_parameters():
        if "embed" in name:
            decayed.append(param)
        elif param.dim() >= 2 and "conv1d" not in name:
            matrices.append(param)
        else:
            plain.append(param)
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=3e-3,
        betas=(0.9, 0.98),
    )
    return Muon(matrices), adam
