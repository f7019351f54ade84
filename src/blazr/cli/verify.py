"""``blazr verify``: whether the engine computes the model that the files describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.core.errors import ConfigError, UnknownFamilyError
from blazr.core.json_text import dump_json

if TYPE_CHECKING:
    from blazr.bench.verify import Verdict

NO_REFERENCE = 3


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
    """Compare the network with a second, plain implementation, and the engine with the network.

    Also with transformers, where it is installed and reads the model. Exits with 1 where something
    differs by more than rounding explains, with 3 where there is no independent reference.
    """
    # torch comes with these
    from blazr.bench.verify import verify as run
    from blazr.models.checkpoint.open import find_model
    from blazr.nn.device import resolve_device
    from blazr.pipelines.kinds import check_language_model_at

    name = options.pick_model(model, model_argument)
    try:
        verdict = run(
            name,
            resolve_device("cpu" if cpu else device),
            dtype=dtype,
            quantize=quantize,
            max_tokens=tokens,
            tolerance=tolerance,
        )
    except ConfigError as error:
        check_language_model_at(find_model(name).path)
        if not isinstance(error, UnknownFamilyError):
            raise
        reason = f"blazr has no network of its own for model_type {error.found}: nothing to verify"
        print(dump_json({"ok": False, "reason": reason}) if as_json else f"NOT VERIFIED: {reason}")
        raise typer.Exit(NO_REFERENCE) from None
    if as_json:
        is_ok = verdict.is_ok and verdict.witness.is_there
        print(dump_json({"ok": is_ok, **asdict(verdict)}, indent=2))
    else:
        print("\n".join(_report_lines(verdict)))
    if not verdict.is_ok:
        raise typer.Exit(1)
    if not verdict.witness.is_there:
        raise typer.Exit(NO_REFERENCE)


def _report_lines(verdict: Verdict) -> Iterator[str]:
    witness = verdict.witness
    logits = verdict.witness.logits
    yield f"{verdict.model} ({verdict.family}) on {verdict.device}, in {verdict.dtype}"
    yield f"  {'':<31} network  allowed  engine   allowed"
    ours = [(each.error, each.allowed) for each in witness.layers]
    for number, layer in enumerate(verdict.layers):
        name = "" if layer.index < 0 else f"layer {layer.index}"
        is_wrong = layer.index in (verdict.first_diverging_layer, witness.first_wrong_layer)
        error = _pair(ours[number] if ours else None)
        mark = "  <- diverges" if is_wrong else ""
        own = _pair((layer.error, verdict.tolerance))
        yield f"  {name:<10} {layer.type:<20} {error}  {own}{mark}"
    last = _pair((logits.error, logits.allowed) if logits else None)
    yield f"  {'logits':<31} {last}  {_pair((verdict.logits_error, verdict.tolerance))}"
    yield f"network        beside {witness.name}" if witness.is_there else witness.name
    if witness.layers:
        yield f"{'':<15}layer by layer; allowed: 10 times what float32 loses in the reference"
    yield "engine         beside the network in float64; allowed: what its dtype explains"
    if verdict.choices.total:
        followed, total = verdict.choices.followed, verdict.choices.total
        yield f"experts        {followed} of {total} choices were near ties: the engine's are taken"
    greedy = verdict.greedy
    yield f"greedy tokens  {greedy.agreeing} of {greedy.tokens} agree"
    for prompt, position, chosen, best in greedy.faults:
        yield f"  prompt {prompt}, token {position}: {chosen}, the network says {best}"
    theirs = verdict.transformers_error
    yield f"transformers   {verdict.transformers}" + ("" if theirs is None else f", {theirs:.1e}")
    if not verdict.is_ok:
        yield "DIFFERENT"
    elif witness.is_there:
        yield "ok"
    else:
        yield "NOT VERIFIED: only the engine and its own network were compared"


def _pair(errors: tuple[float, float] | None) -> str:
    return "-        -      " if errors is None else f"{errors[0]:.1e}  {errors[1]:.1e}"
