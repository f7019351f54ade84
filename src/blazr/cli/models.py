"""Which models ``blazr serve`` has, and its file of settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from typer.core import TyperOption

from blazr.core.errors import ConfigError
from blazr.core.garbage import loading

if TYPE_CHECKING:
    from blazr.llm.async_llm import AsyncLLM
    from blazr.llm.text_engine import TextEngine

_NAME = re.compile(r"[\w.:@/-]+")
_WEIGHTS = ("*.safetensors", "*.gguf")
_TABLE = "models"  # of the file of settings: one row, or one table, for each model


class Opening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How models are loaded. The fields are flags, and keys of a model's own table.

    Args:
        device: Where it runs.
        dtype: In what it computes.
        vocab: Its vocabulary.
        chat_template: Its chat template.
        quantize: How weights are packed.
        tool_parser: How it writes calls of tools.
        reasoning_parser: How it marks its thinking.
        memory: For its caches.
        max_running: Most replies at once.
        max_waiting: Most replies queued.
        max_seq_len: Its context.
        token_budget: Most tokens a step.
        prefix_cache: Whether prefixes are reused.
    """

    device: str
    dtype: str
    vocab: str | None
    chat_template: str | None
    quantize: str | None
    tool_parser: str | None
    reasoning_parser: str | None
    memory: str
    max_running: int
    max_waiting: int
    max_seq_len: int | None
    token_budget: int
    prefix_cache: bool

    @loading()
    def open(self, model: str) -> TextEngine:
        """Load a model."""
        # torch comes with these
        from blazr.engine.config import EngineConfig
        from blazr.llm.open import open_model

        return open_model(
            model,
            device=self.device,
            dtype=self.dtype,
            vocab=self.vocab,
            chat_template=self.chat_template,
            quantize=self.quantize,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            engine=EngineConfig(
                memory=self.memory,
                max_running=self.max_running,
                max_waiting=self.max_waiting,
                max_seq_len=self.max_seq_len,
                token_budget=self.token_budget,
                prefix_cache=self.prefix_cache,
                warm_up=True,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A model to serve.

    Args:
        path: Where it is.
        name: What it is called; None is its own name.
        opening: How it is loaded.
    """

    path: str
    name: str | None
    opening: Opening

    def open(self) -> AsyncLLM:
        """Load it."""
        from blazr.llm.async_llm import AsyncLLM

        return AsyncLLM(self.opening.open(self.path))

    @property
    def num_bytes(self) -> int:
        """The size of its weights on disk; 0 where that says nothing of their size in memory."""
        if self.opening.quantize is not None:
            return 0
        place = Path(self.path).expanduser()
        files = [place] if place.is_file() else [f for end in _WEIGHTS for f in place.glob(end)]
        return sum(file.stat().st_size for file in files)


def plan_models(
    named: Sequence[str], file: Path | None, opening: Opening, *, default: str
) -> list[ModelPlan]:
    """The models of a command line and of its file of settings.

    Args:
        named: ``path`` or ``name=path``; if there are any, the file's are not served.
        file: What ``--config`` named.
        opening: How they are loaded, where the file's table does not say otherwise.
        default: The path where none is named.

    Raises:
        ConfigError: There are several, and one has no name or two have the same; or the file's
            table is wrong.
    """
    tables = read_settings(file).get(_TABLE, {}) if file is not None and not named else {}
    if not isinstance(tables, Mapping):
        raise ConfigError("[models] of the settings is no table.", expected='name = "path"')
    plans = [_from_flag(each, opening) for each in named]
    plans += [_from_table(name, table, opening) for name, table in tables.items()]
    names = [plan.name for plan in plans]
    if len(plans) > 1 and (None in names or len(set(names)) < len(names)):
        raise ConfigError(
            "several models need a name each.",
            found=", ".join(str(name)[:30] for name in names)[:200],
            expected="--model name=path",
        )
    return plans or [ModelPlan(path=default, name=None, opening=opening)]


def _from_flag(text: str, opening: Opening) -> ModelPlan:
    name, separator, path = text.partition("=")
    is_named = separator and path and _NAME.fullmatch(name) and not Path(text).exists()
    return ModelPlan(
        path=path if is_named else text, name=name if is_named else None, opening=opening
    )


def _from_table(name: str, table: object, opening: Opening) -> ModelPlan:
    given = {"path": table} if isinstance(table, str) else msgspec.to_builtins(table)
    try:
        if not _NAME.fullmatch(name):
            raise ConfigError("a model's name is not understood.", found=repr(name)[:50])
        changes = {key.replace("-", "_"): value for key, value in dict(given).items()}
        path = msgspec.convert(changes.pop("path", None), str)
        opening = msgspec.convert({**msgspec.structs.asdict(opening), **changes}, Opening)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the model {name[:50]!r} of the settings is not understood.",
            found=str(error)[:200],
            expected="a path, or a table with one and with " + ", ".join(Opening.__struct_fields__),
        ) from None
    return ModelPlan(path=path, name=name, opening=opening)


def read_settings(file: Path) -> dict[str, object]:
    """A file of settings, with the keys as Python spells flags.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("the file of settings cannot be read.", found=str(error)[:200]) from None
    return {key.replace("-", "_"): value for key, value in found.items()}


def apply_settings(ctx: typer.Context, file: Path | None) -> Path | None:
    """Let a file of settings say what flags and environment do not.

    Raises:
        ConfigError: It holds a key that is no flag.
    """
    if file is None:
        return None
    found = read_settings(file)
    found.pop(_TABLE, None)
    options = {each.name: each for each in ctx.command.params if isinstance(each, TyperOption)}
    unknown = sorted(found.keys() - options.keys() - {None})
    if unknown or "config" in found:
        raise ConfigError(
            "the settings hold what is no flag.",
            found=", ".join(unknown)[:100] or "config",
            expected="flags of blazr serve without their dashes, and [models]",
        )
    ctx.default_map = {
        name: [value] if options[name].multiple and isinstance(value, str) else value
        for name, value in found.items()
    }
    return file
