"""Which models ``blazr serve`` has, and its file of settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from typer.core import TyperOption

from blazr.cli import options
from blazr.cli.options import ServeFlags
from blazr.core.errors import ConfigError, as_config_error
from blazr.llm.options import check_cache_disk
from blazr.pipelines.kinds import IMAGE, LANGUAGE_MODEL, kind_of

if TYPE_CHECKING:
    from blazr.llm.async_llm import AsyncLLM
    from blazr.pipelines.pipeline import Pipeline

_NAME = re.compile(r"[\w.:@/-]+")
_WEIGHTS = ("*.safetensors", "*.gguf")
_TABLE = "models"  # of the file of settings: one row, or one table, for each model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A model to serve.

    Args:
        path: Where it is.
        name: What it is called; None is its own name.
        flags: How it is loaded.
    """

    path: str
    name: str | None
    flags: ServeFlags

    def open(self) -> AsyncLLM | Pipeline:
        """Load it."""
        from blazr.llm.async_llm import AsyncLLM
        from blazr.llm.load import load_pipeline

        pipeline = load_pipeline(replace(self.flags, model=self.path))
        if pipeline is not None:
            return pipeline
        return AsyncLLM.of(replace(self.flags, warm_up=True).load(self.path))

    @property
    def capabilities(self) -> tuple[str, ...] | None:
        """What it can do; None where that is not known before it is loaded."""
        place = Path(self.path).expanduser()
        if not place.exists() and self.path != options.BUILT_IN:
            return None  # of the Hub
        kind = kind_of(place)
        return LANGUAGE_MODEL if kind is None else kind.capabilities

    @property
    def adapters(self) -> Mapping[str, Path]:
        """Directories of the adapters that are loaded with it, by name."""
        from blazr.llm.adapters import parse_adapters

        return parse_adapters(self.flags.adapter)

    @property
    def num_bytes(self) -> int:
        """The size of its weights on disk; 0 where that says nothing of their size in memory."""
        if self.flags.quantize is not None:
            return 0
        place = Path(self.path).expanduser()
        kind = kind_of(place)
        has_folders = kind is not None and IMAGE in kind.capabilities  # one for each network
        patterns = ("*/*.safetensors",) if has_folders else _WEIGHTS
        files = [place] if place.is_file() else [f for each in patterns for f in place.glob(each)]
        return sum(file.stat().st_size for file in files)


def plan_models(
    named: Sequence[str], file: Path | None, flags: ServeFlags, *, default: str
) -> list[ModelPlan]:
    """The models of a command line and of its file of settings.

    Args:
        named: ``path`` or ``name=path``; if there are any, the file's are not served.
        file: What ``--config`` named.
        flags: How they are loaded, where the file's table does not say otherwise.
        default: The path where none is named.

    Raises:
        ConfigError: There are several, and one has no name or two have the same; or the file's
            table is wrong; or a limit is given for files that no model keeps.
    """
    tables = read_settings(file).get(_TABLE, {}) if file is not None and not named else {}
    if not isinstance(tables, Mapping):
        raise ConfigError("[models] in the settings file is not a table.", expected='name = "path"')
    plans = []
    for text in named:
        name, separator, path = text.partition("=")
        is_pair = separator and path and _NAME.fullmatch(name) and not Path(text).exists()
        plans.append(
            ModelPlan(path=path if is_pair else text, name=name if is_pair else None, flags=flags)
        )
    plans += [_plan_from_table(name, table, flags) for name, table in tables.items()]
    names = [plan.name for plan in plans]
    if len(plans) > 1 and (None in names or len(set(names)) < len(names)):
        raise ConfigError(
            "each of several models needs a name of its own.",
            found=", ".join((plan.name or plan.path)[:30] for plan in plans)[:200],
            expected="--model name=path",
        )
    plans = plans or [ModelPlan(path=default, name=None, flags=flags)]
    check_cache_disk(plan.flags for plan in plans)
    return plans


def _plan_from_table(name: str, table: object, flags: ServeFlags) -> ModelPlan:
    try:
        if not _NAME.fullmatch(name):
            raise ConfigError("this cannot be the name of a model.", found=repr(name)[:50])
        changes = _changes_of(table)
        path = msgspec.convert(changes.pop("path"), str)
        flags = _checked_flags(flags, changes)
    except (TypeError, ValueError) as error:
        keys = ", ".join(options.flag_names(ServeFlags))
        raise ConfigError(
            f"the model {name[:50]!r} in the settings file is not understood.",
            found=str(error)[:200],
            expected=f"a path, or a table with one and with {keys}",
        ) from None
    return ModelPlan(path=path, name=name, flags=flags)


def _changes_of(table: object) -> dict[str, object]:
    """The path of a model, and the flags that its table changes."""
    given = {"path": table} if isinstance(table, str) else table
    if not isinstance(given, Mapping):
        raise TypeError(repr(given))
    if not given.get("path"):
        raise ValueError("no path")
    changes = {key.replace("-", "_"): value for key, value in given.items()}
    lists = {key for key in options.JOINED if isinstance(changes.get(key), list)}
    return changes | {key: ",".join(msgspec.convert(changes[key], list[str])) for key in lists}


def _checked_flags(flags: ServeFlags, changes: Mapping[str, object]) -> ServeFlags:
    """The same flags with other values, which are checked."""
    unknown = sorted(changes.keys() - set(options.flag_names(ServeFlags)))
    if unknown:
        closest = _closest(unknown, options.flag_names(ServeFlags))
        raise ValueError(f"there is no key {unknown[0][:50]!r}{closest and f'; {closest}'}")
    return msgspec.convert({**asdict(flags), **changes}, ServeFlags)


def _closest(unknown: Sequence[str], names: Sequence[str]) -> str:
    """What the first of some mistyped keys may be meant to be; nothing where none is like it."""
    near = get_close_matches(unknown[0], names, n=1) if unknown else []
    return f"closest: {near[0].replace('_', '-')}" if near else ""


def read_settings(file: Path) -> dict[str, object]:
    """A file of settings, with the keys as Python spells flags.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    with as_config_error("the settings file cannot be read.", (OSError, ValueError)):
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    return {key.replace("-", "_"): value for key, value in found.items()}


def _is_fit(flag: TyperOption, value: object) -> bool:
    """Whether a value of a settings file is of the kind that a flag takes.

    Typer would read true as 1, as Python does, and anything as the text that Python has for it.
    """
    values = value if flag.multiple and isinstance(value, list) else [value]
    return all(
        isinstance(each, (str, int, float)) and (flag.is_flag or not isinstance(each, bool))
        for each in values
    )


def apply_settings(ctx: typer.Context, file: Path | None) -> Path | None:
    """Let a file of settings say what flags and environment do not.

    Raises:
        ConfigError: It holds a key that is no flag, or what no flag of that name takes.
    """
    if file is None:
        return None
    found = read_settings(file)
    found.pop(_TABLE, None)
    flags = {
        each.name: each
        for each in ctx.command.params
        if isinstance(each, TyperOption) and not each.hidden
    }
    unknown = sorted(found.keys() - flags.keys() - {None})
    if unknown or "config" in found:
        raise ConfigError(
            "the settings file has a key that is not a flag.",
            found=", ".join(unknown)[:100] or "config",
            expected="flags of blazr serve, without dashes, and [models]",
            hint=_closest(unknown, [name for name in flags if name and name != "config"]),
        )
    for name, value in found.items():
        if not _is_fit(flags[name], value):
            text = msgspec.json.encode(value, enc_hook=str).decode()
            raise ConfigError(
                "a value in the settings file is not of its flag's kind.",
                found=f"{name.replace('_', '-')} = {text}"[:100],
                expected="true or false" if flags[name].is_flag else "a number or a text",
            )
    ctx.default_map = {
        name: [value] if flags[name].multiple and isinstance(value, str) else value
        for name, value in found.items()
    }
    return file
