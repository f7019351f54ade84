"""``blazr generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Annotated

import typer

from blazr.cli import options
from blazr.core.errors import EngineError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.results import Completion, Fold
from blazr.text.events import Event, PromptDone, TextDelta


def generate(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    prompt_argument: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The same as --prompt.", show_default=False),
    ] = None,
    *,
    model: options.Model = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text to continue; - reads stdin.")
    ] = None,
    max_tokens: options.MaxTokens = 100,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    vocab: options.Vocab = None,
    device: options.DeviceName = "auto",
    cpu: options.Cpu = False,
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = None,
    memory: options.Memory = "auto",
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Continue a prompt; the text goes to stdout and nothing else does."""
    is_named = model is not None or model_argument == "-"
    if is_named and prompt is None and prompt_argument is None:
        # with the model named (and no model is called -), the one word left is the prompt
        model_argument, prompt_argument = None, model_argument
    name = options.pick_model(model, model_argument)
    text = _read_prompt(prompt_argument if prompt is None else prompt)
    params = SamplingParams.of(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
    )
    started_s = monotonic()
    with options.open_llm(
        name, device=device, cpu=cpu, dtype=dtype, vocab=vocab, memory=memory, quantize=quantize
    ) as llm:
        timings = {"load_s": monotonic() - started_s}
        completion = _run(llm.stream(text, params), timings, prints=not as_json)
        if as_json:
            print(json.dumps(_as_object(llm.core.info.name, completion, timings)))
        elif sys.stdout.isatty():
            print()
    if completion.finish_reason in {"error", "abort"}:
        raise EngineError("the text was cut off.", found=completion.error or "")


def _run(events: Iterator[Event], timings: dict[str, float], *, prints: bool) -> Completion:
    """Take the events to the end, printing and timing them."""
    started_s = monotonic()
    gathered = Fold()
    for event in events:
        gathered.push(event)
        if isinstance(event, PromptDone):
            timings["first_token_s"] = monotonic() - started_s
        elif isinstance(event, TextDelta) and prints:
            print(event.text, end="", flush=True)
    timings["generate_s"] = monotonic() - started_s
    return gathered.completions()[0]


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt with --prompt, or - to read it from stdin")
    if prompt is not None and prompt != "-":
        return prompt
    # the newline that echo and editors put at the end is not part of the text
    return sys.stdin.read().removesuffix("\n")


def _as_object(model: str, completion: Completion, timings: dict[str, float]) -> dict[str, object]:
    usage = completion.usage
    return {
        "model": model,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "timings": {name: round(value, 4) for name, value in timings.items()},
    }
