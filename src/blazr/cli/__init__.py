"""The command line. COMMANDS holds one lazy row per command, so that ``--help`` is instant."""

from __future__ import annotations

from collections.abc import Callable

from blazr.core.table import Table

COMMANDS: Table[Callable[..., None]] = Table(
    "command",
    {},
    lazy={
        "run": "blazr.cli.run:run",
        "generate": "blazr.cli.generate:generate",
        "chat": "blazr.cli.chat:chat",
        "serve": "blazr.cli.serve:serve",
        "transcribe": "blazr.cli.transcribe:transcribe",
        "speak": "blazr.cli.speak:speak",
        "mcp": "blazr.cli.mcp:mcp",
        "image": "blazr.cli.image:image",
        "launch": "blazr.cli.launch:launch",
        "batch": "blazr.cli.batch:batch",
        "info": "blazr.cli.info:info",
        "pull": "blazr.cli.cache:pull",
        "list": "blazr.cli.cache:list_models",
        "rm": "blazr.cli.cache:remove",
        "convert": "blazr.cli.convert:convert",
        "verify": "blazr.cli.verify:verify",
        "bench": "blazr.cli.bench:bench",
        "encode": "blazr.cli.vocabulary:encode",
        "decode": "blazr.cli.vocabulary:decode",
        "doctor": "blazr.cli.doctor:doctor",
    },
)
