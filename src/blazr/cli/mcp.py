"""``blazr mcp``: models as tools of other agents, over stdin and stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from blazr.agent.config import check_installed
from blazr.cli import options
from blazr.cli.model_plans import plan_models
from blazr.cli.serve import open_client
from blazr.cli.signals import run_async
from blazr.server.config import ServerConfig

if TYPE_CHECKING:
    import httpx2


@options.with_flags
def mcp(
    ctx: typer.Context,
    model_argument: options.ModelArgument = None,
    *,
    model: options.Models = None,
    url: options.Url = None,
    load: options.ServeFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Let other agents use models as tools (MCP), over stdin and stdout.

    An agent starts it. It offers to chat, to generate, to embed and to transcribe, as the models
    can; `blazr serve --mcp` offers the same over HTTP.
    """
    options.refuse_beside_url(ctx, "model", "model_argument")
    check_installed()
    named = options.named_models(model, model_argument)
    plans = [] if url is not None else plan_models(named, None, load, default=options.BUILT_IN)
    options.set_threads(threads)
    with open_client(url, plans, ServerConfig(access_log="off"), read_s=600) as client:
        run_async(_serve(client))


async def _serve(client: httpx2.AsyncClient) -> None:
    """Serve until stdin ends."""
    from mcp.server.stdio import stdio_server

    from blazr.agent.own_server import build_server

    server = build_server(client, reads_files=True)
    async with client, stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
