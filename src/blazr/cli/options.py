"""The flags that several commands share, each said once.

A group of flags is a dataclass whose fields are annotated with what Typer needs; `with_flags` gives
a command one flag for each field, and the command gets the filled-in dataclass.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

import typer

from blazr.core import log
from blazr.core.docstrings import argument_docs
from blazr.core.errors import ConfigError
from blazr.core.garbage import frozen_after
from blazr.engine.config import parse_memory
from blazr.llm.options import LoadOptions, check_cache_disk

if TYPE_CHECKING:
    from blazr.llm.llm import LLM
    from blazr.llm.text_engine import TextEngine

_log = logging.getLogger(__name__)

BUILT_IN = "nano"
"""The model that runs when none is named."""

# Of `LoadOptions`: what no command lets people set, and what only a server needs.
_ONLY_IN_PYTHON = frozenset({"model", "prefill_share", "warm_up", "sharers"})
_ONLY_TO_SERVE = frozenset(
    {
        "tool_parser",
        "reasoning_parser",
        "max_running",
        "max_waiting",
        "token_budget",
        "prefix_cache",
    }
)
_LOAD_DOCS = argument_docs(LoadOptions)


def _is_from(ctx: typer.Context, name: str | None, source: str) -> bool:
    """Whether a parameter's value comes from there; see click's ``ParameterSource``."""
    found = ctx.get_parameter_source(name or "")
    return found is not None and found.name == source


def _split_variable(
    ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """Split the values of an environment variable at commas."""
    if value is None or not _is_from(ctx, param.name, "ENVIRONMENT"):
        return value
    return [each for each in ",".join(value).split(",") if each]


def _models_of_flag(
    ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """The models of ``--model``; a MODEL argument overrides those of variable and settings file."""
    if ctx.params.get("model_argument") and not _is_from(ctx, param.name, "COMMANDLINE"):
        return None
    return _split_variable(ctx, param, value)


def _join_variable(
    ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """Put the value of an environment variable together, which Typer splits at spaces."""
    if value is None or not _is_from(ctx, param.name, "ENVIRONMENT"):
        return value
    return [" ".join(value)]


def _size(flag: str) -> dict[str, Any]:
    """What Typer needs to read the size that a flag takes."""

    def parse(value: object) -> int:
        try:
            return parse_memory(str(value), free_bytes=None)
        except ConfigError as error:
            raise ConfigError(
                f"the size after {flag} cannot be read.",
                found=error.found,
                expected=error.expected,
                hint=f"{flag} 100MB",
            ) from None

    return {"parser": parse}


def _folder(flag: str) -> dict[str, Any]:
    """What Typer needs to read the folder that a flag takes; an empty path would be this one."""

    def parse(value: object) -> Path:
        if not str(value):
            raise ConfigError(f"the folder after {flag} is empty.", found="''", hint="leave it out")
        return Path(str(value)).expanduser()

    return {"parser": parse, "metavar": "DIR"}


# What flags are told besides their help, by field.
_FLAG_SETTINGS: Mapping[str, dict[str, Any]] = {
    "memory": {"envvar": "BLAZR_MEMORY"},
    "max_seq_len": {"min": 2},
    "max_tokens": {"min": -1},
    "min_tokens": {"min": 0},
    "json_schema": {"metavar": "FILE|JSON"},
    "dry_sequence_breakers": {"names": ["--dry-sequence-breaker"]},
    "allowed_token_ids": {"names": ["--allowed-token-id"]},
    "accept_any_model": {"names": ["--accept-any-model"]},
    "idle_unload_s": {"min": 0},
    "drain_timeout_s": {"min": 0},
    "max_tool_rounds": {"min": 1, "max": 1000},
    "replicas": {"min": 1, "max": 256},
}
_FOLDERS = frozenset({"adapter_dir", "weights_dir", "profile_dir", "files_dir"})
# Fields with commas between several values, whose flags may be repeated instead.
JOINED = frozenset({"adapter"})
_UNITS = ("_bytes", "_s")
# Flags with another name than their field: what may be repeated is named once.
_FLAG_NAMES = {
    "api_keys": "api_key",
    "admin_api_keys": "admin_api_key",
    "allowed_hosts": "allowed_host",
    "cors_origins": "cors_origin",
    "kv_peers": "kv_peer",
    "served_names": "served_model_name",
    "drain_timeout_s": "drain_seconds",
    "has_ui": "ui",
}


def _flag(name: str, docs: Mapping[str, str] = _LOAD_DOCS, **more: Any) -> Any:
    """Return the flag of a field, with the help that the docstring of its class gives."""
    more |= _FLAG_SETTINGS.get(name, {})
    flag = f"--{_flag_name(name).replace('_', '-')}"
    if name.endswith("_bytes"):
        more |= _size(flag)
    elif name in _FOLDERS:
        more |= _folder(flag)
    return typer.Option(*more.pop("names", ()), help=docs[name], **more)


def _flag_name(name: str) -> str:
    """Return the name of a field as a flag's, which has no unit at its end."""
    unit = next((each for each in _UNITS if name.endswith(each)), "")
    return _FLAG_NAMES.get(name, name.removesuffix(unit))


def flag_names(group: type) -> list[str]:
    """Return the fields of a dataclass that are flags; those of the class at its root come last."""
    hidden: frozenset[str] = getattr(group, "not_flags", frozenset())
    names = [each.name for each in fields(group) if each.name not in hidden]
    root = [each for each in group.__mro__ if is_dataclass(each)][-1]
    return sorted(names, key=root.__annotations__.__contains__)


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
        docs = _LOAD_DOCS if issubclass(group, LoadOptions) else argument_docs(group)
        defaults = {each.name: each.default for each in fields(group)}
        for each in flag_names(group):
            hint, default, more = hints[each], defaults[each], {}
            if default == ():  # Typer takes a tuple for several values behind one flag
                hint, default, more = list[str] | None, None, {"callback": _split_variable}
            elif each in JOINED:
                hint, more = list[str] | None, {"callback": _join_variable}
            if each in docs:
                hint = Annotated[hint, _flag(each, docs, **more)]
            parameters.append(
                inspect.Parameter(
                    _flag_name(each),
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=hint,
                )
            )

    @wraps(command)
    def spread(**given: Any) -> None:
        filled = {}
        for name, group in groups.items():
            values = {each: given.pop(_flag_name(each)) for each in flag_names(group)}
            repeated = {each.name for each in fields(group) if each.default == ()}
            values |= {each: tuple(values[each] or ()) for each in repeated}
            joined = JOINED & values.keys()
            values |= {each: ",".join(values[each] or ()) or None for each in joined}
            filled[name] = group(**values)
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
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="Directory, .safetensors or .gguf file, Hugging Face id; NAME=PATH, repeated, "
        "for several models, each loaded when first used.  [default: built-in nano]",
        show_default=False,
        callback=_models_of_flag,
    ),
]
Vocab = Annotated[str | None, _flag("vocab")]
ChatTemplate = Annotated[str | None, _flag("chat_template")]
Revision = Annotated[str | None, _flag("revision")]
Cpu = Annotated[bool, typer.Option("--cpu", help="The same as --device cpu.")]
DeviceName = Annotated[str, typer.Option("--device", help=_LOAD_DOCS["device"])]
Dtype = Annotated[str, _flag("dtype")]
Quantize = Annotated[str | None, _flag("quantize")]
KvDtype = Annotated[str, _flag("kv_dtype")]
StateDtype = Annotated[str, _flag("state_dtype")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPU threads to compute with, at most one for each core.  [default: all cores]"
    ),
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
class LoadFlags(LoadOptions):
    """`LoadOptions` as flags of a command that loads one model."""

    cpu: Cpu = False

    not_flags: ClassVar[frozenset[str]] = _ONLY_IN_PYTHON | _ONLY_TO_SERVE | {"chat_template"}

    def __post_init__(self) -> None:
        LoadOptions.__post_init__(self)
        if self.cpu:
            object.__setattr__(self, "device", "cpu")

    def load_llm(self, model: str, *, threads: int | None = None) -> LLM:
        """Load a model for one reply at a time, which is all that these commands ask for."""
        # torch comes with it, which takes a second
        from blazr.llm.llm import LLM

        check_cache_disk([self])
        set_threads(threads)
        return LLM.of(replace(self, max_running=1).load(model))

    @frozen_after()
    def load(self, model: str) -> TextEngine:
        """Load a model, with a progress bar where stderr is a terminal."""
        # torch comes with it, which takes a second
        from blazr.llm.load import load_text_engine

        with progress_bar(f"loading {model}") as progress:
            return load_text_engine(replace(self, model=model), progress=progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLoadFlags(LoadFlags):
    """`LoadOptions` as flags of a command that chats."""

    not_flags = LoadFlags.not_flags - {"chat_template"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags(LoadFlags):
    """`LoadOptions` as flags of a server, and keys of a model's table in its settings file."""

    not_flags = _ONLY_IN_PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How replies are sampled. What is not given is left to the model, or to the server asked.

    Args:
        max_tokens: Most tokens to generate; -1 fills the context.  [default: 100; in a chat, what
            the context holds]
        temperature: Randomness; 0 always takes the likeliest token.  [default: the model's, else
            0.7]
        top_p: Sample among the likeliest tokens that sum to this.  [default: the model's, else 0.9]
        top_k: Sample among this many tokens; 0 is all.  [default: the model's, else 40]
        min_p: Drop tokens below this share of the likeliest one.  [default: the model's, else 0]
        repetition_penalty: Above 1, tokens that occurred become less likely.  [default: the
            model's, else 1]
        presence_penalty: Above 0, tokens of the reply become less likely, once.
        frequency_penalty: Above 0, tokens become less likely with each time they came.
        repeat_last_n: How many of the latest tokens these penalties look at; -1 is all.  [default:
            -1]
        typical_p: Keep tokens of typical surprise that sum to this.
        top_n_sigma: Drop logits so many standard deviations below the largest.
        xtc_probability: How often the likeliest tokens are left out.
        xtc_threshold: How likely these have to be.  [default: 0.1]
        mirostat: 2 limits the surprise of tokens by that of earlier ones.
        mirostat_tau: The surprise to hold, in bits.  [default: 5]
        mirostat_eta: How fast the limit follows.  [default: 0.1]
        dry_multiplier: Penalty on going on with repetitions; 0.8 is usual.
        dry_base: How that penalty grows with each token that is repeated.  [default: 1.75]
        dry_allowed_length: Repetitions of so many tokens have no such penalty.  [default: 2]
        dry_penalty_last_n: How many of the latest tokens are searched for repetitions; -1 is
            all.  [default: -1]
        dry_sequence_breakers: Text that no repetition goes beyond; repeatable.  [default: newline,
            ":", a double quote, "*"]
        allowed_token_ids: Token id that alone may come; repeatable.
        bad_words: Text that may not come; repeatable.
        min_tokens: No end of the text, and no stop, before this many tokens.
        seed: Makes sampling repeatable.
        stop: Text that ends the reply; repeatable.
        json_schema: The reply must follow this JSON Schema: a file, or the JSON.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    json_schema: str | None = None

    def given(self) -> dict[str, object]:
        """What was given on the command line, by the names of `SamplingParams`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found.pop("json_schema")
        if self.json_schema is not None:
            found["grammar"] = {"json_schema": read_schema(self.json_schema)}
        return {name: value for name, value in found.items() if value is not None}


def read_schema(text: str) -> object:
    """A JSON Schema, from its own text or from the file that it names.

    Raises:
        ConfigError: It cannot be read, or is not JSON.
    """
    try:
        is_json = text.lstrip().startswith("{")
        return json.loads(text if is_json else Path(text).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the JSON Schema cannot be read.",
            found=f"{text[:100]!r}: {str(error)[:100]}",
            expected='a file, or JSON such as \'{"type": "object"}\'',
        ) from None


def named_model(named: str | None, positional: str | None) -> str | None:
    """The model that a command line names; None where it names none.

    Args:
        named: What ``--model`` says.
        positional: The argument MODEL.

    Raises:
        ConfigError: It names two, or one by an empty name.
    """
    if named is not None and positional is not None:
        raise ConfigError(
            "two models are named.", found=f"{named[:50]!r} and {positional[:50]!r}", expected="one"
        )
    found = named_models(None if named is None else [named], positional)
    return found[0] if found else None


def named_models(named: Sequence[str] | None, positional: str | None) -> list[str]:
    """The models that a server's command line names, that of the argument MODEL first.

    Args:
        named: What ``--model`` says, each time that it is given.
        positional: The argument MODEL.

    Raises:
        ConfigError: It names one by an empty name.
    """
    found = [*([] if positional is None else [positional]), *(named or ())]
    # often a shell variable that is not set: the built-in model would answer in another's place
    if "" in found:
        raise ConfigError(
            "the name of a model is empty.", found="''", hint=f"leave it out for {BUILT_IN}"
        )
    return found


def refuse_beside_url(ctx: typer.Context, *more: str, used: Collection[str] = ()) -> None:
    """Refuse flags about a model that this process loads, where ``--url`` has a server answer.

    Variables of the environment are left alone: they hold for other commands, too.

    Args:
        ctx: The command line.
        more: Names of other parameters that mean nothing beside ``--url``.
        used: Names of parameters of loading that mean something nevertheless.

    Raises:
        ConfigError: ``--url`` is given, and some of them are; the message names them.
    """
    if ctx.params.get("url") is None:
        return
    ignored = {*map(_flag_name, flag_names(ServeFlags)), "threads", *more}
    given = []
    for param in ctx.command.params:
        if _is_from(ctx, param.name, "COMMANDLINE") and param.name in ignored.difference(used):
            is_off = ctx.params[param.name] is False and param.secondary_opts
            names = param.secondary_opts if is_off else param.opts
            given.append(names[0] if names[0].startswith("-") else str(param.metavar))
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot be used together with --url.",
            found="flags about a model that is loaded here, while a running server answers",
            hint="leave out --url to load the model here, or give these flags to blazr serve",
        )


def pick_model(named: str | None, positional: str | None) -> str:
    """The model that a command line names, or the built-in one; see `named_model`."""
    return named_model(named, positional) or BUILT_IN


def set_threads(count: int | None) -> None:
    """Let torch and the kernels compute on so many threads of the CPU; None leaves it to them.

    No more than there are processors: others would wait in turn, and thousands end the process.
    """
    if count is not None:
        import torch

        most = len(os.sched_getaffinity(0))
        if count > most:
            what = f"--threads {str(count)[:20]} is more than there are processors to compute on"
            log.once(_log, logging.WARNING, f"{what}: it is {most}")
        torch.set_num_threads(min(count, most))


def read_stdin() -> str:
    """All of stdin, without the newline that ``echo`` and editors put at its end."""
    return sys.stdin.read().removesuffix("\n")


@contextmanager
def progress_bar(
    title: str, *, unit: Literal["bytes", "requests", "steps"] = "bytes"
) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, told how much is done and of how much; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
