"""The loss curve."""

from __future__ import annotations

from pathlib import Path


def plot_loss(
    losses: list[tuple[int, float]], evaluations: list[tuple[int, float]], path: Path
) -> None:
    """Draw training loss and held-out bits per byte over tokens to a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4))
    axis.plot([t / 1e6 for t, _ in losses], [v for _, v in losses], lw=0.6, label="training loss")
    axis.set_xlabel("million tokens")
    axis.set_ylabel("nats per token")
    axis.set_ylim(1, 5)
    if evaluations:
        other = axis.twinx()
        other.plot([t / 1e6 for t, _ in evaluations], [v for _, v in evaluations], "o-C1")
        other.set_ylabel("held-out bits per byte")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
