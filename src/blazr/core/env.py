"""The environment variables that blazr reads, besides those of the flags of ``blazr serve``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from blazr.core.errors import ConfigError
from blazr.core.table import Table

_REFERENCE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Args:
        name: Its name.
        help: What it does, for the docs.
        default: Its value when unset.
    """

    name: str
    help: str
    default: str = ""


ENV: Table[Variable] = Table(
    "environment variable",
    {
        row.name: row
        for row in (
            Variable("BLAZR_LOG", "log level: info, debug, or blazr=debug,uvicorn=info"),
            Variable("RUST_LOG", "read like BLAZR_LOG when that is unset"),
            Variable(
                "BLAZR_API_KEY",
                "like blazr serve --api-key; commands with --url send the first",
            ),
            Variable("BLAZR_MEMORY", "like --memory; the flag goes before its variable"),
            Variable("BLAZR_PREFIX_CACHE", "0 is blazr serve --no-prefix-cache"),
            Variable(
                "BLAZR_KERNELS",
                "reference, or the kernels of an instruction set, as amx, avx512 or avx2",
            ),
            Variable(
                "BLAZR_KEEP_PACKED",
                "1 keeps weights as they are packed at load in HF_HOME/blazr for the next start",
                "0",
            ),
            Variable("BLAZR_DEBUG", "1 shows tracebacks", "0"),
            Variable("BLAZR_NO_HISTORY", "1 keeps blazr chat from writing its history file", "0"),
            Variable("HF_HOME", "where the Hugging Face cache lies"),
            Variable("HF_TOKEN", "token for the Hugging Face Hub"),
            Variable("HF_HUB_OFFLINE", "1 forbids the network", "0"),
            Variable("TERM", "dumb keeps answers from being wrapped and coloured"),
            Variable("NO_COLOR", "any value turns colour off"),
        )
    },
)


def get(name: str) -> str:
    """The value of a declared variable, or its default.

    Raises:
        UnknownNameError: The variable is not in the table.
    """
    row = ENV[name]
    return os.environ.get(row.name, row.default)  # noqa: TID251  (the one place that may)


def api_key() -> str:
    """The key that a client sends, if any: the first of those in BLAZR_API_KEY."""
    return get("BLAZR_API_KEY").partition(",")[0]


def inherited(**changes: str) -> dict[str, str]:
    """The whole environment with some variables changed, for another program that is run."""
    return {**os.environ, **changes}  # noqa: TID251  (see above)


def expand(text: str) -> str:
    """A text with the variables that it names: ``${NAME}``, ``${NAME:-default}``.

    Raises:
        ConfigError: One without a default is not set.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        known = os.environ.get(name, default)  # noqa: TID251  (see above)
        if known is None:
            raise ConfigError(
                "an environment variable is not set.", found=f"${{{name[:50]}}}", expected="a value"
            )
        return known

    return _REFERENCE.sub(value, text)


def flag(name: str) -> bool:
    """Whether a declared variable is set to something true."""
    return get(name).strip().lower() not in {"", "0", "false", "no", "off"}
