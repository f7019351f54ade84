"""The runs against other engines as a table in Markdown and a chart.

    python benchmarks/plot_versus.py docs/images/versus.svg

Reads what ``python -m benchmarks.versus ... --history`` has written. The table has
the newest run of each model, the chart all of them: medians of rounds, and from the least to the
greatest.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

HISTORY = Path(__file__).parent / "history"
KINDS = {("decode", 1): "1 stream", ("decode", 8): "8", ("decode", 16): "16"}
COLUMNS = {**KINDS, ("prefill", 1): "prefill 512"}


def _runs() -> dict[str, list[Mapping[str, Any]]]:
    """Those of each model, oldest first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name in ("llama_cpp", "transformers"):
        for line in (HISTORY / f"{name}.jsonl").read_text().splitlines():
            run = json.loads(line)
            figures = {(row["kind"], row["streams"]): row for row in run["results"]}
            found.setdefault(run["model"], []).append({**run, "figures": figures})
    return found


def _table(models: Mapping[str, list[Mapping[str, Any]]]) -> None:
    """Print tokens a second, and the ratio, of each newest run."""
    heads = ["", *COLUMNS.values(), "of the bandwidth, 1 stream", "rival", "day"]
    print("| " + " | ".join(heads) + " |\n|---|" + "--:|" * (len(COLUMNS) + 1) + "---|---|")
    for model, several in models.items():
        run = several[-1]
        cells = [model]
        for key in COLUMNS:
            row = run["figures"].get(key)
            cells.append(
                "" if row is None else "{blazr_tokens_per_s:,.0f}, **{ratio:.2f}**".format_map(row)
            )
        share = run["figures"][("decode", 1)]["bandwidth_share"]
        cells += [f"{share:.0%}", run["rival"].split()[0], run["time"][:10]]
        print("| " + " | ".join(cells) + " |")


def _chart(models: Mapping[str, list[Mapping[str, Any]]], path: str) -> None:
    """Draw all ratios."""
    figure = Figure(figsize=(10, 1 + 0.55 * len(models)), layout="constrained")
    panels = figure.subplots(1, len(COLUMNS), sharey=True)
    names = [*models][::-1]
    for axes, (key, label) in zip(panels, COLUMNS.items(), strict=True):
        for place, name in enumerate(names):
            several = [run["figures"][key] for run in models[name] if key in run["figures"]]
            for turn, row in enumerate(several):
                y = place + 0.12 * (turn - (len(several) - 1) / 2)
                color = "tab:blue" if row["ratio"] >= 1 else "tab:red"
                axes.plot([row["ratio_min"], row["ratio_max"]], [y, y], color=color, alpha=0.4)
                axes.plot(row["ratio"], y, "o", color=color, markersize=4)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set(title=label, xlim=(0, None))
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    figure.suptitle("Tokens per second, as a multiple of the other engine's")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    all_runs = _runs()
    _table(all_runs)
    _chart(all_runs, sys.argv[1])
