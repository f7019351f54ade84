"""Every environment variable that blazr reads, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass

from blazr.core.table import Table


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
            Variable("BLAZR_API_KEY", "an API key the server asks for (comma-separated for more)"),
            Variable("BLAZR_MEMORY", "like --memory; the flag goes before its variable"),
            Variable("BLAZR_MAX_RUNNING", "like blazr serve --max-running"),
            Variable("BLAZR_MAX_WAITING", "like blazr serve --max-waiting"),
            Variable("BLAZR_MAX_SEQ_LEN", "like blazr serve --max-seq-len"),
            Variable("BLAZR_TOKEN_BUDGET", "like blazr serve --token-budget"),
            Variable("BLAZR_PREFIX_CACHE", "0 is blazr serve --no-prefix-cache"),
            Variable("BLAZR_KERNELS", "reference, or the CPU kernels for avx512, avx2 or portable"),
            Variable("BLAZR_DEBUG", "1 shows tracebacks", "0"),
            Variable("BLAZR_NO_HISTORY", "1 keeps blazr chat from writing its history file", "0"),
            Variable("HF_HOME", "where the Hugging Face cache lies"),
            Variable("HF_TOKEN", "token for the Hugging Face Hub"),
            Variable("HF_HUB_OFFLINE", "1 forbids the network", "0"),
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


def flag(name: str) -> bool:
    """Whether a declared variable is set to something true."""
    return get(name).strip().lower() not in {"", "0", "false", "no", "off"}
