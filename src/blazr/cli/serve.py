"""``blazr serve``: the HTTP server."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blazr.cli import options
from blazr.cli.model_plans import ModelPlan, apply_settings, plan_models
from blazr.core import env, garbage, log
from blazr.core.errors import ConfigError, as_config_error
from blazr.core.remote import auth_headers, root_url
from blazr.server.config import ServerConfig

if TYPE_CHECKING:
    import socket

    import httpx2

    from blazr.server.models import Models


@options.with_flags
def serve(  # noqa: PLR0913  (one argument per flag)
    model_argument: options.ModelArgument = None,
    *,
    model: options.Models = None,
    config: Annotated[
        Path | None,
        typer.Option(
            callback=apply_settings,
            is_eager=True,
            help="Settings file (TOML): flags without dashes, and [models].",
        ),
    ] = None,
    server: ServerConfig,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with one API key per line; # begins a comment.")
    ] = None,
    # what the process in front tells its replicas, and neither a variable nor a setting
    as_replica: Annotated[Path | None, typer.Option(hidden=True, allow_from_autoenv=False)] = None,
    load: options.ServeFlags,
    threads: options.Threads = None,
    verbose: options.Verbose = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            help="Log level: error, warn, info, debug, trace, or blazr.engine=debug.  "
            "[default: info]"
        ),
    ] = None,
) -> None:
    """Serve models over HTTP, in the dialects of OpenAI, Anthropic and Ollama."""
    from blazr.server.liveness import Liveness
    from blazr.server.serve import address_of, listen
    from blazr.server.serve import serve as run_server

    log.setup("debug" if verbose else "info", levels=log_level)
    garbage.limit_malloc_arenas()
    if server.replicas > 1:
        if load.num_ranks > 1:
            raise ConfigError(
                "replicas over several ranks each do not work yet.",
                found=f"--replicas {server.replicas} --tp {load.tp} --pp {load.pp}",
                expected="one of the two",
            )
        load = replace(load, sharers=server.replicas)
        threads = threads or max(1, len(os.sched_getaffinity(0)) // server.replicas)
        if server.models_memory_bytes is not None:
            share = server.models_memory_bytes // server.replicas
            server = replace(server, models_memory_bytes=share)
    named = options.named_models(model, model_argument)
    plans = plan_models(named, config, load, default=options.BUILT_IN)
    server = replace(server, api_keys=read_api_keys(server.api_keys, api_key_file))
    if len(plans) > 1 and server.served_names:
        raise ConfigError(
            "--served-model-name is for one model; several have a name each.",
            expected="--model NAME=PATH",
        )
    if server.kv_peers and all(plan.flags.cache_dir is None for plan in plans):
        raise ConfigError(
            "what a --kv-peer sends is kept in --cache-dir, which is not given.",
            found=f"--kv-peer {server.kv_peers[0]:.100}",
            hint="name a directory: --cache-dir DIR",
        )
    if as_replica is not None:
        server = _replica_config(server, as_replica)
    sock = listen(server)  # first, so that a port in use is told before minutes are spent
    address = address_of(sock, is_tls=server.tls_cert is not None)
    liveness = None if server.health_port is None else Liveness(server.host, server.health_port)
    if as_replica is None and server.replicas > 1:
        from blazr.server.replicas.serve import serve_replicas

        names = ", ".join(plan.name or plan.path for plan in plans)
        serve_replicas(
            sys.argv[1:],
            server,
            sock,
            liveness,
            on_ready=lambda: _print_addresses(
                f"{names} ({server.replicas} replicas)", server, address
            ),
        )
        return
    options.set_threads(threads)
    models = open_models(plans, server)
    if as_replica is not None:
        _serve_as_replica(models, sock, as_replica.with_suffix(".kept"))
        return
    info = models.slots[0].info
    names = ", ".join(slot.source.name for slot in models.slots)
    _print_addresses(names, server, address, device=str(info.device) if info else None)
    run_server(models, sock, liveness)


def variables() -> Iterator[env.Variable]:
    """Every environment variable that is read: of the table, and of the flags of a server.

    Where several values may be given they stand between commas.
    """
    yield from env.ENV.values()
    for flag, parameter in inspect.signature(serve).parameters.items():
        name = f"BLAZR_{flag.upper()}"
        is_shown = not parameter.annotation.__metadata__[0].hidden
        if parameter.kind is parameter.KEYWORD_ONLY and is_shown and name not in env.ENV:
            yield env.Variable(name, f"like blazr serve --{flag.replace('_', '-')}")


def _replica_config(config: ServerConfig, path: Path) -> ServerConfig:
    """The configuration of a replica, from that of the process in front.

    That process alone reaches it, and has TLS, the health port and the files.

    Args:
        config: Of the process in front.
        path: The replica's socket file, whose stem is its number.
    """
    return replace(
        config,
        replica=int(path.stem),
        uds=str(path),
        health_port=None,
        tls_cert=None,
        tls_key=None,
        files_dir=None,
    )


def _serve_as_replica(models: Models, sock: socket.socket, stored: Path) -> None:
    from blazr.server.replicas.handover import restore_responses, save_responses
    from blazr.server.replicas.serve import end_with_parent
    from blazr.server.serve import serve as run_server

    end_with_parent(stored.parent)
    restore_responses(models.state.responses, stored)
    run_server(models, sock)
    save_responses(models.state.responses, stored)


def _print_addresses(
    names: str, config: ServerConfig, address: str, *, device: str | None = None
) -> None:
    lines = [f"blazr serves {names} on {address}" + (f" ({device})" if device else "")]
    if config.uds is None:
        # 0.0.0.0 and :: are addresses to listen on, not to connect to
        base = address.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
        base += config.root_path
        if config.has_ui:
            lines += [f"  chat page      {base}/", f"  API reference  {base}/docs"]
        lines.append(f"  OpenAI's API   {base}/v1")
        if config.mcp:
            lines.append(f"  MCP            {base}/mcp")
    if not config.is_loopback and not config.api_keys:
        lines.append(
            "warning: anyone who can reach this machine can use it; "
            "set --api-key, or listen on --host 127.0.0.1"
        )
    log.write_line("\n".join(lines))


def open_models(plans: Sequence[ModelPlan], config: ServerConfig) -> Models:
    """The models; one that is alone is loaded now, so that what is wrong with it shows at once."""
    # torch comes with these, and a port in use should be told before
    from blazr.llm.async_llm import AsyncLLM
    from blazr.server.models import Models, ModelSource

    def source_of(plan: ModelPlan, name: str, *aliases: str) -> ModelSource:
        return ModelSource(
            name=name,
            open=plan.open,
            aliases=aliases,
            adapters=plan.adapters,
            num_bytes=plan.num_bytes,
            capabilities=plan.capabilities,
        )

    if len(plans) > 1:
        return Models([source_of(plan, plan.name or plan.path) for plan in plans], config)
    (plan,) = plans
    model = plan.open()
    info = model.core.info if isinstance(model, AsyncLLM) else model.info
    name, *more = config.served_names or (plan.name or info.name,)
    models = Models([source_of(plan, name, *more, plan.path)], config)
    models.adopt(model)
    return models


@contextmanager
def open_client(
    url: str | None, plans: Sequence[ModelPlan], config: ServerConfig, *, read_s: float | None
) -> Iterator[httpx2.AsyncClient]:
    """A client of a running server, or of one in this process, which is closed with the block.

    The client itself is opened and closed in the event loop that it is used in.

    Args:
        url: Of the server, with or without ``/v1``; None is one in this process.
        plans: The models of that.
        config: How that behaves.
        read_s: Longest silence of a running server; None waits.
    """
    import httpx2

    if url is not None:
        yield httpx2.AsyncClient(
            base_url=root_url(url),
            headers=auth_headers(env.api_key()),
            timeout=httpx2.Timeout(10, read=read_s),
            limits=httpx2.Limits(max_connections=None),
        )
        return

    from blazr.server.app import build_app

    models = open_models(plans, config)
    try:
        transport = httpx2.ASGITransport(build_app(models))
        yield httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=None)
    finally:
        models.close()


def read_api_keys(given: Iterable[str], file: Path | None) -> tuple[str, ...]:
    """The API keys of the command line, and those of a file.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    keys = [*given]
    if file is not None:
        with as_config_error("the API key file cannot be read.", (OSError, ValueError)):
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ConfigError("the API key file holds no key.", found=str(file)[:200])
        keys += found
    return tuple(keys)
