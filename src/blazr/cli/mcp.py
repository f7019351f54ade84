"""``blazr mcp``: models as tools of other agents, over stdin and stdout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.agent.config import check_installed
from blazr.cli import options
from blazr.core import env

if TYPE_CHECKING:
    from starlette.applications import Starlette


@options.with_flags
def mcp(
    model_argument: options.ModelArgument = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help=options.MODELS_HELP,
            show_default=False,
        ),
    ] = None,
    url: options.Url = None,
    load: options.ServeFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback acts)
) -> None:
    """Let other agents use models as tools (MCP), over stdin and stdout.

    An agent starts it. It offers to chat, to generate, to embed and to transcribe, as the models
    can; `blazr serve --mcp` offers the same over HTTP.
    """
    check_installed()
    if url is not None:
        asyncio.run(_serve(None, url))
        return
    from blazr.cli.model_plans import plan_models
    from blazr.cli.serve import open_models
    from blazr.server.app import build_app
    from blazr.server.config import ServerConfig

    named = [*([model_argument] if model_argument else []), *(model or ())]
    plans = plan_models(named, None, load, default=options.BUILT_IN)
    options.set_threads(threads)
    models = open_models(plans, ServerConfig(access_log="off"))
    try:
        asyncio.run(_serve(build_app(models), "http://localhost"))
    finally:
        models.close()


async def _serve(app: Starlette | None, url: str) -> None:
    """Serve until stdin ends: by an application of this process, or by a server elsewhere."""
    import httpx2
    from mcp.server.stdio import stdio_server

    from blazr.agent.own_server import build_server

    transport = None if app is None else httpx2.ASGITransport(app=app)
    key = env.api_key() if app is None else ""
    client = httpx2.AsyncClient(
        transport=transport,
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(10, read=600),
    )
    async with client, stdio_server() as (read, write):
        server = build_server(client, reads_files=True)
        await server.run(read, write, server.create_initialization_options())
