"""``blazr convert``: write a model again, quantized or in another dtype or format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blazr.cli import options
from blazr.cli.signals import exiting_on_signals
from blazr.core.json_text import dump_json


def convert(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Directory, weights file or Hugging Face id.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A new or empty directory, or a new .gguf file.")
    ],
    *,
    quantize: options.Quantize = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Type of the tensors that are not quantized: auto, float32, bfloat16 or float16."
        ),
    ] = "auto",
    merge_adapter: Annotated[
        Path | None,
        typer.Option(help="Directory of an adapter (LoRA) in PEFT's format to add to the weights."),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Write a model as safetensors or GGUF, quantized or in another dtype.

    In a directory, quantized matrices are compressed-tensors, which other programs read as well.
    """
    # torch comes with it, which takes a second
    from blazr.models.loading.convert import convert as run
    from blazr.pipelines.fallback import own_networks_only
    from blazr.text.tokenizers.to_gguf import gguf_vocabulary

    with (
        exiting_on_signals(),
        own_networks_only("blazr convert", model),
        options.progress_bar("converting") as progress,
    ):
        made = run(
            model,
            out,
            quantize=quantize,
            dtype=dtype,
            merge_adapter=merge_adapter,
            vocabulary=gguf_vocabulary,
            progress=progress,
        )
    if as_json:
        report = {
            "path": str(made.path),
            "bytes": made.nbytes,
            "quantized": made.num_quantized,
            "plain": made.num_plain,
        }
        print(dump_json(report))
        return
    from rich.filesize import decimal

    counts = f"{made.num_quantized} matrices quantized, {made.num_plain} tensors plain"
    print(f"{made.path}: {decimal(made.nbytes)}, {counts}")
