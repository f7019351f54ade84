"""The flags that several commands share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.core import log
from blazr.core.errors import ConfigError
from blazr.core.garbage import loading

if TYPE_CHECKING:
    from blazr.llm.llm import LLM

BUILT_IN = "nano"
"""The model that runs when none is named."""


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
        help="Directory, .safetensors or .gguf file, Hugging Face id.  [default: built-in nano]",
        show_default=False,
    ),
]
Vocab = Annotated[
    str | None,
    typer.Option(help="Vocabulary: cl100k_base, llama3, …, or a tokenizer's file.  [by model]"),
]
ChatTemplate = Annotated[
    str | None, typer.Option(help="Chat template: a name or a .jinja file.  [by model]")
]
Cpu = Annotated[bool, typer.Option("--cpu", help="The same as --device cpu.")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Pack weights while loading: q8_0, q4_0, int8, int4, or by part:"
        " experts=q4_0,lm_head=q8_0."
    ),
]
Memory = Annotated[
    str,
    typer.Option(envvar="BLAZR_MEMORY", help="For caches: a size (8GiB), or 0.6 of what is free."),
]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate; -1 fills the context.")]
Temperature = Annotated[
    float | None,
    typer.Option(help="0 is greedy.  [by model, else 0.7]", show_default=False),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample among the likeliest that sum to this.  [by model, else 0.9]",
        show_default=False,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(help="Sample among this many; 0 is all.  [by model, else 40]", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="String that ends the text; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_verbose, help="Log more; show tracebacks."),
]


def pick_model(named: str | None, positional: str | None) -> str:
    """The model a command line names.

    Raises:
        ConfigError: It names two.
    """
    if named is not None and positional is not None:
        raise ConfigError(
            "two models are named.", found=f"{named[:50]!r} and {positional[:50]!r}", expected="one"
        )
    return named or positional or BUILT_IN


def pick_device(device: str, *, cpu: bool) -> str:
    """The device a command line names."""
    return "cpu" if cpu else device


@loading()
def open_llm(
    model: str,
    *,
    device: str,
    cpu: bool,
    dtype: str,
    vocab: str | None,
    chat_template: str | None = None,
    memory: str = "auto",
    quantize: str | None = None,
) -> LLM:
    """Load a model, saying so where somebody watches."""
    watched = sys.stderr.isatty()
    if watched:
        print(f"loading {model} …", end="", file=sys.stderr, flush=True)
    # torch comes with it, which takes a second
    from blazr.engine.config import EngineConfig
    from blazr.llm.llm import LLM

    try:
        return LLM(
            model,
            device=pick_device(device, cpu=cpu),
            dtype=dtype,
            vocab=vocab,
            chat_template=chat_template,
            quantize=quantize,
            # one reply at a time is all that these commands ask for
            engine=EngineConfig(memory=memory, max_running=1),
        )
    finally:
        if watched:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
