"""``blazr generate``: continue a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.core import log
from blazr.core.errors import EngineError
from blazr.core.json_text import dump_json
from blazr.engine.sampling_params import SamplingParams
from blazr.text.images import Image, Sound, read_image
from blazr.text.messages import Message

if TYPE_CHECKING:
    from blazr.llm.bundle import ModelInfo
    from blazr.llm.generation import GenerationRequest
    from blazr.llm.results import Completion
    from blazr.text.events import Event


@options.with_flags
def generate(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    prompt_argument: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The same as --prompt. A single argument that names no model is the prompt.",
            show_default=False,
        ),
    ] = None,
    *,
    model: options.Model = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text to continue; - reads stdin.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            help="File of an image before the prompt, which is then a chat; may be repeated."
        ),
    ] = None,
    audio: Annotated[
        list[str] | None,
        typer.Option(help="File of a sound before the prompt, likewise; may be repeated."),
    ] = None,
    sampling: options.SamplingFlags,
    load: options.LoadFlags,
    threads: options.Threads = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Continue a prompt; stdout gets the text and nothing else."""
    if prompt is None and prompt_argument is None and is_prompt(model_argument, model):
        model_argument, prompt_argument = None, model_argument
    name = options.pick_model(model, model_argument)
    text = prompt_argument if prompt is None else prompt
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = options.read_stdin() or ("" if image or audio else None)
    if text is None:
        raise typer.BadParameter(
            'give a prompt, as in blazr generate "Once upon a time", or pipe one to stdin'
        )
    params = SamplingParams.of(**sampling.given())
    files = [read_image(path, param="image") for path in image or ()]
    files += [Sound(read_image(path, param="audio")) for path in audio or ()]
    request = _request(text, tuple(Image(0, each) for each in files), params)
    started_s = monotonic()
    with load.load_llm(name, threads=threads) as llm:
        timings = {"load_s": monotonic() - started_s}
        adapter = next(iter(llm.core.adapters.by_name), None)
        print(model_line(llm.core.info, adapter), file=sys.stderr)
        with log.held_back():
            events = llm.events([replace(request, adapter=adapter)])
            completion = _print_stream(events, timings, prints=not as_json)
            if as_json:
                print(dump_json(as_object(adapter or llm.core.info.name, completion, timings)))
            elif sys.stdout.isatty():
                print()
    if verbose or sys.stderr.isatty():
        print(speed_line(completion, timings), file=sys.stderr)
    raise_if_cut_off(completion)


def _request(text: str, images: tuple[Image, ...], params: SamplingParams) -> GenerationRequest:
    """A prompt to continue, or a chat about images or sounds."""
    from blazr.llm.generation import GenerationRequest

    if not images:
        return GenerationRequest(prompt=text, params=params)
    asked = Message(role="user", content=text, images=images)
    return GenerationRequest(messages=[asked], params=params)


def model_line(info: ModelInfo, adapter: str | None) -> str:
    """What answers and where it runs, for people."""
    return f"{info.name}{f' with {adapter}' if adapter else ''} on {info.device}"


def is_prompt(alone: str | None, model: str | None) -> bool:
    """Whether the one word that stands without a flag is a prompt, not a model.

    Args:
        alone: The word.
        model: What ``--model`` says.
    """
    from blazr.models.checkpoint.open import names_model

    if alone is None:
        return False
    # no model is called -, which stands for stdin
    return model is not None or alone == "-" or not names_model(alone)


def raise_if_cut_off(completion: Completion) -> None:
    """Fail where a reply ended by an error.

    Raises:
        EngineError: It did.
    """
    if completion.finish_reason in {"error", "abort"}:
        raise EngineError("the text was cut off.", found=completion.error or "")


def _print_stream(
    events: Iterator[Event], timings: dict[str, float], *, prints: bool
) -> Completion:
    """Take the events to the end, printing and timing them."""
    from blazr.llm.results import Fold
    from blazr.text.events import PromptDone, TextDelta

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


def speed_line(completion: Completion, timings: dict[str, float]) -> str:
    """The tokens of a reply and how fast they came, for people."""
    usage = completion.usage
    first_s = timings.get("first_token_s", timings["generate_s"])
    decode_s = timings["generate_s"] - first_s
    rate = (usage.completion_tokens - 1) / decode_s if decode_s > 0 else 0.0
    cached = f" ({usage.cached_tokens} from the cache)" if usage.cached_tokens else ""
    line = (
        f"prompt {usage.prompt_tokens} tokens{cached}, first token after {first_s:.2f} s; "
        f"reply {usage.completion_tokens} tokens"
    )
    if rate > 0:
        line += f", {rate:,.1f} tokens/s"
    if usage.draft_tokens:
        line += f", {usage.kept_draft_tokens} of {usage.draft_tokens} drafts kept"
    return line


def as_object(model: str, completion: Completion, timings: dict[str, float]) -> dict[str, object]:
    """A reply as ``--json`` prints it."""
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
            "draft_tokens": usage.draft_tokens,
            "kept_draft_tokens": usage.kept_draft_tokens,
        },
        "timings": {name: round(value, 4) for name, value in timings.items()},
    }
