"""The flags that several commands share, each said once.

A group of flags is a dataclass whose fields are annotated with what Typer needs; `with_flags` gives
a command one flag for each field, and the command gets the filled-in dataclass.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from blazr.core import log
from blazr.core.errors import ConfigError
from blazr.core.garbage import loading

if TYPE_CHECKING:
    from blazr.engine.sampling_params import SamplingParams
    from blazr.llm.llm import LLM
    from blazr.llm.text_engine import TextEngine

BUILT_IN = "nano"
"""The model that runs when none is named."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command with one flag for each field of the dataclasses among its parameters."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group = parameter.annotation
        if not is_dataclass(group):
            parameters.append(parameter)
            continue
        assert isinstance(group, type)
        groups[name] = group
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]

    @wraps(command)
    def spread(**given: object) -> None:
        filled = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **filled)

    # what Typer reads
    spread.__dict__["__signature__"] = signature.replace(parameters=parameters)
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def _verbose(wanted: bool) -> bool:
    if wanted:
        log.setup("debug")
    return wanted


ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Directory, .safetensors or .gguf file, or Hugging Face id.  [default: built-in nano]",
        show_default=False,
    ),
]
Vocab = Annotated[
    str | None,
    typer.Option(
        help="Vocabulary: a name (cl100k_base, llama3, …) or a tokenizer file.  "
        "[default: the model's]"
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(help="Chat template: a name or a .jinja file.  [default: the model's]"),
]
Cpu = Annotated[bool, typer.Option("--cpu", help="The same as --device cpu.")]
DeviceName = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="What to compute in: auto, float32, bfloat16 or float16.")]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Quantize the weights while loading: q8_0, q4_0, q4_k, int8 or int4; or by part:"
        " experts=q4_0,lm_head=q8_0."
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        envvar="BLAZR_MEMORY",
        help="Memory for caches: a size (8GiB), or a share of what is free (0.6).",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads to compute with.  [default: all cores]"),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Ask a running server (http://127.0.0.1:8080) instead of loading a model; "
        "BLAZR_API_KEY is sent as its key.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_verbose, help="Log more; show tracebacks."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """How a model is loaded."""

    vocab: Vocab = None
    device: DeviceName = "auto"
    cpu: Cpu = False
    dtype: Dtype = "auto"
    quantize: Quantize = None
    memory: Memory = "auto"
    max_seq_len: Annotated[
        int | None,
        typer.Option(min=2, help="Lower the context to this many tokens.  [default: the model's]"),
    ] = None

    def open_llm(
        self, model: str, *, chat_template: str | None = None, threads: int | None = None
    ) -> LLM:
        """Load a model for one reply at a time."""
        # torch comes with it, which takes a second
        from blazr.llm.llm import LLM

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        # one reply at a time is all that these commands ask for
        return LLM(self.open(model, chat_template=chat_template, max_running=1))

    @loading()
    def open(
        self,
        model: str,
        *,
        chat_template: str | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        **engine: Any,
    ) -> TextEngine:
        """Load a model, with a progress bar where stderr is a terminal.

        Args:
            model: A path, a Hugging Face id, or the built-in model's name.
            chat_template: Its chat template, where its own is not wanted.
            tool_parser: How it writes tool calls, where that is not to be found out.
            reasoning_parser: How it marks its thinking, where that is not to be found out.
            engine: Fields of `EngineConfig`.
        """
        # torch comes with these, which takes a second
        from blazr.engine.config import EngineConfig
        from blazr.llm.load import load_text_engine

        with progress_bar(f"loading {model}") as progress:
            return load_text_engine(
                model,
                device=pick_device(self.device, cpu=self.cpu),
                dtype=self.dtype,
                vocab=self.vocab,
                chat_template=chat_template,
                quantize=self.quantize,
                tool_parser=tool_parser,
                reasoning_parser=reasoning_parser,
                engine=EngineConfig(memory=self.memory, max_seq_len=self.max_seq_len, **engine),
                progress=progress,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How replies are sampled. What is not given is left to the model, or to the server asked."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=-1,
            help="Most tokens to generate; -1 fills the context.  "
            "[default: 100; in a chat, what the context holds]",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Randomness; 0 always takes the likeliest token.  [default: the model's, else 0.7]"
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample among the likeliest tokens that sum to this.  "
            "[default: the model's, else 0.9]"
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Sample among this many tokens; 0 is all.  [default: the model's, else 40]"
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Drop tokens below this share of the likeliest one.  "
            "[default: the model's, else 0]"
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Above 1, tokens that occurred become less likely.  [default: the model's, else 1]"
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the reply; repeatable.")
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|JSON", help="The reply must follow this JSON Schema: a file, or the JSON."
        ),
    ] = None

    def given(self) -> dict[str, object]:
        """What was given on the command line, by the names of `SamplingParams`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found.pop("json_schema")
        if self.json_schema is not None:
            found["grammar"] = {"json_schema": read_schema(self.json_schema)}
        return {name: value for name, value in found.items() if value is not None}


def sampling_params(given: Mapping[str, object], *, max_tokens: int = 100) -> SamplingParams:
    """The parameters of a reply.

    Args:
        given: What was asked for.
        max_tokens: Where that says nothing; -1 fills the context.

    Raises:
        RequestError: A value is out of its range.
    """
    from blazr.engine.sampling_params import SamplingParams

    return SamplingParams.of(**{"max_tokens": max_tokens, **given})


def read_schema(text: str) -> object:
    """A JSON Schema, from its own text or from the file that it names.

    Raises:
        ConfigError: It cannot be read, or is not JSON.
    """
    try:
        source = text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        return json.loads(source)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the JSON Schema cannot be read.",
            found=f"{text[:100]!r}: {str(error)[:100]}",
            expected='a file, or JSON such as \'{"type": "object"}\'',
        ) from None


def pick_model(named: str | None, positional: str | None) -> str:
    """The model that a command line names.

    Raises:
        ConfigError: It names two.
    """
    if named is not None and positional is not None:
        raise ConfigError(
            "two models are named.", found=f"{named[:50]!r} and {positional[:50]!r}", expected="one"
        )
    return named or positional or BUILT_IN


def pick_device(device: str, *, cpu: bool) -> str:
    """The device that a command line names."""
    return "cpu" if cpu else device


def read_stdin() -> str:
    """All of stdin, without the newline that ``echo`` and editors put at its end."""
    return sys.stdin.read().removesuffix("\n")


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, told the bytes done and all of them; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
