"""``blazr verify``: whether the engine computes what the network says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options

if TYPE_CHECKING:
    from blazr.bench.verify import Verdict


def verify(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Model = None,
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to compare for each prompt.")] = 16,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error allowed.  [default: by dtype]")
    ] = None,
    device: options.DeviceName = "auto",
    cpu: options.Cpu = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Compare the engine with the same network in float64, layer by layer, and with transformers.

    Exits with 1 where they differ by more than rounding explains.
    """
    # torch comes with these
    from blazr.bench.verify import verify as run
    from blazr.nn.device import resolve_device

    verdict = run(
        options.pick_model(model, model_argument),
        resolve_device(options.pick_device(device, cpu=cpu)),
        dtype=dtype,
        quantize=quantize,
        max_tokens=tokens,
        tolerance=tolerance,
    )
    if as_json:
        print(json.dumps({"ok": verdict.is_ok, **asdict(verdict)}, indent=2))
    else:
        for line in _screen(verdict):
            print(line)
    if not verdict.is_ok:
        raise typer.Exit(1)


def _screen(verdict: Verdict) -> Iterator[str]:
    yield f"{verdict.model} ({verdict.family}) on {verdict.device}, in {verdict.dtype}"
    for layer in verdict.layers:
        name = "" if layer.index < 0 else f"layer {layer.index}"
        mark = "  <- diverges" if layer.index == verdict.first_diverging_layer else ""
        yield f"  {name:<10} {layer.type:<20} {layer.error:.1e}{mark}"
    yield f"  {'logits':<31} {verdict.logits_error:.1e}  (allowed {verdict.tolerance:.0e})"
    greedy = verdict.greedy
    yield f"greedy tokens  {greedy.agreeing} of {greedy.tokens} agree"
    for prompt, position, chosen, best in greedy.faults:
        yield f"  prompt {prompt}, token {position}: {chosen}, the reference says {best}"
    error = verdict.transformers_error
    yield f"transformers   {verdict.transformers}" + ("" if error is None else f", {error:.1e}")
    yield "ok" if verdict.is_ok else "DIFFERENT"
